"""What the SLA promise of each row asks for at this moment: slack, class, and the order that follows."""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from msgspec import Struct

from ..base.units import DAY, MINUTE, SECOND
from ..estimate.cost import pause_us
from ..estimate.duration import LEAST_US, foretold_us, remaining_us, total_us
from ..model.cause import Cause, Code
from ..model.job import TIER_TARGET, Tier
from ..model.table import Column
from ..model.view import JobColumns, View

_CLASS_BIT = 55
"""Keys are the class above microseconds; 2**55 of them are a thousand years."""
_MIDDLE = 1 << 54
_NEVER = 4.0 * _MIDDLE

_LEAST_WEIGHT = 1e-6
"""Smaller weights count as this one, so that keys stay numbers."""
_BLIND_US = 10 * LEAST_US
"""Run time after which nothing is known of how much is left, where neither the user nor similar jobs say."""
SHORT_PAUSE_US = 10 * SECOND
"""Pause up to which a job is tried out, to see whether it is short."""
BRIEF_PRESSING = 0.9
"""Share of its idle allowance under which a brief standard row presses: at once, nearly; its promise is cheap to keep."""
LEAST_MARGIN_US = MINUTE
"""A row presses when it has so little idle time left, whatever share of its allowance that is."""
_UNKNOWN = 1.75
"""So many times the share under which a row presses whose user gave no run time, where pauses are short: how much idle time it
has is a guess."""
_PREMIUM_PRESSING = 0.5
"""Share of its idle allowance under which a premium row does not let brief rows go first any more."""
SIGMAS = 1.28
"""Standard deviations of estimates: nine of ten jobs run for longer than so many below, and for less than so many above."""
_LONG_RUN_US = DAY
"""Run time after which a gang on whole nodes is not given up for jobs that may turn out shorter, see ``_long_gangs``."""
_LONG_GANG_SHARE = 0.1
"""Part of the pool that such a gang needs at most: a larger one would keep whole bursts of short jobs waiting."""
_MOST_DONE = 20.0
"""A row counts at most so many times less for the part of its work that is done."""
_AGED = 1.5
"""How many times less a waiting row counts at most for its age; below 2, so that it never passes a running equal."""


class Class(IntEnum):
    """Rows of one class are served before those of the next."""

    PREMIUM_PRESSING = 0
    """A premium promise with less than half of its idle allowance left: brief standard jobs yield to it."""
    PREMIUM = 1
    """A premium promise that can still be kept, and brief standard jobs whose promise breaks soon."""
    PRESSING = 2
    """A standard promise that breaks soon unless the job runs."""
    PREMIUM_LATE = 3
    """A premium promise already broken: it yields to those that can be kept."""
    STANDARD = 4
    """A standard promise with slack to spare: free devices are enough. And brief basic jobs."""
    STANDARD_LATE = 5
    BASIC = 6
    """Spare capacity."""


# Tables instead of comparisons: thousands of plans an hour judge a few hundred rows each, so the number of vector expressions
# counts, not their length.
_TARGET = np.array([TIER_TARGET[Tier(tier)] for tier in sorted(TIER_TARGET)])
IDLE_SHARE = 1.0 / np.maximum(_TARGET, 1e-9) - 1.0
"""By tier: idle time allowed, as a share of the run time."""
_PROMISED = _TARGET > 0
_STANDARD_TIER, _PREMIUM_TIER = int(Tier.STANDARD), int(Tier.PREMIUM)
_PREMIUM, _PRESSING = int(Class.PREMIUM), int(Class.PRESSING)
_STANDARD, _BASIC = int(Class.STANDARD), int(Class.BASIC)
_CLASS_OF = np.array(
    [
        *(Class.BASIC,) * 4,
        *(Class.STANDARD, Class.PRESSING, Class.STANDARD_LATE, Class.STANDARD_LATE),
        *(Class.PREMIUM, Class.PREMIUM_PRESSING, Class.PREMIUM_LATE, Class.PREMIUM_LATE),
    ],
    dtype=np.int64,
)
"""By 4 * tier + 2 * late + presses."""
_KEPT_OFF = (
    (_STANDARD_TIER, (_PREMIUM, _PRESSING, int(Class.PREMIUM_LATE))),
    (_PREMIUM_TIER, (_PREMIUM,)),
)
"""By tier: classes of waiting rows that may preempt running rows of it, but not where these count as pressing, or as brief ones
that press."""
LOOSE = np.array([one in (Class.BASIC, Class.PREMIUM_LATE, Class.STANDARD_LATE) for one in Class])
"""By class: no promise to keep."""


class Promise(Struct, frozen=True):
    """Columns of shape (n,). ``slack``: microseconds a row may still stand idle and keep its promise (huge for basic)."""

    cls: Column
    slack: Column
    left: Column
    key: Column
    pressing_at: Column
    """Absolute time when a row begins to press, if it does not; centuries ahead for basic rows without a deadline."""
    late_at: Column
    """Absolute time when the promise of a row that waits is broken, by the estimate; without a promise it says nothing."""
    protects: Column
    """Flags of waiting rows that press: running rows of their tier count as pressing, too."""


def promises(view: View, pressing: float, aging_us: int, brief_us: int = 0) -> Promise:
    """Judge every row. ``pressing``: share of its allowance of idle time under which a standard row presses; ``brief_us``: see
    ``_serve_brief``.

    A job of total work T that is delivered the fraction f may stand idle for T * (1/f - 1) in all; what it has lost so
    far is its wall time less its ideal time, and less what changes of its tier waived; slack is the difference. A deadline is a
    promise too, whatever the tier.
    """
    jobs, sigma = view.jobs, view.estimate_sigma
    promised, idle_share = _PROMISED[jobs.tier], IDLE_SHARE[jobs.tier]
    every = np.count_nonzero(promised) == jobs.n
    given = np.count_nonzero(jobs.expected) == jobs.n
    total, lost = total_us(jobs), jobs.wall - jobs.ideal_now
    if np.count_nonzero(jobs.waived):
        lost = lost - jobs.waived
    # It presses by the least that it may have to run, and counts as late by what is estimated.
    allowance = total_us(jobs, sigma, -SIGMAS) * idle_share
    spare = allowance - lost
    slack = _bounded(spare if every else np.where(promised, spare, _NEVER))
    late, late_in = slack < 0, slack
    if sigma or not given:
        known = (jobs.expected > 0) | (jobs.ideal_now > LEAST_US)
        late_in = _bounded(total * idle_share - lost)
        late = promised & known & (late_in < 0)
    brief = _brief(view, total, brief_us)
    part = np.where(brief, max(pressing, BRIEF_PRESSING), pressing)
    if not given:
        guessed = (jobs.expected == 0) & (pause_us(jobs) <= SHORT_PAUSE_US)
        part = np.where(guessed, np.maximum(part, min(_UNKNOWN * pressing, 1.0)), part)
    part = np.where(jobs.tier == _PREMIUM_TIER, _PREMIUM_PRESSING, part)
    margin = np.minimum(np.maximum(part * allowance, LEAST_MARGIN_US), _MIDDLE / 2).astype(np.int64)
    if not every:
        margin = np.where(promised, margin, 0)
    left = remaining_us(jobs)
    (cls, protects), presses_in = _classes(view, slack, margin, late), slack - margin
    _serve_brief(view, cls, brief, brief_us)
    if np.count_nonzero(jobs.deadline):
        cls, slack, presses_in = _with_deadlines(view, left, cls, slack, presses_in)
    key = (cls << _CLASS_BIT) + _MIDDLE + _within(view, cls, total, left, aging_us, brief_us)
    return Promise(cls, slack, left, key, view.now + presses_in, view.now + late_in, protects)


def within_class(view: View, judged: Promise, row: int) -> Cause:
    """By what ``row`` is compared with others of its class: device-microseconds, as they are counted for it."""
    jobs = view.jobs
    work = judged.key.item(row) - (judged.cls.item(row) << _CLASS_BIT) - _MIDDLE
    if _rough(view) and _long_gangs(view, judged.cls).item(row):
        return Code.LONG_GANG_WORK(jobs.ideal_now.item(row), work)
    if _blind(jobs).item(row):
        return Code.UNKNOWN_WORK(jobs.ideal_now.item(row), work)
    times = _done(view, total_us(jobs), judged.left).item(row)
    if round(1000 * times) > 1000:
        return Code.PARTLY_DONE_WORK(work, round(1000 * times))
    return Code.WEIGHTED_WORK_LEFT(work)


def _bounded(microseconds: Column) -> Column:
    found: Column = np.minimum(np.maximum(microseconds, -_MIDDLE / 2), _MIDDLE / 2).astype(np.int64)
    return found


def _with_deadlines(
    view: View, left: Column, cls: Column, slack: Column, presses_in: Column
) -> tuple[Column, Column, Column]:
    """Classes, slack and time until they press with deadlines: a row that would miss its own unless it runs soon presses.

    A deadline that cannot be met any more is no reason to preempt others.
    """
    jobs = view.jobs
    off = math.exp(SIGMAS * view.estimate_sigma)
    until = jobs.deadline - view.now
    spare = until - left * off
    within = np.maximum(left / 2, 10 * MINUTE)
    reachable = (jobs.deadline > 0) & (until >= left / off)
    presses = reachable & (spare <= within)
    slack = np.where(reachable, np.minimum(slack, _bounded(spare)), slack)
    presses_in = np.where(reachable, np.minimum(presses_in, _bounded(spare - within)), presses_in)
    return np.where(presses, np.minimum(cls, int(Class.PRESSING)), cls), slack, presses_in


def _classes(view: View, slack: Column, margin: Column, late: Column) -> tuple[Column, Column]:
    """Classes, deadlines apart, and flags of the waiting rows that press.

    A promise counts as broken only where the run time is known: a job that turns out longer can still catch up.
    While a row of a tier waits and presses, running rows of that tier count as pressing too: to send one away for its equal
    would only swap their places.
    """
    jobs = view.jobs
    presses = slack <= margin
    protects = presses & ~late & jobs.waiting
    pressed = jobs.tier[protects]
    for tier in (_STANDARD_TIER, _PREMIUM_TIER):
        if np.count_nonzero(pressed == tier):
            presses |= jobs.active & (jobs.tier == tier)
    cls: Column = _CLASS_OF[4 * jobs.tier + 2 * late.view(np.int8) + presses]
    return cls, protects


def protects_no_longer(view: View, judged: Promise, still: Column, started: list[int]) -> bool:
    """Whether a plan that starts the rows ``started`` starts the last waiting row of a tier that presses, which kept rows that
    ``still`` wait (flags) from preempting running ones."""
    jobs = view.jobs
    tiers = jobs.tier[started][judged.protects[started]]
    return any(
        np.count_nonzero(tiers == tier)
        and not np.count_nonzero(judged.protects & still & (jobs.tier == tier))
        and np.count_nonzero(jobs.active & (jobs.tier == tier))
        and np.isin(judged.cls[still], kept_off).any()
        for tier, kept_off in _KEPT_OFF
    )


def _brief(view: View, total: Column, brief_us: float) -> Column:
    """Rows whose whole work keeps the pool busy for no longer than ``brief_us``, where they run for ``total`` microseconds.
    Shape (n,), bool."""
    found: Column = total * np.maximum(view.jobs.demand, 1) <= brief_us * view.capacity
    return found


def _serve_brief(view: View, cls: Column, brief: Column, brief_us: float) -> None:
    """A brief standard row that presses is served with premium ones, a brief basic one with standard ones that have slack.

    Each costs those no more than ``brief_us``, and it is the brief rows that lose their promises, and most of their time, first.
    Before premium ones go only those that are surely brief.
    """
    pressing = (cls == _PRESSING) & (view.jobs.tier == _STANDARD_TIER) & brief
    if np.count_nonzero(pressing):
        sigma = view.estimate_sigma
        cls[pressing & _brief(view, total_us(view.jobs, sigma, SIGMAS), brief_us) if sigma else pressing] = _PREMIUM
    # One of unknown length would take turns again and again.
    cls[(cls == _BASIC) & brief & (view.jobs.expected > 0)] = _STANDARD


def _done(view: View, total: Column, left: Column) -> Column:
    """By how many times the whole run of each row is longer than what is left of it; the less so the better estimates are.

    Where estimates are off, nearly all rows press, and the least work left alone would begin all long jobs and end none in
    time: device-time keeps the most promises by work where the largest part is done.
    """
    times = total / np.maximum(left, total / _MOST_DONE)
    done: Column = np.where(view.jobs.expected > 0, times ** min(view.estimate_sigma, 1.0), 1.0)
    return done


def _blind(jobs: JobColumns) -> Column:
    """Rows that have run for long, and of which nothing says for how much longer. Shape (n,), bool."""
    found: Column = (jobs.expected == 0) & (jobs.ideal_now > _BLIND_US) & (foretold_us(jobs) == 0)
    return found


def _rough(view: View) -> bool:
    """Whether of any row it is not sure how much longer it runs."""
    return view.estimate_sigma > 0 or bool(np.count_nonzero(view.jobs.expected) < view.jobs.n)


def _long_gangs(view: View, cls: Column) -> Column:
    """Rows with a promise to keep that need whole nodes, have run for long, and whose end is not sure. Shape (n,), bool.

    Preempted in a burst, they would wait for days until whole nodes are free together. The devices of a single node are
    brought together by migrations where pauses are short.
    """
    jobs, node = view.jobs, max(view.layout.node_size, default=1)
    whole = (jobs.floor > node) | ((jobs.floor == node) & (jobs.floor > 1) & (pause_us(jobs) > SHORT_PAUSE_US))
    found: Column = whole & (jobs.floor <= _LONG_GANG_SHARE * view.capacity)
    found &= (jobs.ideal_now > _LONG_RUN_US) & ~LOOSE[cls]
    return found if view.estimate_sigma else found & (jobs.expected == 0)


def _aged(waited: Column, aging_us: int) -> Column:
    """How many times less the work of a row without a promise to keep counts for its wait of ``waited`` microseconds."""
    aged: Column = np.minimum(1.0 + waited / aging_us, _AGED)
    return aged


def fully_aged(view: View, judged: Promise, rows: Column, aging_us: int) -> tuple[Column, Column]:
    """Of waiting ``rows`` (numbers) without a promise to keep: the key that each has once its age counts in full, and when that
    is, in absolute microseconds."""
    jobs, base = view.jobs, (judged.cls[rows] << _CLASS_BIT) + _MIDDLE
    aged = _aged(view.now - jobs.wait_since[rows], aging_us)
    key = base + ((judged.key[rows] - base) * (aged / _AGED)).astype(np.int64)
    return key, jobs.wait_since[rows] + math.ceil((_AGED - 1.0) * aging_us)


def _within(view: View, cls: Column, total: Column, left: Column, aging_us: int, brief_us: int) -> Column:
    """Order inside a class, in [0, 2**53]: the least work left first, which keeps the most promises for the device-time.

    Least slack first would keep none under overload, like earliest deadline first. A running row counts half, less what
    preempting it would lose, so that equals do not swap places; a waiting row without a promise to keep counts less with time.
    Work counts less by the job's weight (weighted shortest processing time, Smith 1956), and where estimates are off by the
    part of it that is done. Before long gangs go brief rows alone where estimates are off, the more so the more they are; and
    suspended ones without an estimate count as if they ran.
    """
    jobs = view.jobs
    devices, weight = np.maximum(jobs.demand, 1), np.maximum(jobs.weight, _LEAST_WEIGHT)
    if np.count_nonzero(jobs.expected) < jobs.n:
        blind = _blind(jobs)
        # Where a pause is short, a job of which nothing is sure counts as short until it has shown that it is not.
        untried = (jobs.expected == 0) & (jobs.ideal_now <= _BLIND_US) & (pause_us(jobs) <= SHORT_PAUSE_US)
        left = np.where(untried, np.minimum(left, LEAST_US), left)
        # Of jobs that may end at any time, taking turns would break every promise: the first come finish first.
        devices = np.where(blind, 1, devices)
        left = np.where(blind, 6 * _BLIND_US * (1.0 + 0.1 * jobs.submit / max(view.now, 1)), left)
    work, pause = left.astype(float) * devices, pause_us(jobs) * devices
    if view.estimate_sigma:
        weight = weight * _done(view, total, left)
    if np.count_nonzero(weight != 1.0):
        work, pause = work / weight, pause / weight
    stay = np.maximum(work / 2 - pause, 0.0)
    loose = LOOSE[cls]
    if np.count_nonzero(loose):
        work = work / np.where(loose, _aged(view.now - jobs.wait_since, aging_us), 1.0)
    within = np.where(jobs.active, stay, work)
    gangs = _long_gangs(view, cls).nonzero()[0] if _rough(view) else ()
    if len(gangs):
        off, most = min(view.estimate_sigma, 1.0), float(brief_us * view.capacity)
        brought = within[gangs] ** (1.0 - off) * np.minimum(within[gangs], most) ** off
        within[gangs] = np.where(jobs.expected[gangs] > 0, brought, stay[gangs])
    return np.minimum(within, _MIDDLE / 2).astype(np.int64)
