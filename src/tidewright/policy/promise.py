"""What the SLA promise of each row asks for at this moment: slack, class, and the order that follows."""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np
from msgspec import Struct

from ..base.units import MINUTE
from ..estimate.cost import pause_us
from ..estimate.duration import LEAST_US, foretold_us, remaining_us, total_us
from ..model.job import TIER_TARGET, Tier
from ..model.table import Column
from ..model.view import View

_CLASS_BIT = 55
"""Keys are the class above microseconds; 2**55 of them are a thousand years."""
_MIDDLE = 1 << 54
_NEVER = 4.0 * _MIDDLE

_BLIND_US = 10 * LEAST_US
"""Run time after which nothing is known of how much is left, where neither the user nor similar jobs say."""
_SIGMAS = 1.28
"""Standard deviations of estimates: nine of ten jobs run for longer than so many below, and for less than so many above."""
_AGED = 1.5
"""How many times less a waiting row counts at most for its age; below 2, so that it never passes a running equal."""


class Class(IntEnum):
    """Rows of one class are served before those of the next."""

    PREMIUM = 0
    """A premium promise that can still be kept."""
    PRESSING = 1
    """A standard promise that breaks soon unless the job runs."""
    PREMIUM_LATE = 2
    """A premium promise already broken: it yields to those that can be kept."""
    STANDARD = 3
    """A standard promise with slack to spare: free devices are enough."""
    STANDARD_LATE = 4
    BASIC = 5
    """Spare capacity."""


class Promise(Struct, frozen=True):
    """Columns of shape (n,). ``slack``: microseconds a row may still stand idle and keep its promise (huge for basic)."""

    cls: Column
    slack: Column
    left: Column
    key: Column
    pressing_at: Column
    """Absolute time when a row begins to press, if it does not; centuries ahead for basic rows without a deadline."""


def promises(view: View, pressing: float, aging_us: int) -> Promise:
    """Judge every row. ``pressing``: share of its allowance of idle time under which a standard row presses.

    A job of total work T that is delivered the fraction f may stand idle for T * (1/f - 1) in all; what it has lost so
    far is its wall time less its ideal time; slack is the difference. A deadline is a promise too, whatever the tier.
    """
    jobs, sigma = view.jobs, view.estimate_sigma
    target = np.array([TIER_TARGET[Tier(tier)] for tier in sorted(TIER_TARGET)])[jobs.tier]
    per_total = 1.0 / np.maximum(target, 1e-9) - 1.0
    lost = jobs.wall - jobs.ideal_now
    # It presses by the least that it may have to run, and counts as late only by the most.
    allowance = total_us(jobs, sigma, -_SIGMAS) * per_total
    slack = _bounded(np.where(target > 0, allowance - lost, _NEVER))
    known = (jobs.expected > 0) | (jobs.ideal_now > LEAST_US)
    late = known & (target > 0) & (total_us(jobs, sigma, _SIGMAS) * per_total < lost)
    margin = np.where(target > 0, _bounded(np.maximum(pressing * allowance, MINUTE)), 0)
    left = remaining_us(jobs)
    cls, presses_in = _classes(view, slack, margin, late), slack - margin
    if np.count_nonzero(jobs.deadline):
        cls, slack, presses_in = _with_deadlines(view, left, cls, slack, presses_in)
    key = (cls.astype(np.int64) << _CLASS_BIT) + _MIDDLE + _within(view, cls, left, aging_us)
    return Promise(cls, slack, left, key, view.now + presses_in)


def _bounded(microseconds: Column) -> Column:
    found: Column = microseconds.clip(-_MIDDLE / 2, _MIDDLE / 2).astype(np.int64)
    return found


def _with_deadlines(
    view: View, left: Column, cls: Column, slack: Column, presses_in: Column
) -> tuple[Column, Column, Column]:
    """Classes, slack and time until they press with deadlines: a row that would miss its own unless it runs soon presses.

    A deadline that cannot be met any more is no reason to preempt others.
    """
    jobs = view.jobs
    off = math.exp(_SIGMAS * view.estimate_sigma)
    until = jobs.deadline - view.now
    spare = until - left * off
    within = np.maximum(left / 2, 10 * MINUTE)
    reachable = (jobs.deadline > 0) & (until >= left / off)
    presses = reachable & (spare <= within)
    slack = np.where(reachable, np.minimum(slack, _bounded(spare)), slack)
    presses_in = np.where(reachable, np.minimum(presses_in, _bounded(spare - within)), presses_in)
    return np.where(presses, np.minimum(cls, int(Class.PRESSING)), cls), slack, presses_in


def _classes(view: View, slack: Column, margin: Column, late: Column) -> Column:
    """A promise counts as broken only where the run time is known: a job that turns out longer can still catch up.

    While a standard row presses, running standard rows count as pressing too: to send one away for its equal would only
    swap their places.
    """
    jobs = view.jobs
    premium = np.where(late, int(Class.PREMIUM_LATE), int(Class.PREMIUM))
    presses = slack <= margin
    if (presses & ~late & (jobs.tier == Tier.STANDARD) & jobs.waiting).any():
        presses |= jobs.active
    standard = np.where(presses, int(Class.PRESSING), int(Class.STANDARD))
    standard = np.where(late, int(Class.STANDARD_LATE), standard)
    return np.where(
        jobs.tier == Tier.PREMIUM, premium, np.where(jobs.tier == Tier.STANDARD, standard, int(Class.BASIC))
    )


def _within(view: View, cls: Column, left: Column, aging_us: int) -> Column:
    """Order inside a class, in [0, 2**53]: the least work left first, which keeps the most promises for the device-time.

    Least slack first would keep none under overload, like earliest deadline first. A running row counts half, less what
    preempting it would lose, so that equals do not swap places; a waiting row without a promise to keep counts less with time.
    Work counts less by the job's weight (weighted shortest processing time, Smith 1956).
    """
    jobs = view.jobs
    active, devices = jobs.active, np.maximum(jobs.demand, 1)
    blind = (jobs.expected == 0) & (jobs.ideal_now > _BLIND_US) & (foretold_us(jobs) == 0)
    if np.count_nonzero(blind):
        # Of jobs that may end at any time, taking turns would break every promise: the first come finish first.
        devices = np.where(blind, 1, devices)
        left = np.where(blind, 6 * _BLIND_US * (1.0 + 0.1 * jobs.submit / max(view.now, 1)), left)
    work = left.astype(float) * devices / jobs.weight
    loose = (cls == Class.BASIC) | (cls == Class.PREMIUM_LATE) | (cls == Class.STANDARD_LATE)
    waited = np.where(loose, view.now - jobs.wait_since, 0)
    stay = np.maximum(work / 2 - pause_us(jobs) * devices / jobs.weight, 0.0)
    return (
        np.where(active, stay, work / np.minimum(1.0 + waited / aging_us, _AGED)).clip(0, _MIDDLE / 2).astype(np.int64)
    )
