"""What operations of the simulated cluster take: a constant, by the job's size, by a table, or as once recorded.

It refuses to know when an operation happens.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..base.key_values import key_values
from ..base.rng import stream
from ..base.units import MS, SECOND, parse_bytes, parse_duration

QUANTILES = 101
"""Most points kept of a recorded distribution: its percentiles."""


class SizedCost(Struct, frozen=True, kw_only=True, tag="sized"):
    """``base_us`` and ``per_device_us`` for each of the job's devices, and the time to move the job's image at ``rate`` bytes a
    second where the trace gives its size (0: not counted)."""

    base_us: int = 0
    per_device_us: int = 0
    rate: int = 0


class TabledCost(Struct, frozen=True, tag="tabled"):
    """``steps``: (fewest devices, microseconds), ascending; a job pays what the last row that it reaches says."""

    steps: tuple[tuple[int, int], ...]


class RecordedCost(Struct, frozen=True, tag="recorded"):
    """``points_us``: ascending quantiles of what the operation took, evenly spaced; a draw lies between two neighbours.

    ``of_row``: what it took for rows of the trace that was recorded with it, in the order in which it happened to them; after
    these, and for other rows, it is drawn.
    """

    points_us: tuple[int, ...]
    of_row: dict[int, tuple[int, ...]] = {}


Cost: TypeAlias = int | SizedCost | TabledCost | RecordedCost
"""An int is a constant, microseconds."""


class Costs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Duration of each operation of the simulated cluster; devices are held meanwhile and no progress is made."""

    launch_us: Cost = 3 * SECOND
    save_us: Cost = 1 * SECOND
    restore_us: Cost = 500 * MS
    restart_us: Cost | None = None
    """A launch after one that a preemption or a failure ended; None: as long as a launch."""
    stop_us: Cost = 0
    checkpoint_us: Cost | None = None
    """How long a running job stands still while it is imaged; None: as long as a save takes."""
    checkpoint_every_us: int = 0
    """Run time between a running job's own checkpoints, from which a crash restarts it; 0: from the beginning."""


FREE = Costs(launch_us=0, save_us=0, restore_us=0)
OPERATIONS = ("launch", "save", "restore", "restart", "stop", "checkpoint")


def cost_us(cost: Cost, devices: int, image_bytes: int, seed: int, *draw: str | int) -> int:
    """Microseconds of one operation of a job of ``devices`` devices; ``draw`` names the operation's own stream of ``seed``."""
    if isinstance(cost, int):
        return cost
    if isinstance(cost, SizedCost):
        moved = -(-image_bytes * SECOND // cost.rate) if cost.rate else 0
        return cost.base_us + cost.per_device_us * devices + moved
    if isinstance(cost, TabledCost):
        at = bisect_right(cost.steps, (devices, 2**62)) - 1
        return cost.steps[at][1] if at >= 0 else 0
    return quantile_us(cost, stream(seed, "cost", *draw).random())


def quantile_us(cost: RecordedCost, share: float) -> int:
    """The recorded distribution at ``share`` (0 to 1)."""
    points = cost.points_us
    at = share * (len(points) - 1)
    low = min(int(at), len(points) - 1)
    high = min(low + 1, len(points) - 1)
    return round(points[low] + (points[high] - points[low]) * (at - low))


def typical_us(cost: Cost, devices: NDArray[np.int32]) -> NDArray[np.int64]:
    """What jobs of so many devices pay in the ordinary case: a recorded distribution's median. Shape (n,)."""
    if isinstance(cost, RecordedCost):
        return np.full(len(devices), quantile_us(cost, 0.5), np.int64)
    sizes = np.unique(devices)
    paid = np.array([cost_us(cost, size, 0, 0) for size in sizes.tolist()], np.int64)
    typical: NDArray[np.int64] = paid[np.searchsorted(sizes, devices)]
    return typical


def recorded_cost(samples_us: Sequence[int]) -> Cost:
    """What was recorded as a cost: a constant where it was always the same. Raises ValueError without samples."""
    ordered = sorted(samples_us)
    if not ordered:
        raise ValueError("no samples")
    if ordered[0] == ordered[-1]:
        return ordered[0]
    if len(ordered) <= QUANTILES:
        return RecordedCost(tuple(ordered))
    points = np.quantile(np.array(ordered, np.float64), np.linspace(0, 1, QUANTILES))
    return RecordedCost(tuple(round(float(point)) for point in points))


_REMEDY = "write a cost like 3s, 2s+50ms/device, 1s+image@300MB (bytes a second), or 1:7s/2:30s/9:60s (from so many devices on)"


def parse_cost(text: str | int | float) -> Cost:
    """The cost in ``3s``, ``2s+50ms/device+image@300MB`` or ``1:7s/2:30s/9:60s``. Raises UsageError."""
    raw = str(text).strip()
    if re.match(r"\d+:[^:]*[a-z]", raw):
        return _table(raw)
    parts = raw.split("+")
    if len(parts) == 1 and "/" not in raw and "@" not in raw:
        return parse_duration(raw)
    values: dict[str, int] = {}
    for part in map(str.strip, parts):
        key, value = _term(part)
        if key in values:
            raise UsageError(f"not a cost: {raw!r} has two terms of one kind", _REMEDY)
        values[key] = value
    return SizedCost(**values)


def _term(part: str) -> tuple[str, int]:
    if part.startswith("image@"):
        rate = parse_bytes(part.removeprefix("image@"))
        if not rate:
            raise UsageError(f"not a cost: {part!r} moves no bytes", _REMEDY)
        return "rate", rate
    duration, slash, unit = part.partition("/")
    if slash and unit != "device":
        raise UsageError(f"not a cost: {part!r}", _REMEDY)
    return "per_device_us" if slash else "base_us", parse_duration(duration)


def _table(text: str) -> TabledCost:
    steps = []
    for part in text.split("/"):
        devices, colon, duration = part.partition(":")
        if not colon or not devices.strip().isdecimal() or not int(devices):
            raise UsageError(f"not a cost: {part!r} in {text!r}", _REMEDY)
        steps.append((int(devices), parse_duration(duration)))
    if sorted(dict(steps)) != [devices for devices, _ in steps]:
        raise UsageError(f"not a cost: the numbers of devices in {text!r} do not ascend", _REMEDY)
    return TabledCost(tuple(steps))


def parse_costs(text: str, base: Costs) -> Costs:
    """``base`` with the costs in ``launch=3s,save=60s`` put in; ``free``: nothing takes time. Raises UsageError."""
    if text.strip() == "free":
        return FREE
    changes: dict[str, Cost | None] = {}
    names = (*OPERATIONS, "checkpoint_every")
    remedy = f"write NAME=COST with {', '.join(names)}; or free; or learn:JOURNAL"
    for name, value in key_values(text, "costs", remedy).items():
        if name not in names:
            raise UsageError(f"costs: {name!r} is not one", remedy)
        changes[f"{name}_us"] = parse_duration(value) if name == "checkpoint_every" else parse_cost(value)
    if not changes:
        raise UsageError("costs: none given", f"{_REMEDY}; or free; or learn:JOURNAL")
    return Costs(**{**{name: getattr(base, name) for name in base.__struct_fields__}, **changes})
