"""First in, first out with conservative backfill (Mu'alem and Feitelson, TPDS 2001): a job may pass those ahead of it
only where it delays none of their reservations, run times being as estimated.
"""

from __future__ import annotations

import numpy as np

from ..estimate.duration import remaining_us
from ..model.cause import Code, given
from ..model.view import View
from ..placement.explain import explain
from ..plan.plan import Plan, Wake
from ..plan.reasons import Blocked, Reason
from .compose import Composer
from .preferences import Preferences, first_rows
from .profile import Profile

_BACKFILLED = Code.BACKFILLED()


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
        reserved = self._walk(view, composer, rows.tolist())
        plan = composer.plan(Wake(at=min(reserved.values(), default=0)))
        explained = {blocked.job for blocked in plan.blocked}
        more = tuple(_waits_for(view, composer, row, at) for row, at in list(reserved.items())[:8])
        return Plan(
            plan.basis, plan.moves, plan.gangs, plan.wake, (*plan.blocked, *(b for b in more if b.job not in explained))
        )

    def _walk(self, view: View, composer: Composer, rows: list[int]) -> dict[int, int]:
        """Start or reserve each row in order. Returns the reserved rows and their times."""
        jobs, now = view.jobs, view.now
        devices = np.where(jobs.active, jobs.held, jobs.floor)
        left = remaining_us(jobs) * np.maximum(jobs.demand // np.maximum(devices, 1), 1)
        busy = np.flatnonzero((jobs.active | jobs.reserved) & ~jobs.shares)
        profile = Profile(now, sum(composer.board.free_total), now + left[busy], devices[busy])
        reserved: dict[int, int] = {}
        for row in rows:
            need, lasting = int(jobs.floor[row]), int(left[row])
            if jobs.shares[row]:
                if not composer.start(row):
                    composer.unplaced.append(row)
                continue
            at = profile.earliest(need, lasting)
            if at == now and composer.start(row):
                profile.reserve(now, lasting, need)
                continue
            # Enough devices may be free but lie badly: only the next change of the profile can help.
            at = profile.earliest(need, lasting, int(profile.times[1])) if len(profile.times) > 1 else -1
            if at < 0:
                composer.unplaced.append(row)
                continue
            profile.reserve(at, lasting, need)
            reserved[row] = at
        return reserved


def _waits_for(view: View, composer: Composer, row: int, at: int) -> Blocked:
    blocked = explain(view, composer.board, int(view.jobs.id[row]), composer.request(row))
    if blocked.reason not in (Reason.NO_CAPACITY, Reason.FRAGMENTED):
        return blocked
    why = Code.RESERVED_LATER(given(blocked.why), max(int(at) - view.now, 0))
    reason = Reason.RESERVED if blocked.free >= blocked.need else blocked.reason
    return Blocked(blocked.job, reason, why, blocked.need, blocked.free, blocked.holders)
