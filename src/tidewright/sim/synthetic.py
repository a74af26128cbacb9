"""Made-up traces that look like Philly: mostly one device, heavy-tailed run times, a chosen load on a chosen cluster.

It refuses to know the policies that will be judged by them.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..base.errors import TideError, UsageError
from ..base.rng import stream_seed
from ..base.units import DAY, SECOND, parse_duration
from ..model.job import Tier
from .trace import Trace, make_trace

SIZES = "1:0.9317/2:0.0221/4:0.0227/8:0.0200/16:0.0024/32:0.0008/64:0.0002/128:0.0001"
"""Devices and how common they are: counted over the 82,247 jobs of the Philly trace."""
TIERS = "premium:0.2/standard:0.3/basic:0.5"
MAX_JOBS = 10_000_000
# Log-normal with Philly's median (1,144 s) and, before the cap, its mean (13,136 s): sigma = sqrt(2 ln(mean/median)).
MEDIAN_S, SIGMA = 1_144.0, 2.2
_DAILY_SWING = 0.8
Number = TypeVar("Number", int, float)
_DEFAULTS = {
    "jobs": "10000", "load": "0.9", "seed": "1", "tiers": TIERS, "sizes": SIZES, "median": f"{MEDIAN_S}s", "sigma": f"{SIGMA}",
    "max": "10d", "diurnal": "no", "elastic": "0", "teams": "1",
}  # fmt: skip
_REMEDY = (
    "write synthetic:jobs=5000,load=1.0,seed=7 with any of " + ", ".join(_DEFAULTS) + f"; lists look like tiers={TIERS}"
)


def synthetic(argument: str, devices: int) -> Trace:
    """The trace described by ``argument`` (``key=value,…``). Its work is exactly ``load`` of ``devices`` over the time of
    arrivals. Raises UsageError naming every key that cannot be read."""
    options = _options(argument)
    values, mistakes = {}, []
    for key, text in options.items():
        try:
            values[key] = _read(key, text)
        except (TideError, ValueError) as error:
            mistakes.append(f"{key}={text}: {error}")
    if mistakes:
        raise UsageError("the synthetic trace cannot be made:\n  " + "\n  ".join(mistakes), _REMEDY)
    return _generate(values, devices, f"synthetic:{argument}" if argument else "synthetic")


def _options(argument: str) -> dict[str, str]:
    given = dict(part.partition("=")[::2] for part in argument.split(",") if part.strip())
    unknown = [key for key in given if key not in _DEFAULTS]
    if unknown:
        raise UsageError(f"a synthetic trace knows no {', '.join(map(repr, unknown))}", _REMEDY)
    return {**_DEFAULTS, **given}


def _read(key: str, text: str) -> object:
    if key in ("jobs", "seed", "teams"):
        return _within(int(text), 0 if key == "seed" else 1, MAX_JOBS if key != "seed" else 2**63)
    if key in ("load", "sigma", "elastic"):
        low, high = {"load": (0.001, 100.0), "sigma": (0.0, 5.0), "elastic": (0.0, 1.0)}[key]
        return _within(float(text), low, high)
    if key in ("median", "max"):
        return _within(parse_duration(text), SECOND, 3650 * DAY) / SECOND
    if key == "diurnal":
        return {"yes": True, "no": False}[text] if text in ("yes", "no") else _fail("yes or no")
    shares = _shares(text)
    if key == "sizes":
        return {_within(int(name), 1, 65_536): share for name, share in shares.items()}
    return {
        int(Tier[name.upper()]) if name.upper() in Tier.__members__ else _fail("premium, standard, basic"): share
        for name, share in shares.items()
    }


def _fail(expected: str) -> int:
    raise UsageError(f"expected {expected}")


def _within(value: Number, low: Number, high: Number) -> Number:
    if not low <= value <= high:
        raise UsageError(f"not between {low} and {high}")
    return value


def _shares(text: str) -> dict[str, float]:
    shares = {name: float(share) for name, _, share in (part.partition(":") for part in text.split("/"))}
    if not all(0 <= share < math.inf for share in shares.values()) or not sum(shares.values()) > 0:
        raise UsageError("shares must be at least 0 and not all 0")
    return shares


def _generate(values: dict[str, object], devices: int, name: str) -> Trace:
    jobs, seed = int(values["jobs"]), int(values["seed"])  # type: ignore[call-overload]

    def draw(stream: str) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(stream_seed(seed, "trace", stream)))

    sizes = _choose(draw("sizes"), values["sizes"], jobs)
    sizes = np.minimum(sizes, max(devices, 1))
    normal = draw("durations").standard_normal(jobs)
    duration = np.clip(values["median"] * np.exp(values["sigma"] * normal), 1.0, values["max"])  # type: ignore[operator]
    duration = np.rint(duration)
    span = float((duration * sizes).sum()) / (max(devices, 1) * float(values["load"]))  # type: ignore[arg-type]
    submit = _arrivals(draw("arrivals"), jobs, span, bool(values["diurnal"]))
    elastic = draw("elastic").random(jobs) < values["elastic"]  # type: ignore[operator]
    team = draw("teams").integers(0, values["teams"], jobs).astype(np.int32)  # type: ignore[arg-type]
    return make_trace(
        name,
        submit,
        duration,
        sizes,
        tier=_choose(draw("tiers"), values["tiers"], jobs).astype(np.int8),
        floor=np.where(elastic & (sizes > 1), sizes // 2, 0).astype(np.int32) if elastic.any() else None,
        team=team,
        teams=tuple(f"team-{at}" for at in range(int(team.max()) + 1)),
    )


def _choose(rng: np.random.Generator, shares: object, jobs: int) -> NDArray[np.int64]:
    assert isinstance(shares, dict)
    edges = np.cumsum(np.array(list(shares.values())))
    at = np.searchsorted(edges, rng.random(jobs) * edges[-1], side="right")
    return np.array(list(shares), np.int64)[np.minimum(at, len(shares) - 1)]


def _arrivals(rng: np.random.Generator, jobs: int, span: float, diurnal: bool) -> NDArray[np.float64]:
    """Sorted seconds over ``span``: a Poisson process given its count, optionally swinging over the day."""
    uniform = np.sort(rng.random(jobs)) * span
    if not diurnal:
        return np.rint(uniform)
    # The clock runs through the cumulative rate 1 + s·sin(2πt/day), inverted on a grid.
    grid = np.linspace(0.0, span, 10_001)
    day = DAY / SECOND
    cumulative = grid + _DAILY_SWING * day / (2 * math.pi) * (1 - np.cos(2 * math.pi * grid / day))
    return np.rint(np.interp(uniform * cumulative[-1] / max(span, 1e-9), cumulative, grid))
