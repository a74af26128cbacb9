"""First in, first out with conservative backfill (Mu'alem and Feitelson, TPDS 2001): a job may pass those ahead of it
only where it delays none of their reservations, run times being as estimated.
"""

from __future__ import annotations

import numpy as np

from ...base.units import DAY
from ...estimate.duration import remaining_us
from ...model.cause import Code, given
from ...model.job import State
from ...model.rate import FULL_RATE
from ...model.table import Column
from ...model.view import View
from ...placement.explain import explain
from ...plan.order import QueueOrder
from ...plan.plan import Plan, Wake
from ...plan.reasons import Blocked, Reason
from ..compose import Composer
from ..preferences import Preferences, first_rows
from ..shapes import Shape
from .profile import Profile

_BACKFILLED = Code.BACKFILLED()
_EXPLAINED = 8
"""Reserved jobs that are given a reason."""
_ANY = 1 << 62
"""Behind every job."""
_STOPPING = int(State.STOPPING)
_STRIDE = 4
"""Rows between two questions whether the rest of the walk can be seen."""


class Backfill:
    """The first ``depth`` queued jobs hold reservations, counted in devices of the pool: node boundaries and kinds are
    looked at for starts now only. Jobs behind them wait.
    """

    name = "fifo-backfill"

    def __init__(self, *, depth: int = 100) -> None:
        self.depth = depth

    def plan(self, view: View) -> Plan:
        """Walk the queue; start what its earliest reservation lets start now."""
        jobs = view.jobs
        waiting = jobs.waiting
        preferences = Preferences(key=jobs.id, waiting=waiting, why=lambda row: _BACKFILLED)
        composer = Composer(view, preferences)
        rows = first_rows(np.flatnonzero(waiting), jobs.id, jobs.id, self.depth)
        if not len(rows) or not composer.room_left():
            composer.unplaced.extend(rows[:1].tolist())
            return composer.plan(Wake(on_arrival=not len(rows)))
        reserved = self._walk(view, composer, rows)
        at = min(reserved.values(), default=0)
        if composer.started and np.count_nonzero(jobs.state == _STOPPING):
            at = (
                view.now + 1
            )  # some may have been given devices that are not free yet: the profile counted them among the free
        behind, until = self._behind(view, composer, rows)
        plan = composer.plan(Wake(at=at, behind=behind, behind_until=until))
        if not view.explained:
            return plan
        explained = {blocked.job for blocked in plan.blocked}
        more = _explained(view, composer, list(reserved.items())[:_EXPLAINED])
        return Plan(
            plan.basis, plan.moves, plan.gangs, plan.wake, (*plan.blocked, *(b for b in more if b.job not in explained))
        )

    def _behind(self, view: View, composer: Composer, rows: Column) -> tuple[int, int]:
        """The last job that is looked at, and until when jobs that arrive behind it change nothing; any job, and never, where
        they may at once.

        They may where some have just started, since others are then looked at next, and where ends move: of jobs that do not run
        yet or run at part of their speed, and of those that have outrun their estimates.
        """
        jobs = view.jobs
        if composer.started or len(rows) < self.depth:
            return _ANY, 0
        left = jobs.expected - jobs.ideal_now
        moving = jobs.active & ((jobs.rate != FULL_RATE) | (left <= 0)) | jobs.reserved
        if np.count_nonzero(moving):
            return _ANY, 0
        return jobs.id.item(int(rows[-1])), view.now + int(left[jobs.active].min(initial=DAY))

    def _walk(self, view: View, composer: Composer, order: Column) -> dict[int, int]:
        """Start or reserve each row in order. Returns the reserved rows and their times."""
        jobs, now = view.jobs, view.now
        devices = np.where(jobs.active, jobs.held, jobs.floor)
        left = remaining_us(jobs) * np.maximum(jobs.demand // np.maximum(devices, 1), 1)
        busy = np.flatnonzero((jobs.active | jobs.reserved) & ~jobs.shares)
        profile = Profile(now, sum(composer.board.free_total), now + left[busy], devices[busy])
        need_of, left_of, shared = jobs.floor[order], left[order], jobs.shares[order]
        rows, needs, lengths, shares = order.tolist(), need_of.tolist(), left_of.tolist(), shared.tolist()
        fewest, shortest = _least_behind(need_of), _least_behind(left_of)
        sharing = int(np.flatnonzero(shared)[-1]) if np.count_nonzero(shared) else -1
        reserved: dict[int, int] = {}
        first = -1
        for index, (row, need, share, lasting) in enumerate(zip(rows, needs, shares, lengths, strict=True)):
            # The profile only falls: no row from here on can have devices before the smallest and shortest of them could. If that
            # is after the first reservation, none starts now, and no reservation made for one of them is seen.
            asked = (
                len(reserved) >= _EXPLAINED and not index % _STRIDE and not (index <= sharing and composer.room_left())
            )
            if asked and profile.earliest(fewest[index], shortest[index]) >= first:
                composer.unplaced.extend(_hopeless(profile, rows[index:], needs[index:], shares[index:]))
                break
            if share:
                if not composer.start(row):
                    composer.unplaced.append(row)
                continue
            at = profile.earliest(need, lasting)
            if at == now:
                if composer.start(row):
                    profile.reserve(now, lasting, need)
                    continue
                # Enough devices may be free but lie badly: only the next change of the profile can help.
                at = profile.earliest(need, lasting, profile.times[1]) if len(profile.times) > 1 else -1
            if at < 0:
                composer.unplaced.append(row)
                continue
            profile.reserve(at, lasting, need)
            reserved[row] = at
            first = at if first < 0 else min(first, at)
        return reserved

    def order(self, view: View) -> QueueOrder:
        """By submission."""
        return QueueOrder()


def _least_behind(values: Column) -> list[int]:
    """For each value the least of it and of all behind it."""
    found: list[int] = np.minimum.accumulate(values[::-1])[::-1].tolist()
    return found


def _hopeless(profile: Profile, rows: list[int], needs: list[int], shares: list[int]) -> list[int]:
    """Of rows that cannot start now, those that no reservation would help either."""
    most = profile.free[-1]  # all reservations end: no time has more free than the last
    return [row for row, need, share in zip(rows, needs, shares, strict=True) if share or need > most]


def _explained(view: View, composer: Composer, reserved: list[tuple[int, int]]) -> tuple[Blocked, ...]:
    """What each of these rows waits for. Rows of one shape wait for the same."""
    known: dict[Shape, Blocked] = {}
    holders: dict[tuple[int, int], tuple[int, ...]] = {}
    found = []
    for (row, at), shape in zip(reserved, composer.shapes(np.array([row for row, _ in reserved], int)), strict=True):
        job, alike = view.jobs.id.item(row), known.get(shape)
        if alike is None:
            alike = known[shape] = explain(view, composer.board, job, composer.request(row), holders)
        found.append(_waits_for(view, alike, job, at))
    return tuple(found)


def _waits_for(view: View, alike: Blocked, job: int, at: int) -> Blocked:
    """``alike``: what keeps a job of the same shape from starting."""
    blocked = Blocked(job, alike.reason, alike.why, alike.need, alike.free, alike.holders)
    if blocked.reason not in (Reason.NO_CAPACITY, Reason.FRAGMENTED):
        return blocked
    why = Code.RESERVED_LATER(given(blocked.why), max(int(at) - view.now, 0))
    reason = Reason.RESERVED if blocked.free >= blocked.need else blocked.reason
    return Blocked(blocked.job, reason, why, blocked.need, blocked.free, blocked.holders)
