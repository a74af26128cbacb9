"""Figures of DISB runs as data: what is written as JSON and shown in tables and reports. Times in microseconds."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Literal

import msgspec

from ...base.errors import UsageError

RESULT_FORMAT = 1
QUANTILES = (*(at / 100 for at in range(0, 100, 2)), 0.99, 0.995, 0.999, 1.0)
"""Where distributions are kept for plots."""


class LatencySummary(msgspec.Struct, frozen=True):
    """Microseconds. All 0 when ``count`` is 0."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    p999: float = 0.0
    max: float = 0.0


def quantile(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile of ascending values; 0 when there are none."""
    return ordered[max(ceil(share * len(ordered)), 1) - 1] if ordered else 0.0


def summarize(values_us: Sequence[float]) -> LatencySummary:
    """The summary of unordered microseconds."""
    if not values_us:
        return LatencySummary()
    ordered = sorted(values_us)
    at = [round(quantile(ordered, share), 3) for share in (0.5, 0.99, 0.999, 1.0)]
    return LatencySummary(len(ordered), round(sum(ordered) / len(ordered), 3), *at)


class ClientResult(msgspec.Struct, frozen=True):
    """One client. ``latency`` from the launch, ``since_intended`` from when the load intended it; both of completed requests."""

    id: str
    model: str
    realtime: bool
    standalone_us: float
    latency: LatencySummary
    since_intended: LatencySummary
    launched: int
    completed: int
    dropped: int
    per_second: float

    @property
    def increase(self) -> float:
        """Mean latency over that of the model alone, less 1. DISB's own percentages divide by the loaded latency instead."""
        return self.latency.mean / self.standalone_us - 1 if self.latency.count and self.standalone_us else 0.0


class PreemptionFigures(msgspec.Struct, frozen=True):
    """Preemptions that met resident best-effort work, and what resuming cost. ``wasted``: share of that work done twice."""

    latency: LatencySummary = LatencySummary()
    latency_quantiles: tuple[float, ...] = ()
    restore: LatencySummary = LatencySummary()
    wasted: float = 0.0


class DisbResult(msgspec.Struct, frozen=True):
    """One workload under one way of sharing. ``source`` tells a model's figures from a device's."""

    workload: str
    row: str
    source: Literal["model", "measurement"]
    loop: Literal["closed", "open"]
    seed: int
    seconds: float
    clients: tuple[ClientResult, ...]
    rt: LatencySummary
    rt_since_intended: LatencySummary
    rt_increase: float
    """Mean over real-time requests of latency over that of their model alone, less 1."""
    rt_increase_p99: float
    rt_per_second: float
    be_per_second: float
    be_done: float
    """Best-effort work completed, in seconds of the models alone per second."""
    rt_done: float
    busy: float
    """Share of the device's capacity in use."""
    preemption: PreemptionFigures = PreemptionFigures()

    @property
    def per_second(self) -> float:
        return self.rt_per_second + self.be_per_second

    @property
    def done(self) -> float:
        """All completed work, in seconds of the models alone per second: 1 is a device that runs one after the other."""
        return self.rt_done + self.be_done

    @property
    def dropped(self) -> int:
        return sum(client.dropped for client in self.clients if client.realtime)


class DisbMatrix(msgspec.Struct, frozen=True):
    """Results and what they were made on. ``facts``: names and values for the reader, e.g. clocks, driver, versions."""

    device: str
    results: tuple[DisbResult, ...]
    facts: tuple[tuple[str, str], ...] = ()
    format: int = RESULT_FORMAT

    @property
    def modelled(self) -> bool:
        return any(result.source == "model" for result in self.results)


def over_dedicated(matrix: DisbMatrix, result: DisbResult, dedicated: str = "RT-only") -> float | None:
    """Mean real-time latency over that of the same workload on a dedicated device, less 1.

    Real-time requests that queue behind each other are in both, so that this is what best-effort work costs. Below 0 where a
    row runs real-time requests side by side and the dedicated one in order. None without that row or without requests.
    """
    for other in matrix.results:
        if (other.workload, other.row, other.loop, other.seed) == (
            result.workload,
            dedicated,
            result.loop,
            result.seed,
        ):
            return result.rt.mean / other.rt.mean - 1 if other.rt.count and result.rt.count else None
    return None


def dump_results(matrix: DisbMatrix) -> bytes:
    return msgspec.json.format(msgspec.json.encode(matrix), indent=1)


def load_results(data: bytes) -> DisbMatrix:
    """Raises UsageError when these are not results, or of another format."""
    try:
        matrix = msgspec.json.decode(data, type=DisbMatrix)
    except msgspec.MsgspecError as error:
        raise UsageError(f"not results of DISB: {error}", "run the benchmark again") from error
    if matrix.format != RESULT_FORMAT:
        raise UsageError(f"results of format {matrix.format}, not {RESULT_FORMAT}", "run the benchmark again")
    return matrix
