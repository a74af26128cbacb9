"""The default policy: tiers kept by the ledger.

Every job is promised a fraction of ideal speed (``model.job.TIER_TARGET``); its slack is the idle time it can still stand
before that fraction is lost. Premium jobs come first while their promise can be kept, then standard jobs whose slack runs
out; a standard job with slack takes free devices but preempts nothing; promises already broken yield to those that can be
kept. A job of any tier that would miss its deadline presses too. Inside a class the least work (device-time) left over the
job's weight goes first. Estimates of run time are trusted as far as earlier ones were right. What is left goes to basic jobs
and to elastic jobs that save the most time by growing. Victims are chosen to lose the fewest device-seconds, by measured save
and restore costs; no job is preempted before its run has paid for its pause, and inside a class only for one with less than
half its work left. Where free devices do not lie together, running jobs are migrated if that costs little. Where devices
take long to be released, some are kept free for jobs whose promise cannot wait for that (``policy.headroom``). Services with a
reclaim deadline take back what they have lent within it (``policy.reclaim``).

Wait is bounded for every job, basic ones included, whatever arrives later: see ``policy.overdue.bound_us``.
"""

from __future__ import annotations

import math

import numpy as np
from msgspec import structs

from ..base.units import HOUR, MINUTE, SECOND
from ..estimate.cost import PAYBACK, pause_us, victim_cost, worth_running_us
from ..estimate.speed import saved_us
from ..model.cause import Cause, Code
from ..model.job import TIER_TARGET, State, Tier
from ..model.node import device_count
from ..model.rate import FULL_RATE
from ..model.table import Column
from ..model.view import JobColumns, View
from ..plan.factories import Interval, Share
from ..plan.order import OrderTerm, QueueOrder
from ..plan.plan import ArrivalDelay, Plan, Wake
from ..plan.reasons import Blocked
from .compose import Composer
from .consolidate import consolidate
from .headroom import Headroom
from .overdue import OverdueQueue, WaitBound, overdue
from .preferences import Preferences, least, median, suspendable
from .promise import (
    BRIEF_PRESSING,
    IDLE_SHARE,
    LEAST_MARGIN_US,
    LOOSE,
    SHORT_PAUSE_US,
    SIGMAS,
    Class,
    Promise,
    fully_aged,
    promises,
    protects_no_longer,
    within_class,
)
from .reclaim import Reclaim
from .upgrade import upgrade
from .wakes import PreemptionWake, Reach, leaving, preemption_wake, starting, young_rows

_TIER_LOSS_US = np.array([0.0, 120.0 * SECOND, 600.0 * SECOND])
"""Device time that preempting a basic, standard or premium job is taken to lose beyond its save and restore."""
_CHEAP_PAUSE_US = 10 * SECOND
"""Where pauses are longer, devices that lie apart are worth more free: short jobs start there without waiting for one."""
_CONSOLIDATED = 2
"""Rows for which migrations are looked for in one plan."""
_FORESEEN_US = 400 * 24 * HOUR
"""A row that presses later than this is not said to."""
_PREMIUM_PAYBACK = 1.0 / (1.0 - TIER_TARGET[Tier.PREMIUM])
"""Times its pause that a premium job runs before it is preempted again, see ``_min_run``."""
_ARRIVAL_DELAY_US = MINUTE
"""How long a job that could not start anyway may wait for the next plan."""
_GROW_GAIN = 5
"""Growing must save so many times what the pause costs."""


# Plain numbers: comparing a column with a member of an enum costs more than the comparison.
_STANDARD, _PRESSING, _PREMIUM_LATE = int(Class.STANDARD), int(Class.PRESSING), int(Class.PREMIUM_LATE)
_RUNNING = int(State.RUNNING)
_PREMIUM, _STANDARD_TIER, _BASIC_TIER = int(Tier.PREMIUM), int(Tier.STANDARD), int(Tier.BASIC)
_STANDING = {
    Class.PREMIUM_PRESSING: "pressing", Class.PREMIUM: "open", Class.PRESSING: "pressing", Class.PREMIUM_LATE: "late",
    Class.STANDARD: "open", Class.STANDARD_LATE: "late",
}  # fmt: skip
"""By class: how the promise of a row of it stands (``plan.advice.STANDINGS``)."""
_KEPT = np.array([one not in (Class.PREMIUM_LATE, Class.STANDARD_LATE, Class.BASIC) for one in Class])
"""By class: the promise can be kept."""


class Sla:
    """Settings in microseconds: ``min_run_us`` is the longest a job runs before it may be preempted (less where its pause is
    short), ``aging_us`` the wait by which the work of a job without a promise to keep counts ever less (by a third at most),
    ``max_wait_us``, ``quantum_us`` and ``overdue_share`` belong to the bounded wait, ``resize_us`` lies between resizes of
    one job. ``pressing``: share of its idle allowance under which a standard job may preempt others. ``headroom``: share of the
    devices of each kind that is kept free at most for jobs that cannot wait. ``brief_us``: a standard job whose whole work is no
    more than the pool does in that time is served with premium ones.
    """

    name = "sla"

    def __init__(
        self, *, min_run_us: int = MINUTE, pressing: Share = 0.4, aging_us: Interval = HOUR, max_wait_us: Interval = 4 * HOUR,
        quantum_us: Interval = 15 * MINUTE, overdue_share: Share = 0.02, resize_us: int = 5 * MINUTE,
        headroom: Share = 0.03, brief_us: int = MINUTE,
    ) -> None:  # fmt: skip
        self.min_run_us, self.pressing, self.aging_us, self.resize_us = min_run_us, pressing, aging_us, resize_us
        self.headroom, self.brief_us = headroom, brief_us
        self.wait_bound = WaitBound(max_wait_us=max_wait_us, quantum_us=quantum_us, share=overdue_share)

    def plan(self, view: View) -> Plan:
        """Overdue rows, then promises, then spare capacity."""
        jobs = view.jobs
        judged = promises(view, self.pressing, self.aging_us, self.brief_us)
        queue, reclaim = OverdueQueue(view, self.wait_bound, judged.left), Reclaim(view, judged.key)
        preferences = Preferences(
            key=judged.key,
            waiting=reclaim.waiting(),
            why=lambda row: _why(view, judged, self.wait_bound.max_wait_us if queue.overdue[row] else 0, row),
            victims=lambda: self._victims(view, judged, queue),
            may_preempt=_may_preempt(jobs, judged),
            cost=lambda: _cost(view, judged),
        )
        composer, headroom = Composer(view, preferences), Headroom(view, judged, self.headroom)
        others_too = queue.serve(composer, lambda: _cost(view, judged))
        if others_too:
            reclaim.serve(composer, ~queue.served, lambda: _cost(view, judged))
            headroom.open(composer)
            composer.rearrange()
            self._reserve(view, composer, judged)
            composer.fill()
            self._consolidate(composer, judged, queue)
            composer.grow()
            self._grow_running(view, composer, judged)
            upgrade(composer, suspendable(view, self.resize_us) & ~queue.served, judged.left, _GROW_GAIN)
        wake = self._wake(view, composer, judged, queue, headroom, not others_too)
        if not view.explained:
            return composer.plan(wake)
        still = jobs.waiting & ~composer.touched
        # Nothing was free and none could be preempted: the first is given a reason.
        if not composer.unplaced and np.count_nonzero(still):
            composer.unplaced.append(least(np.flatnonzero(still), judged.key, jobs.id))
        composer.unplaced += reclaim.kept_out
        plan = composer.plan(wake)
        said = (reclaim.explained(headroom.explained(composer, one)) for one in plan.blocked)
        return structs.replace(plan, blocked=tuple(self._timed(view, judged, queue, one) for one in said))

    def order(self, view: View) -> QueueOrder:
        """Overdue rows by the time since which they wait, then by class, then by work."""
        jobs = view.jobs
        judged = promises(view, self.pressing, self.aging_us, self.brief_us)
        late = overdue(view, self.wait_bound)
        terms = (
            OrderTerm(
                Code.AHEAD_BY_WAIT, np.where(late, jobs.wait_since, view.now + 1),
                lambda row: Code.HAS_WAITED(int(view.now - jobs.wait_since[row])),
            ),
            OrderTerm(Code.AHEAD_BY_PROMISE, judged.cls, lambda row: _standing(view, judged, row)),
            OrderTerm(
                Code.AHEAD_BY_WEIGHTED_WORK, judged.key, lambda row: within_class(view, judged, row)
            ),
        )  # fmt: skip
        return QueueOrder(terms)

    def _timed(self, view: View, judged: Promise, queue: OverdueQueue, blocked: Blocked) -> Blocked:
        """With the time from which the row may preempt others: it presses, or the first of them has run long enough."""
        jobs = view.jobs
        row = jobs.row[blocked.job]
        presses_at = int(judged.pressing_at[row])
        if judged.cls.item(row) > _PRESSING and view.now < presses_at < view.now + _FORESEEN_US:
            return structs.replace(blocked, at=presses_at + 1)
        lesser = (suspendable(view) & ~queue.served & (judged.key > judged.key[row])).nonzero()[0]
        free_at = jobs.run_since[lesser] + self._min_run(view)[lesser]
        young = free_at[free_at > view.now]
        return structs.replace(blocked, at=int(young.min())) if len(young) else blocked

    def _min_run(self, view: View) -> Column:
        """Least run time of each row before it may be preempted: priced by its pause.

        A premium row runs for the whole minimum, and for so long that pauses alone do not break its promise: only its own tier
        and brief rows preempt it, and a short one would lose more by waiting again than it had to run.
        """
        jobs = view.jobs
        known: Column | None = jobs.memo.get(("sla", "min_run", self.min_run_us))
        if known is None:
            worth = worth_running_us(jobs, self.min_run_us)
            known = jobs.memo["sla", "min_run", self.min_run_us] = np.where(
                jobs.tier == _PREMIUM,
                np.maximum(self.min_run_us, _PREMIUM_PAYBACK * pause_us(jobs)).astype(np.int64),
                worth,
            )
        return known

    def _victims(self, view: View, judged: Promise, queue: OverdueQueue) -> Column:
        """Running rows that have run for long enough and will not end soon by themselves."""
        min_run = self._min_run(view)
        able: Column = suspendable(view, min_run) & ~queue.served & (judged.left > min_run)
        return able

    def _reserve(self, view: View, composer: Composer, judged: Promise) -> None:
        """Free devices are kept for the most urgent row that could not start even by preempting."""
        head = next((row for row in composer.unplaced if judged.cls.item(row) <= _PREMIUM_LATE), -1)
        if head >= 0:
            composer.reserve(head)

    def _consolidate(self, composer: Composer, judged: Promise, queue: OverdueQueue) -> None:
        """Free devices that do not lie together are brought together for the first rows that have a promise to keep.

        Only rows are moved that keep their promises all the same, and have enough left to do.
        """
        jobs = composer.jobs
        slack = judged.slack
        promised = [
            row for row in composer.unplaced if judged.cls.item(row) <= _STANDARD and slack.item(row) < _FORESEEN_US
        ]
        rows = [row for row in promised if jobs.floor.item(row) > 1 and not jobs.shares.item(row)]
        if not rows or not any(composer.board.free_total):
            return
        pause = PAYBACK * pause_us(jobs)
        if median(pause[jobs.active]) > PAYBACK * _CHEAP_PAUSE_US:
            return
        movable = self._victims(composer.view, judged, queue) & (slack > pause) & (judged.left > pause)
        for row in rows[:_CONSOLIDATED]:
            worth = judged.left.item(row) * jobs.floor.item(row) / PAYBACK
            if consolidate(composer, row, movable, worth):
                return

    def _growable(self, view: View) -> Column:
        jobs = view.jobs
        less: Column = (jobs.state == _RUNNING) & (jobs.held < jobs.demand)
        less &= ~jobs.reserved & ~jobs.shares
        return less

    def _grow_running(self, view: View, composer: Composer, judged: Promise) -> None:
        jobs = view.jobs
        if composer.unplaced or not any(composer.board.free_total):
            return
        rows = (self._growable(view) & suspendable(view, self.resize_us)).nonzero()[0]
        if not len(rows):
            return
        larger = np.minimum(jobs.demand[rows], jobs.held[rows] + sum(composer.board.free_total))
        saved = saved_us(view, rows, judged.left[rows], larger)
        pause = jobs.save_us[rows] + jobs.restore_us[rows]
        worth = saved > _GROW_GAIN * pause
        rows, gain = rows[worth], (saved / np.maximum(larger - jobs.held[rows], 1))[worth]
        order = np.lexsort((jobs.id[rows], -gain, -jobs.tier[rows]))
        composer.grow_running(rows[order].tolist(), lambda row, count: Code.GROWN(count, int(jobs.demand[row])))

    def _wake(
        self, view: View, composer: Composer, judged: Promise, queue: OverdueQueue, headroom: Headroom, held_back: bool
    ) -> Wake:
        """The next time at which another planning round could change something by itself, and what else is worth one.

        ``held_back``: overdue rows wait until those can be preempted that only start now.
        """
        jobs, now, kept = view.jobs, view.now, device_count(headroom.kept)
        parting = leaving(composer)
        still = jobs.waiting | parting
        still[composer.started] = False
        if not np.count_nonzero(still):
            return self._grows(view, composer)
        reach, wants = Reach(composer, headroom.kept, queue.served), still & _may_preempt(jobs, judged)
        brought = self._could_be_brought_together(composer, judged, still, reach.free)
        preempts = self._preempts(composer, reach, wants, ~queue.served, brought)
        changes_at = _class_changes_at(view, judged, still, composer.started)
        aged, ages_at = self._aged(view, judged, reach, wants)
        times = (queue.next_at(still, parting), headroom.opens_at(), preempts.at, changes_at, ages_at)
        # Where jobs can grow or be moved to faster devices, any device that comes free may be of use.
        any_free = held_back or queue.found_no_room or len(view.layout.kinds) > 1 or view.reclaims or _elastic(jobs)
        min_free = 0 if any_free else reach.least_free(still, wants, kept, queue.overdue, aged)
        in_share = [*queue.served.nonzero()[0].tolist(), *queue.granted] if min_free and queue.waits_for_share else []
        return Wake(
            at=min((at for at in times if at > now), default=0),
            min_free=min_free,
            # Overdue rows and replicas that claim what is lent may preempt a job as soon as it runs.
            after_run=0 if held_back or queue.found_no_room or _claims(view, still) else preempts.after_run,
            on_end=tuple(jobs.id[in_share].tolist()),
            arrival_delay=self._arrival_delay(view, kept),
        )

    def _could_be_brought_together(self, composer: Composer, judged: Promise, still: Column, free: int) -> bool:
        """Whether a row waits for which free devices could be brought together by migrations, see ``_consolidate``."""
        jobs = composer.jobs
        rows = still & (judged.cls <= _STANDARD) & (jobs.floor > 1) & (jobs.floor <= free)
        return bool(np.count_nonzero(rows)) and median(pause_us(jobs)[jobs.active]) <= _CHEAP_PAUSE_US

    def _preempts(self, composer: Composer, reach: Reach, wants: Column, able: Column, brought: bool) -> PreemptionWake:
        """When rows of ``wants`` (flags) may preempt those of ``able`` that start now or have not run for long enough; or, where
        free devices could be ``brought`` together, any of those may be migrated."""
        view, min_run = composer.view, self._min_run(composer.view)
        later = able & (starting(view, composer.started) | young_rows(view, min_run))
        least = -1 if brought else reach.least_key(wants, later)
        if least is None:
            return PreemptionWake()
        # Where images are dear, a young job is not asked for one as soon as it may be: devices come free before that.
        pause = pause_us(view.jobs)
        asked = np.where(pause > SHORT_PAUSE_US, np.maximum(min_run, PAYBACK * pause), min_run).astype(np.int64)
        return preemption_wake(composer, able, least, min_run, asked)

    def _aged(self, view: View, judged: Promise, reach: Reach, wants: Column) -> tuple[Column, int]:
        """Keys once the age of all rows of ``wants`` (flags) counts in full; and when the next of them may preempt by that a row
        that is more wanted now, absolute in microseconds (0: never)."""
        rows = (wants & view.jobs.waiting & LOOSE[judged.cls]).nonzero()[0]
        if not len(rows):
            return judged.key, 0
        aged, (least, at) = judged.key.copy(), fully_aged(view, judged, rows, self.aging_us)
        aged[rows] = least
        young = at > view.now
        at = at[young][reach.passing(rows[young], least[young])]
        return aged, int(at.min()) if len(at) else 0

    def _grows(self, view: View, composer: Composer) -> Wake:
        """Where none waits: when the next row may be resized or moved to faster devices, if some are free."""
        jobs, now = view.jobs, view.now
        if not any(composer.board.free_total):
            return Wake()
        young, times = now - jobs.run_since < self.resize_us, []
        for rows in ((jobs.rate > 0) & (jobs.rate < FULL_RATE) & young, self._growable(view) & young):
            ends = jobs.run_since[rows] + self.resize_us
            times += [int(ends.min())] if len(ends) else []
        coming = starting(view, composer.started) & ((jobs.floor < jobs.demand) | (len(view.layout.kinds) > 1))
        after_run = self.resize_us if np.count_nonzero(coming) else -1
        return Wake(at=min((at for at in times if at > now), default=0), after_run=after_run)

    def _arrival_delay(self, view: View, kept: int) -> ArrivalDelay:
        """A standard job preempts none until it presses: one that needs more than is free may wait for its plan until then."""
        idle_share = float(IDLE_SHARE[_STANDARD_TIER]) * math.exp(-SIGMAS * view.estimate_sigma)
        due = ((1 - max(self.pressing, BRIEF_PRESSING)) * idle_share, 0), (idle_share, LEAST_MARGIN_US)
        return ArrivalDelay(_STANDARD_TIER, kept, _ARRIVAL_DELAY_US, due)


def _class_changes_at(view: View, judged: Promise, still: Column, started: list[int]) -> int:
    """When the next of the rows that ``still`` wait (flags) presses, or one that does is late; 0 for never. Absolute, in µs.

    While one presses, running rows of its tier count as pressing; when it is late, or is ``started``, others may preempt them.
    """
    now, times = view.now, []
    if protects_no_longer(view, judged, still, started):
        return now + 1
    slow = (still & (judged.cls > _PRESSING) & (judged.pressing_at > now)).nonzero()[0]
    times += [int(judged.pressing_at[slow].min()) + 1] if len(slow) else []
    pressing = (still & (judged.cls <= _PRESSING) & (judged.late_at >= now)).nonzero()[0]
    times += [int(judged.late_at[pressing].min()) + 1] if len(pressing) else []
    return min(times, default=0)


def _may_preempt(jobs: JobColumns, judged: Promise) -> Column:
    may: Column = (judged.cls != _STANDARD) | (jobs.tier == _BASIC_TIER)
    return may


def _claims(view: View, still: Column) -> bool:
    """Whether a replica of a service that claims lent devices still waits (``policy.reclaim``)."""
    row = view.jobs.row
    return any(still.item(row[job]) for terms in view.reclaims for job in terms.replicas if job in row)


def _elastic(jobs: JobColumns) -> bool:
    return bool(np.count_nonzero(jobs.floor < jobs.demand))


def _cost(view: View, judged: Promise) -> Column:
    """Device-microseconds that preempting each row loses, with what its tier adds."""
    jobs = view.jobs
    added = _TIER_LOSS_US[jobs.tier] * _KEPT[judged.cls] * np.maximum(jobs.held_milli, 1) / 1000
    cost: Column = victim_cost(jobs) + added
    return cost


def _why(view: View, judged: Promise, max_wait_us: int, row: int) -> Cause:
    """``max_wait_us``: above 0 for an overdue row."""
    jobs = view.jobs
    if max_wait_us:
        return Code.WAITED_TOO_LONG(int(view.now - jobs.wait_since[row]), max_wait_us)
    tier, cls = Tier(int(jobs.tier[row])).name.lower(), judged.cls[row]
    if cls == Class.BASIC or (cls == Class.STANDARD and jobs.tier[row] == _BASIC_TIER):
        return Code.BASIC_REMAINING(int(judged.left[row]))
    slack = int(judged.slack[row])
    if jobs.deadline[row] and cls == Class.PRESSING:
        return Code.DEADLINE_NEAR(tier, slack)
    return Code.SLACK_SPENT(tier, -slack) if slack < 0 else Code.SLACK_LEFT(tier, slack)


def _standing(view: View, judged: Promise, row: int) -> Cause:
    """What puts a row into its class: rows with the same slack may differ in it."""
    why, cls, tier = _why(view, judged, 0, row), Class(judged.cls.item(row)), int(view.jobs.tier[row])
    if tier == _BASIC_TIER and cls == Class.STANDARD:
        return Code.SERVED_AS(why, "brief")
    if tier != _PREMIUM and cls == Class.PREMIUM:
        return Code.SERVED_AS(why, "brief-pressing")
    return Code.SERVED_AS(why, _STANDING[cls]) if cls in _STANDING else why
