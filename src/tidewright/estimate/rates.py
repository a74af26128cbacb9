"""The built-in estimator of rates: goodput models, then tables of throughput, then constants by kind; see ``model.rate``.

What a workload has no figure for is taken from the next best: its row on as many devices of another kind times the ratio of
the kinds, rows on fewer and more devices in between, else the speed of ranks that take turns (``model.splice``).
"""

from __future__ import annotations

from bisect import bisect_left

from ..model.board import Layout, kind_of, spread_of
from ..model.job import JobSpec
from ..model.node import Allocation, device_count
from ..model.rate import FULL_RATE, MOST_RATE, TOGETHER, Goodput, RatedJob, RateEstimator, RateSettings, Spread, rated
from ..model.splice import FULL_SPEED, OVERHEAD_MILLI, speed_milli
from .goodput import best_goodput

_Rows = dict[int, dict[int, float]]
"""Devices to nodes (0: wherever they lie) to work per second."""


class Rates:
    """Rates by one ``RateSettings``; ``splice_milli`` is what ranks lose that take turns on a device."""

    def __init__(self, settings: RateSettings, splice_milli: int = OVERHEAD_MILLI) -> None:
        self.settings, self.splice_milli = settings, splice_milli
        self._rows: dict[str, dict[str, _Rows]] = {}
        for row in settings.throughputs:
            by_kind = self._rows.setdefault(row.workload, {})
            by_kind.setdefault(row.kind, {}).setdefault(row.devices, {})[row.nodes] = row.per_s
        self._known: dict[tuple[RatedJob, str, int, Spread], int] = {}
        self.by_kind = bool(settings.kinds or settings.throughputs or settings.goodput or settings.spread)
        self.by_place = bool(settings.kinds or settings.goodput or settings.spread) or any(
            map(_differ, self._rows.values())
        )
        """Whether there may be faster devices for a job than as many others: of another kind, or nearer together."""

    def rate(
        self, job: RatedJob, kind: str, count: int, spread: Spread = TOGETHER, neighbours: tuple[RatedJob, ...] = ()
    ) -> int:
        """Millionths of full speed. ``neighbours`` do not slow a job down here; tables of interference are to."""
        if not self.by_kind:
            return 1_000 * speed_milli(job.ranks, count, job.demand, self.splice_milli)
        key = (job, kind, count, spread)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._rate(job, kind, count, spread)
        return found

    def runs_on(self, workload: str, kind: str, count: int) -> bool:
        """Whether no row says that it cannot."""
        rows = self._rows.get(workload, {}).get(kind, {}).get(count)
        return rows is None or max(rows.values()) > 0

    def knows(self, workload: str) -> bool:
        """Whether the workload has rows or a model of its own."""
        return workload in self._rows or workload in self.settings.goodput

    def per_s(self, workload: str, kind: str, devices: int, nodes: int) -> float:
        """Work per second that a row for just these devices says; 0 where there is none."""
        by_nodes = self._rows.get(workload, {}).get(kind, {}).get(devices, {})
        return by_nodes.get(nodes, by_nodes.get(0, 0.0))

    def expected_per_s(self, workload: str, kind: str, devices: int, nodes: int) -> float:
        """Work per second by a row for these devices, or between rows for others; 0 for workloads without rows."""
        exact = self.per_s(workload, kind, devices, nodes)
        if exact or workload not in self._rows:
            return exact
        return self._speed(RatedJob(workload, devices, devices), kind, devices, Spread(nodes, nodes))

    def reference(self, spec: JobSpec, kinds: tuple[str, ...]) -> str:
        """The fastest kind on the full allotment; among equals the one that the job names first, or that is first in the pool."""
        if not self.by_kind:
            return ""
        mine = [kind for kind in spec.device_types if kind in kinds] if spec.device_types else list(kinds)
        job = rated(spec, "", spec.workloads[0])
        return max(mine, key=lambda kind: self._speed(job, kind, spec.devices, TOGETHER), default="")

    def _rate(self, job: RatedJob, kind: str, count: int, spread: Spread) -> int:
        full = self._speed(job, job.reference or kind, job.demand, Spread(spread.fewest, spread.fewest))
        if full <= 0:
            return FULL_RATE
        return min(max(1, round(FULL_RATE * self._speed(job, kind, count, spread) / full)), MOST_RATE)

    def _speed(self, job: RatedJob, kind: str, count: int, spread: Spread) -> float:
        """Work per second, in a unit that is the same for all kinds and counts of one workload."""
        model = self.settings.goodput.get(job.workload)
        if model is not None:
            return self._modelled(model, kind, count, spread)
        rows = self._rows.get(job.workload)
        if rows is None:
            speed = self._kind(kind) * speed_milli(job.ranks, count, job.demand, self.splice_milli) / FULL_SPEED
            return speed * self._kept(job.workload, spread)
        measured = rows.get(kind, {}).get(count)
        if measured:
            return self._measured(measured, job.workload, spread) / self._turns(job, count)
        return self._between(rows, job, kind, count) * self._kept(job.workload, spread)

    def _measured(self, by_nodes: dict[int, float], workload: str, spread: Spread) -> float:
        """Work per second of rows for the same devices: of the one for as many nodes, or for the next more where it is spread."""
        if spread.nodes <= spread.fewest:
            return by_nodes.get(spread.nodes, by_nodes.get(0, max(by_nodes.values())))
        wider = sorted(nodes for nodes in by_nodes if nodes > spread.fewest)
        if not wider:
            return by_nodes.get(0, max(by_nodes.values())) * self._kept(workload, spread)
        return by_nodes[next((nodes for nodes in wider if nodes >= spread.nodes), wider[-1])]

    def _modelled(self, model: Goodput, kind: str, count: int, spread: Spread) -> float:
        known = kind if kind in model.steps else max(model.steps, key=self._kind)
        return best_goodput(model, known, count, spread.nodes) * self._kind(kind) / self._kind(known)

    def _between(self, rows: dict[str, _Rows], job: RatedJob, kind: str, count: int) -> float:
        """Work per second where nothing was measured: on the line between two counts, in proportion beyond them."""
        known = kind if kind in rows else max(sorted(rows), key=self._kind)
        speeds = {devices: max(by_nodes.values()) for devices, by_nodes in rows[known].items()}
        counts = sorted(speeds)
        at = bisect_left(counts, count)
        if at < len(counts) and counts[at] == count:
            speed = speeds[count]
        elif not 0 < at < len(counts):
            nearest = counts[0] if at == 0 else counts[-1]
            speed = speeds[nearest] * count / nearest
        else:
            low, high = counts[at - 1], counts[at]
            speed = speeds[low] + (speeds[high] - speeds[low]) * (count - low) / (high - low)
        return speed / self._turns(job, count) * self._kind(kind) / self._kind(known)

    def _turns(self, job: RatedJob, count: int) -> float:
        """What ranks that take turns lose: rows were measured with a rank to each device."""
        shared = count < min(job.demand, job.ranks) and self.splice_milli > 0
        return 1 + self.splice_milli / FULL_SPEED if shared else 1.0

    def _kept(self, workload: str, spread: Spread) -> float:
        if spread.nodes <= spread.fewest:
            return 1.0
        return self.settings.spread.get(workload, self.settings.spread.get("", 1.0))

    def _kind(self, kind: str) -> float:
        return self.settings.kinds.get(kind, 1.0)


def _differ(rows: dict[str, _Rows]) -> bool:
    """Whether a workload's rows are of several kinds, or of the same devices on several numbers of nodes."""
    return len(rows) > 1 or any(len(by_nodes) > 1 for by_count in rows.values() for by_nodes in by_count.values())


def rate_on(rates: RateEstimator, job: RatedJob, layout: Layout, allocation: Allocation) -> int:
    """The rate of a job on an allocation; the ledger and the simulated world both ask here."""
    return rates.rate(job, kind_of(layout, allocation), device_count(allocation), spread_of(layout, allocation))


_recent: list[tuple[RateSettings, int, Rates]] = []


def rates_of(settings: RateSettings, splice_milli: int) -> Rates:
    """The estimator of these settings; the last few are remembered, by identity (settings are never written)."""
    for known, splice, found in _recent:
        if known is settings and splice == splice_milli:
            return found
    made = Rates(settings, splice_milli)
    _recent.insert(0, (settings, splice_milli, made))
    del _recent[4:]
    return made


def problems(settings: RateSettings) -> list[str]:
    """Everything wrong with declared rates, in words; empty when they are sound."""
    found = [f"kinds: {kind}: {speed} is not above 0" for kind, speed in settings.kinds.items() if not 0 < speed < 1e9]
    for workload, kept in settings.spread.items():
        if not 0 < kept <= 1:
            found.append(f"spread: {workload or 'every other workload'}: {kept} is not above 0 and at most 1")
    for row in settings.throughputs:
        where = f"throughputs: {row.workload} on {row.devices} {row.kind}"
        if row.devices < 1 or row.nodes < 0:
            found.append(f"{where}: devices are at least 1 and nodes at least 0")
        if not 0 <= row.per_s < 1e15:
            found.append(f"{where}: {row.per_s} per second is not a throughput")
    for workload, model in settings.goodput.items():
        if not model.steps:
            found.append(f"goodput: {workload}: no step times of any kind of device")
        if not 1 <= model.batch <= model.most_batch or model.most_per_device < 1 or not 0 <= model.noise < 1e15:
            found.append(
                f"goodput: {workload}: batch {model.batch} is not between 1 and most_batch {model.most_batch}, "
                f"or most_per_device {model.most_per_device} or noise {model.noise} is too small"
            )
        for kind, times in model.steps.items():
            parts = (times.gradient, times.gradient_per_sample, times.local, times.local_per_device, times.remote)
            if not all(0 <= part < 1e9 for part in (*parts, times.remote_per_device)) or not 1 <= times.overlap <= 10:
                found.append(f"goodput: {workload} on {kind}: times are at least 0 and overlap is between 1 and 10")
            if times.gradient + times.gradient_per_sample <= 0:
                found.append(f"goodput: {workload} on {kind}: a step takes time")
    return found
