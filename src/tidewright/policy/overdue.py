"""The bounded wait: an overdue row has the first claim on free devices, and preempts jobs that are not its equals.

See docs/why/bounded-wait.md for the argument and what it costs; ``bound_us`` is its formula.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property

import numpy as np
from msgspec import Struct

from ..base.units import HOUR, MINUTE, SECOND
from ..model.job import Level, State
from ..model.rate import FULL_RATE
from ..model.table import Column
from ..model.view import View
from ..placement.preemption import PreemptionCandidate, PreemptionIndex
from .compose import Composer
from .preferences import first_rows, suspendable
from .shapes import Shape

EQUAL = 2
"""A job that was there first and needs at most so many times an overdue job's run time is its equal: it runs to its end."""

_RUNNING = int(State.RUNNING)

_TENTH = 0.1
"""Part of the pool that a row may take for a quantum each time after ``max_wait_us``; a larger row waits longer in proportion."""
_SMALL_DEVICES = 8.0
"""Devices up to which overdue rows may hold a tenth of the pool, whatever their share."""
_LEAST_SHARE = 0.005
"""The turns of large rows hold so much of the pool on average even where the share is less."""

_EACH_US = 60.0 * SECOND
"""Device time that each preemption counts beyond what it loses: one large victim is better than eight small ones."""


class WaitBound(Struct, frozen=True, kw_only=True):
    """Times in microseconds; ``share`` is the part of the pool that overdue rows may hold together, see ``devices``."""

    max_wait_us: int = 4 * HOUR
    quantum_us: int = 15 * MINUTE
    share: float = 0.02

    def devices(self, capacity: int) -> float:
        """How many of ``capacity`` devices overdue rows may hold together, beside the first of them.

        In a small pool the share would be one job that takes turns with the next, an image for each: there it is a tenth.
        """
        return max(self.share * capacity, min(_TENTH * capacity, _SMALL_DEVICES) if self.share else 0.0)


def bound_us(
    limit: WaitBound, patience_us: float, left_us: Iterable[int], spacing_us: Iterable[int], settle_us: int
) -> int:
    """Longest wait of a job, from the moment it begins to wait until devices are set aside for it, in microseconds.

    ``patience_us``: the longest of its own and that of those that were already waiting at that moment; ``left_us``: their
    remaining run times and its own, as estimated, and ``spacing_us``: the time from one turn of their size to the next, in the
    same order; ``settle_us``: longest time a job takes to start, resume or release its devices, less than a quantum. Whatever
    arrives later does not count. It holds where run times are as estimated, for jobs whose devices are on nodes that are up
    and not held by jobs that cannot be suspended.
    """
    turns = zip(left_us, spacing_us, strict=True)
    each = (max(limit.quantum_us, EQUAL * left) + spacing + 3 * settle_us for left, spacing in turns)
    return int(patience_us) + sum(each)


def spacing_us(limit: WaitBound, devices: Column, capacity: int) -> Column:
    """Time from one turn of a row that needs more than the share to the next turn of its size; 0 for others. Microseconds.

    So long that turns of a quantum each hold ``limit.share`` of the pool on average. They begin at multiples of it: nothing
    need be remembered of the last one.
    """
    # Not devices * quantum_us: they are of 32 bits.
    each = limit.quantum_us / (max(limit.share, _LEAST_SHARE) * max(capacity, 1))
    large = devices > max(limit.devices(capacity), 1.0)
    spacing: Column = np.where(large, each * devices, 0.0).astype(np.int64)
    return spacing


def patience_us(limit: WaitBound, devices: Column, capacity: int) -> Column:
    """How long a row waits before it may preempt others: longer in proportion where it needs more than a tenth of the pool.
    Microseconds, int64."""
    part = max(limit.share, _TENTH) * capacity
    times = np.maximum(devices / max(part, 1.0), 1.0)
    # Whole numbers: a plan that is due when it is over is not made a fraction of a microsecond too early.
    wait_limit: Column = np.ceil(limit.max_wait_us * times).astype(np.int64) + limit.quantum_us
    return wait_limit


def overdue(view: View, limit: WaitBound) -> Column:
    """Waiting rows whose wait is too long. Shape (n,), bool."""
    jobs = view.jobs
    late: Column = jobs.waiting & (view.now - jobs.wait_since >= limit.max_wait_us)
    return late


class OverdueQueue:
    """The overdue rows and those served before them, in the order in which their waits began."""

    def __init__(self, view: View, limit: WaitBound, left: Column) -> None:
        """``left``: full-speed microseconds of run time each row still needs, by its estimate."""
        self.view, self.limit = view, limit
        self.jobs = view.jobs
        self.overdue = overdue(view, limit)
        self._left = left
        self._quanta: list[int] = []
        """When the quanta of rows beyond the share end, as if those that do not run yet began now. Absolute microseconds."""
        self.served = self._served()
        self.granted: list[int] = []
        """Rows given devices by this plan."""
        self.found_no_room = self.waits_for_share = False
        """Whether a row that may preempt ahead of all others found no room; whether rows wait until others leave the share."""

    @cached_property
    def _devices(self) -> Column:
        held = self.jobs.held  # 0 until it runs
        return np.where(held > 0, held, self.jobs.floor)

    @cached_property
    def _patience(self) -> Column:
        return patience_us(self.limit, self.jobs.floor, self.view.capacity)

    @cached_property
    def _spacing(self) -> Column:
        return spacing_us(self.limit, self.jobs.floor, self.view.capacity)

    def _may_force(self, row: int) -> bool:
        """The patience of ``row`` is over, and where it needs more than the share, a turn may begin now."""
        now, spacing = self.view.now, self._spacing.item(row)
        if now - self.jobs.wait_since.item(row) < self._patience.item(row):
            return False
        return not spacing or now % spacing < self.limit.quantum_us

    @cached_property
    def _holding(self) -> tuple[Column, Column, Column, Column, Column]:
        """The rows with devices; since when they waited for these, their ids, whether they are in a quantum and when they end."""
        # Not all rows: thousands may be overdue at once, each against all others.
        jobs, rows = self.jobs, (self.jobs.active | self.jobs.reserved).nonzero()[0]
        rate, young = jobs.rate[rows], self.view.now - jobs.run_since[rows] < self.limit.quantum_us
        ends = self._left[rows] * FULL_RATE / np.where(rate > 0, rate, FULL_RATE)
        in_quantum = self.served[rows] & ((jobs.state[rows] != _RUNNING) | young)
        return rows, jobs.wait_since[rows], jobs.id[rows], in_quantum, ends

    def _served(self) -> Column:
        """Rows that were given devices as overdue and keep them: for a quantum, and within the share to their end."""
        view, jobs, limit = self.view, self.jobs, self.limit
        running = jobs.state == _RUNNING
        # When a row's devices were reserved is not known: it is taken for served if it would be overdue by now.
        began = np.where(running, jobs.run_since, np.where(jobs.reserved, view.now, jobs.since))
        served: Column = (began - jobs.wait_since >= limit.max_wait_us) & (jobs.active | jobs.reserved)
        rows = served.nonzero()[0]
        if len(rows):
            rows = rows[np.lexsort((jobs.id[rows], jobs.wait_since[rows]))]
            beyond = self._devices[rows].cumsum() > limit.devices(view.capacity)
            ripe = running[rows] & (view.now - began[rows] >= limit.quantum_us)
            served[rows[beyond & ripe]] = False
            self._quanta = self._ends(rows[beyond & ~ripe])
        return served

    def _ends(self, rows: Column) -> list[int]:
        """When the quanta of ``rows`` end that are not over; of those that do not run yet, as if they began now."""
        began = np.where(self.jobs.state[rows] == _RUNNING, self.jobs.run_since[rows], self.view.now)
        ends = began + self.limit.quantum_us
        found: list[int] = ends[ends > self.view.now].tolist()
        return found

    def _kept_from(self, row: int) -> Column:
        """Rows that were there before ``row`` began to wait and that it may not preempt. Their numbers, in ascending order."""
        rows, waited_since, ids, in_quantum, ends = self._holding
        since = self.jobs.wait_since.item(row)
        before = (waited_since < since) | ((waited_since == since) & (ids < self.jobs.id.item(row)))
        kept: Column = rows[before & (in_quantum | (ends <= EQUAL * self._left.item(row)))]
        return kept

    def serve(self, composer: Composer, cost: Callable[[], Column]) -> bool:
        """Place overdue rows in order. False when nothing else may start in this plan.

        Others are held back only for the moments until jobs that are just starting can be suspended: with them gone
        there is room, and what started now would be in the way next.
        """
        jobs, limit = self.jobs, self.limit
        late = self.overdue.nonzero()[0]
        if not len(late):
            return True
        rows = first_rows(late, jobs.wait_since, jobs.id, len(late))
        any_served = bool(np.count_nonzero(self.served))
        used_now = 0
        unfit: dict[Shape, bool] = {}
        """Shapes without room: until a job is preempted, free devices only get fewer. True: nor would preempting all help."""
        for row, shape in zip(rows.tolist(), composer.shapes(rows), strict=True):
            used = used_now
            if any_served:
                kept = self._kept_from(row)
                used += int(self._devices[kept[self.served[kept]]].sum())
            if used and used + int(jobs.floor[row]) > limit.devices(self.view.capacity):
                self.waits_for_share = True
                break
            if shape not in unfit and composer.start(row):
                self.granted.append(row)
                used_now += int(jobs.floor[row])
                continue
            unfit.setdefault(shape, False)
            if unfit[shape] or not self._may_force(row):
                continue
            others = jobs.active | jobs.reserved
            lesser = others.copy()
            lesser[self._kept_from(row)] = False
            if composer.force(row, suspendable(self.view) & lesser, lambda: cost() + _EACH_US):
                self.granted.append(row)
                used_now += int(jobs.floor[row])
                unfit = {known: True for known, unplaceable in unfit.items() if unplaceable}
                continue
            self.found_no_room = True
            if _feasible(self.view, composer, row, others):
                composer.unplaced.append(row)
                return not _feasible(self.view, composer, row, lesser)
            unfit[shape] = True
        return True

    def next_at(self, still: Column, leaving: Column) -> int:
        """When the next of the rows that ``still`` wait (flags) is overdue or may preempt ahead of all others, or a quantum ends;
        0 for never. Absolute microseconds, later than now. ``leaving``: flags of those that wait as soon as they have released
        their devices."""
        jobs, limit, now = self.jobs, self.limit, self.view.now
        rows = still.nonzero()[0]
        since = np.where(leaving[rows], now, jobs.wait_since[rows])
        waited = now - since
        after = np.where(waited < limit.max_wait_us, limit.max_wait_us, self._patience[rows])
        at = (since + after)[waited < after]
        times = [int(at.min())] if len(at) else []
        times += self._quanta
        if np.count_nonzero(self.overdue):
            # A job that has outlived its estimate is no equal any more, at no time that is known: look again now and then.
            times += [now + limit.quantum_us] if self.found_no_room or self.waits_for_share or self.granted else []
            spacing = self._spacing[self.overdue & (self._spacing > 0)]
            times += [int((now + spacing - now % spacing).min())] if len(spacing) else []
        if self.waits_for_share:
            times += self._ends(self.served.nonzero()[0])
        return min(times, default=0)


def _feasible(view: View, composer: Composer, row: int, rows: Column) -> bool:
    """Whether there would be room with all of ``rows`` gone that can ever be suspended."""
    jobs = view.jobs
    candidates = []
    for other in np.flatnonzero(rows & (jobs.level > int(Level.NONE)) & ~composer.touched).tolist():
        job = int(jobs.id[other])
        reserved = jobs.reserved[other]
        candidates.append(
            PreemptionCandidate(other, view.reservations[job], 1.0) if reserved else composer.candidate(other, 1.0)
        )
    mark = composer.board.mark()
    room = PreemptionIndex(composer.board, candidates).find_preemption(composer.request(row))
    composer.board.undo(mark)
    return room is not None
