"""Made-up traces that look like Philly: mostly one device, heavy-tailed run times, a chosen load on a chosen cluster.

It refuses to know the policies that will be judged by them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..base.errors import TideError, UsageError
from ..base.key_values import key_values
from ..base.rng import stream_seed
from ..base.units import DAY, SECOND, parse_duration
from ..model.job import MAX_RANKS, Tier
from .trace import Trace, make_trace

# Devices and how common they are: counted over the 82,247 jobs of the Philly trace.
SIZES = ((1, 0.9317), (2, 0.0221), (4, 0.0227), (8, 0.02), (16, 0.0024), (32, 0.0008), (64, 0.0002), (128, 0.0001))
TIERS = ((int(Tier.PREMIUM), 0.2), (int(Tier.STANDARD), 0.3), (int(Tier.BASIC), 0.5))
Shares = tuple[tuple[int, float], ...]
MAX_JOBS = 10_000_000
_DAY_S = DAY / SECOND
_DAILY_SWING = 0.8


class Shape(Struct, frozen=True, kw_only=True):
    """What to make. Times are seconds. Run times are log-normal with Philly's median (1,144 s) and, before the cap,
    its mean (13,136 s): sigma = sqrt(2 ln(mean / median)). ``elastic`` is the share of jobs that can run on half."""

    jobs: int = 10_000
    load: float = 0.9
    seed: int = 1
    tiers: Shares = TIERS
    sizes: Shares = SIZES
    median: float = 1_144.0
    sigma: float = 2.2
    max: float = 10 * _DAY_S
    diurnal: bool = False
    elastic: float = 0.0
    teams: int = 1


_REMEDY = (
    "write synthetic:jobs=5000,load=1.0,seed=7 with any of " + ", ".join(Shape.__struct_fields__) + "; lists look like "
    "tiers=premium:0.2/standard:0.3/basic:0.5 and sizes=1:0.9/8:0.1"
)


def synthetic(argument: str, devices: int) -> Trace:
    """The trace described by ``argument`` (``key=value,…``). Raises UsageError naming every key that cannot be read."""
    return generate(_shape(argument), devices, f"synthetic:{argument}" if argument else "synthetic")


def generate(shape: Shape, devices: int, name: str) -> Trace:
    """A trace whose work is ``shape.load`` of ``devices`` over the time of arrivals, up to rounding."""

    def draw(stream: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(stream_seed(shape.seed, "trace", stream)))

    jobs = shape.jobs
    sizes = np.minimum(_choose(draw("sizes"), shape.sizes, jobs), devices)
    normal = draw("durations").standard_normal(jobs)
    duration = np.rint(np.clip(shape.median * np.exp(shape.sigma * normal), 1.0, shape.max))
    span = float((duration * sizes).sum()) / (devices * shape.load)
    elastic = (draw("elastic").random(jobs) < shape.elastic) & (sizes > 1)
    return make_trace(
        name,
        _arrivals(draw("arrivals"), jobs, span, shape.diurnal),
        duration,
        sizes,
        tier=draw_tiers(shape.tiers, jobs, shape.seed),
        floor=np.where(elastic, sizes // 2, 0).astype(np.int32) if elastic.any() else None,
        team=draw("teams").integers(0, shape.teams, jobs).astype(np.int32),
        teams=tuple(f"team-{at}" for at in range(shape.teams)),
    )


def _choose(rng: np.random.Generator, shares: Shares, jobs: int) -> NDArray[np.int64]:
    edges = np.cumsum(np.array([share for _, share in shares]))
    at = np.searchsorted(edges, rng.random(jobs) * edges[-1], side="right")
    chosen: NDArray[np.int64] = np.array([value for value, _ in shares], np.int64)[np.minimum(at, len(shares) - 1)]
    return chosen


def draw_tiers(shares: Shares, jobs: int, seed: int) -> NDArray[np.int8]:
    """A tier for each of ``jobs`` jobs in these proportions. Shape (jobs,)."""
    return _choose(np.random.Generator(np.random.PCG64(stream_seed(seed, "trace", "tiers"))), shares, jobs).astype(
        np.int8
    )


def tier_shares(text: str) -> Shares:
    """The proportions in ``premium:0.2/standard:0.3/basic:0.5``. Raises UsageError."""
    try:
        return _shares(text, _tier)
    except (UsageError, ValueError) as error:
        raise UsageError(f"tiers={text}: {error}", "write tiers=premium:0.2/standard:0.3/basic:0.5") from None


def _arrivals(rng: np.random.Generator, jobs: int, span: float, diurnal: bool) -> NDArray[np.float64]:
    """Seconds, ascending over ``span``: a Poisson process given its count, optionally swinging over the day."""
    even: NDArray[np.float64] = np.sort(rng.random(jobs)) * span
    if not diurnal:
        return np.rint(even)
    # Time runs through the cumulative rate, the integral of 1 + s·sin(2πt/day), inverted on a grid.
    grid = np.linspace(0.0, span, 10_001)
    swing = _DAILY_SWING * _DAY_S / (2 * math.pi)
    cumulative = grid + swing * (1 - np.cos(2 * math.pi * grid / _DAY_S))
    submit: NDArray[np.float64] = np.interp(even / max(span, 1e-9) * cumulative[-1], cumulative, grid)
    return np.rint(submit)


# -- reading ----------------------------------------------------------------------------------------------------------


def _shape(argument: str) -> Shape:
    given = key_values(argument, "synthetic", _REMEDY)
    values: dict[str, Any] = {}
    mistakes = []
    for key, text in given.items():
        try:
            values[key] = _READ[key](text)
        except KeyError:
            mistakes.append(f"{key}: not known")
        except (TideError, ValueError) as error:
            mistakes.append(f"{key}={text}: {error}")
    if mistakes:
        raise UsageError("the synthetic trace cannot be made:\n  " + "\n  ".join(mistakes), _REMEDY)
    return Shape(**values)


def _whole(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not low <= int(text) <= high:
            raise UsageError(f"not between {low} and {high}")
        return int(text)

    return read


def _number(low: float, high: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        if not low <= float(text) <= high:
            raise UsageError(f"not between {low} and {high}")
        return float(text)

    return read


def _seconds(text: str) -> float:
    return max(1.0, parse_duration(text) / SECOND)


def _yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise UsageError("expected yes or no")
    return text == "yes"


def _shares(text: str, value: Callable[[str], int]) -> Shares:
    parts = [part.partition(":") for part in text.split("/")]
    shares = tuple((value(name), float(share)) for name, _, share in parts)
    values = [one for one, _ in shares]
    twice = next((parts[at][0] for at, one in enumerate(values) if one in values[:at]), None)
    if twice is not None:
        raise UsageError(f"{twice} is there twice, and has one share")
    if not all(0 <= share < math.inf for _, share in shares) or not any(share for _, share in shares):
        raise UsageError("shares must be at least 0 and not all 0")
    return shares


def _tier(name: str) -> int:
    if name.upper() not in Tier.__members__:
        raise UsageError(f"{name!r} is not one of premium, standard, basic")
    return int(Tier[name.upper()])


_READ: dict[str, Callable[[str], Any]] = {
    "jobs": _whole(1, MAX_JOBS),
    "load": _number(0.001, 100.0),
    "seed": _whole(0, 2**63),
    "tiers": tier_shares,
    "sizes": lambda text: _shares(text, _whole(1, MAX_RANKS)),
    "median": _seconds,
    "sigma": _number(0.0, 5.0),
    "max": _seconds,
    "diurnal": _yes,
    "elastic": _number(0.0, 1.0),
    "teams": _whole(1, 10_000),
}
