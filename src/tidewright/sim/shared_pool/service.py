"""A service in a simulated pool: what it runs, how many replicas are wanted when, and what became of each replica.

It refuses to know how the number is decided.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ...base.units import SECOND
from ...model.service import ServiceSpec
from ..costs import Cost


class ReplicaDemand(Protocol):
    """Decides how many replicas there are to be. ``next_us``: when it is asked next, microseconds; rises with each ``wanted``."""

    next_us: int

    def wanted(self, now_us: int, ready: int, current: int) -> int:
        """Replicas from now on. ``ready``: those that answer requests; ``current``: what was wanted before."""
        ...


class SimulatedService(Struct, frozen=True, kw_only=True):
    """``load_us``: from the start of a replica's process to its first answer. Its launch itself costs what launches cost."""

    spec: ServiceSpec
    demand: ReplicaDemand
    load_us: Cost = 0


class ReplicaRecord(Struct):
    """Absolute microseconds; -1: did not happen. ``wanted_us``: when the replica was made and joined the queue; ``launched_us``:
    when it had its devices, ``ready_us``: when it first answered; ``ended_us``: when it was gone."""

    wanted_us: int
    launched_us: int = -1
    ready_us: int = -1
    ended_us: int = -1


class StepLine:
    """A number that changes at instants: points of (microseconds, value), rising in time."""

    __slots__ = ("points",)

    def __init__(self) -> None:
        self.points: list[tuple[int, int]] = [(0, 0)]

    @property
    def value(self) -> int:
        """As of the last change."""
        return self.points[-1][1]

    def change(self, now_us: int, value: int) -> None:
        """From now on. Two changes at one instant are one."""
        if self.points[-1][0] == now_us:
            self.points[-1] = (now_us, value)
        elif value != self.value:
            self.points.append((now_us, value))

    def between(self, start_us: int, end_us: int) -> list[tuple[int, int, int]]:
        """(from, to, value) of each stretch that overlaps the interval, cut to it."""
        points = [*self.points, (max(end_us, self.points[-1][0]), 0)]
        cut = [(max(at, start_us), min(points[n + 1][0], end_us), value) for n, (at, value) in enumerate(self.points)]
        return [one for one in cut if one[0] < one[1]]

    def mean(self, start_us: int, end_us: int) -> float:
        """Over the interval."""
        return sum(value * (to - since) for since, to, value in self.between(start_us, end_us)) / (end_us - start_us)


class ReclaimFigures(Struct, frozen=True, kw_only=True):
    """Times from a replica's being wanted, seconds. ``released``: until it had its devices, whatever held them before;
    ``ready``: until it answered. ``cancelled``: no longer wanted before it was ready."""

    replicas: int
    cancelled: int
    released_p50_s: float
    released_p99_s: float
    ready_p50_s: float
    ready_p99_s: float
    ready_longest_s: float
    in_time: float
    """Share of those not cancelled that were ready within the deadline."""


def reclaims(records: list[ReplicaRecord], start_us: int, end_us: int, deadline_us: int) -> ReclaimFigures:
    """Of the replicas wanted in the interval. One that is not ready by its end counts as late once the deadline has passed."""
    asked = [one for one in records if start_us <= one.wanted_us < end_us]
    ready = sorted(one.ready_us - one.wanted_us for one in asked if one.ready_us >= 0)
    released = sorted(one.launched_us - one.wanted_us for one in asked if one.ready_us >= 0)
    late = sum(one.ready_us < 0 and one.ended_us < 0 and one.wanted_us + deadline_us < end_us for one in asked)
    judged = len(ready) + late
    return ReclaimFigures(
        replicas=len(asked),
        cancelled=sum(one.ready_us < 0 and one.ended_us >= 0 for one in asked),
        released_p50_s=_nearest_rank(released, 0.5),
        released_p99_s=_nearest_rank(released, 0.99),
        ready_p50_s=_nearest_rank(ready, 0.5),
        ready_p99_s=_nearest_rank(ready, 0.99),
        ready_longest_s=_nearest_rank(ready, 1.0),
        in_time=sum(us <= deadline_us for us in ready) / judged if judged else 1.0,
    )


def _nearest_rank(ordered_us: list[int], share: float) -> float:
    return ordered_us[max(0, -(-len(ordered_us) * int(1000 * share) // 1000) - 1)] / SECOND if ordered_us else 0.0
