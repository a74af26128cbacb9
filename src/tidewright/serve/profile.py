"""The latency of a batch by its size: measured points, linear between them, or alpha * size + beta.

Affine latency: Nexus (SOSP'19) and Symphony (arXiv 2308.07470). Between measured sizes latency is interpolated; beyond
the largest measured size nothing is predicted, so that size is the largest batch. A larger batch never counts as faster.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ..base.errors import NotFound, UsageError

LARGEST_BATCH = 4096
"""Bound on the size of a batch: tables hold one entry per size."""


class LatencyTable:
    """Latency of a batch of 1 to ``max_batch``, whole microseconds, never shorter for a larger batch."""

    __slots__ = ("max_batch", "us")

    def __init__(self, us: Sequence[int]) -> None:
        """``us[0]`` is the latency of a batch of one. Raises UsageError when there is none or one is not positive."""
        if not us or min(us) < 1:
            raise UsageError(
                "a latency table needs a positive latency for each size", "measure at least batches of one"
            )
        self.us = [0, *accumulate(us, max)]
        """By size; ``us[0]`` is 0."""
        self.max_batch = len(us)

    def largest(self, budget_us: int) -> int:
        """The largest batch that completes within ``budget_us``; 0 when none does."""
        return bisect_right(self.us, budget_us) - 1 if budget_us > 0 else 0

    def per_second(self, batch: int) -> float:
        """Requests per second of one replica that runs batches of this size back to back."""
        return batch * 1e6 / self.us[batch]

    def scaled(self, permille: int) -> LatencyTable:
        """The same, each latency times ``permille`` thousandths, rounded up."""
        return LatencyTable([-(-us * permille // 1000) for us in self.us[1:]])


@dataclass(frozen=True)
class BatchProfile:
    """Latencies of one model on one kind of device. ``points``: (size, microseconds), sizes rising.

    ``statistic`` says what the latencies are (``mean``, ``p99``, ...), ``source`` who measured them where.
    """

    model: str
    device: str
    statistic: str
    source: str
    points: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        sizes = [size for size, _ in self.points]
        if not sizes:
            raise UsageError(f"the profile of {self.model} has no points", "measure at least a batch of one")
        if sizes[0] != 1 or any(after <= before for before, after in pairwise(sizes)) or sizes[-1] > LARGEST_BATCH:
            raise UsageError(
                f"the profile of {self.model} has sizes {sizes}", f"give rising sizes from 1 to at most {LARGEST_BATCH}"
            )
        if any(us < 1 for _, us in self.points):
            raise UsageError(f"the profile of {self.model} has a latency below 1 us", "give microseconds")

    @property
    def max_batch(self) -> int:
        """The largest measured batch."""
        return self.points[-1][0]

    def table(self, max_batch: int | None = None) -> LatencyTable:
        """Latency of each size up to ``max_batch``. Raises UsageError when that was not measured."""
        limit = self.max_batch if max_batch is None else max_batch
        if not 1 <= limit <= self.max_batch:
            raise UsageError(
                f"no batch of {limit} in the profile of {self.model} on {self.device}", f"choose 1 to {self.max_batch}"
            )
        us = [self.points[0][1]]
        for (low, low_us), (high, high_us) in pairwise(self.points):
            us += [low_us + (high_us - low_us) * (size - low) // (high - low) for size in range(low + 1, high + 1)]
        return LatencyTable(us[:limit])

    def to_json(self) -> dict[str, Any]:
        """As a profile file holds it."""
        return {
            "model": self.model,
            "device": self.device,
            "statistic": self.statistic,
            "source": self.source,
            "latency_us": [list(point) for point in self.points],
        }


def affine(
    alpha_us: float, beta_us: float, max_batch: int, *, model: str = "affine", device: str = "-", source: str = ""
) -> BatchProfile:
    """alpha_us * size + beta_us. Raises UsageError for numbers that are not finite or give no positive latency."""
    if not (math.isfinite(alpha_us) and math.isfinite(beta_us)) or alpha_us < 0 or alpha_us + beta_us < 1:
        raise UsageError(f"no latency: {alpha_us} us a request + {beta_us} us", "give alpha >= 0 and alpha + beta >= 1")
    if not 1 <= max_batch <= LARGEST_BATCH:
        raise UsageError(f"no batches of up to {max_batch}", f"choose 1 to {LARGEST_BATCH}")
    points = tuple((size, round(alpha_us * size + beta_us)) for size in sorted({1, max_batch}))
    return BatchProfile(model, device, "affine", source, points)


def fit_affine(samples: Iterable[tuple[int, float]]) -> tuple[float, float]:
    """(alpha, beta) in microseconds of least squares over (size, microseconds). UsageError with fewer than two sizes."""
    pairs = _checked(samples)
    if len({size for size, _ in pairs}) < 2:
        raise UsageError(
            "an affine latency needs samples of at least two batch sizes", "measure a small and a large batch"
        )
    mean_size = math.fsum(size for size, _ in pairs) / len(pairs)
    mean_us = math.fsum(us for _, us in pairs) / len(pairs)
    spread = math.fsum((size - mean_size) ** 2 for size, _ in pairs)
    alpha = math.fsum((size - mean_size) * (us - mean_us) for size, us in pairs) / spread
    return alpha, mean_us - alpha * mean_size


def measured(
    samples: Iterable[tuple[int, float]], *, model: str, device: str, source: str, quantile: float | None = 0.99
) -> BatchProfile:
    """The profile of (size, microseconds) samples: per size the ``quantile`` (nearest rank), or the mean if None."""
    if quantile is not None and not 0 < quantile <= 1:
        raise UsageError(f"not a quantile: {quantile}", "give a number above 0 and up to 1, or none for the mean")
    by_size: dict[int, list[float]] = {}
    for size, us in _checked(samples):
        by_size.setdefault(size, []).append(us)
    points = []
    for size, found in sorted(by_size.items()):
        found.sort()
        us = math.fsum(found) / len(found) if quantile is None else found[math.ceil(quantile * len(found)) - 1]
        points.append((size, max(1, round(us))))
    return BatchProfile(model, device, "mean" if quantile is None else f"p{100 * quantile:g}", source, tuple(points))


def _checked(samples: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    pairs = list(samples)
    if not pairs:
        raise UsageError("no samples of batch latency", "measure at least batches of one")
    if any(size < 1 or not math.isfinite(us) or us <= 0 for size, us in pairs):
        raise UsageError("a sample of batch latency is not positive", "give (size >= 1, microseconds > 0)")
    return pairs


def parse_profile(data: Mapping[str, Any], where: str) -> BatchProfile:
    """The profile of a JSON object: ``latency_us`` as [[size, us], ...], or ``alpha_us``, ``beta_us`` and ``max_batch``.

    Raises UsageError naming ``where`` for anything else.
    """
    try:
        names = {key: str(data.get(key, "")) for key in ("model", "device", "source")}
        if "latency_us" not in data:
            return affine(float(data["alpha_us"]), float(data["beta_us"]), int(data["max_batch"]), **names)
        points = tuple((int(size), int(us)) for size, us in data["latency_us"])
        return BatchProfile(**names, statistic=str(data.get("statistic", "")), points=points)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{where} is not a profile: {type(error).__name__} {error}",
            "write latency_us as [[size, microseconds], ...], or alpha_us, beta_us and max_batch",
        ) from error


def read_profile(path: Path) -> BatchProfile:
    """The profile in a JSON file. Raises UsageError for a file that is none."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the profile {path}: {error}", "give a JSON file of a profile") from error
    if not isinstance(data, dict):
        raise UsageError(f"{path} is not a profile", "write a JSON object with latency_us")
    return parse_profile(data, str(path))


def packaged_profiles() -> list[str]:
    """Names of the profiles that come with the package."""
    return sorted(file.name.removesuffix(".json") for file in resources.files(f"{__package__}.profiles").iterdir()
                  if file.name.endswith(".json"))  # fmt: skip


def packaged_profile(name: str) -> BatchProfile:
    """A profile that comes with the package. Raises NotFound naming those there are."""
    if name not in packaged_profiles():
        raise NotFound(f"no packaged profile {name!r}", f"known: {', '.join(packaged_profiles())}")
    return parse_profile(
        json.loads(resources.files(f"{__package__}.profiles").joinpath(f"{name}.json").read_text()), name
    )
