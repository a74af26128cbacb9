"""What the SLA promise of each row asks for now: slack, class, and the order that follows."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from ..base.units import HOUR, MINUTE
from ..estimate.cost import pause_us
from ..estimate.duration import remaining_us, total_us
from ..model.job import TIER_TARGET, Tier
from ..model.table import Column
from ..model.view import View

_CLASS_BIT = 55
"""Keys are the class above microseconds; 2**55 of them are a thousand years."""
_MIDDLE = 1 << 54


class Class(IntEnum):
    """Rows of one class are served before those of the next."""

    PREMIUM = 0
    """A premium promise that can still be kept."""
    PRESSING = 1
    """A standard promise that breaks soon unless the job runs."""
    PREMIUM_LATE = 2
    """A premium promise already broken: it yields to those that can be kept."""
    STANDARD = 3
    """A standard promise with slack to spare: free devices are enough for now."""
    STANDARD_LATE = 4
    BASIC = 5
    """Spare capacity: the shortest first."""


class Promise(Struct, frozen=True):
    """Columns of shape (n,). ``slack``: microseconds a row may still stand idle and keep its promise (huge for basic)."""

    cls: Column
    slack: Column
    left: Column
    key: Column
    pressing_at: Column
    """Absolute time when a waiting standard row becomes pressing."""


def promises(view: View, pressing: float, aging_us: int) -> Promise:
    """Judge every row. ``pressing``: share of its allowance of idle time under which a standard row presses.

    A job of total work T that is delivered the fraction f may stand idle for T * (1/f - 1) in all; what it has lost so
    far is its wall time less its ideal time; slack is the difference.
    """
    jobs = view.jobs
    target = np.array([TIER_TARGET[Tier(tier)] for tier in sorted(TIER_TARGET)])[jobs.tier]
    allowance = total_us(jobs) * (1.0 / np.maximum(target, 1e-9) - 1.0)
    lost = jobs.wall - jobs.ideal_now
    slack = np.where(target > 0, allowance - lost, 4.0 * _MIDDLE).clip(-_MIDDLE / 2, _MIDDLE / 2).astype(np.int64)
    margin = np.maximum(pressing * allowance, MINUTE).clip(0, _MIDDLE / 2).astype(np.int64)
    cls = _classes(view, slack, margin)
    left = remaining_us(jobs)
    key = (cls.astype(np.int64) << _CLASS_BIT) + _MIDDLE + _within(view, cls, slack, left, aging_us)
    return Promise(cls, slack, left, key, view.now + slack - margin)


def _classes(view: View, slack: Column, margin: Column) -> Column:
    """A promise counts as broken only where the run time is known: a job that turns out longer can still catch up."""
    jobs = view.jobs
    late = (slack < 0) & (jobs.expected > 0)
    premium = np.where(late, int(Class.PREMIUM_LATE), int(Class.PREMIUM))
    standard = np.where(slack <= margin, int(Class.PRESSING), int(Class.STANDARD))
    standard = np.where(late, int(Class.STANDARD_LATE), standard)
    return np.where(
        jobs.tier == Tier.PREMIUM, premium, np.where(jobs.tier == Tier.STANDARD, standard, int(Class.BASIC))
    )


def _within(view: View, cls: Column, slack: Column, left: Column, aging_us: int) -> Column:
    """Order inside a class, in (-2**54, 2**54): running rows first while their promise holds, then the least slack; where
    nothing is promised the shortest first, a running row counting half (hysteresis) less what sending it away would lose.
    """
    jobs = view.jobs
    active = jobs.active
    aged = left / (1.0 + np.where(active, 0, view.now - jobs.wait_since) / aging_us)
    stay = np.maximum(left / 2 - pause_us(jobs), 0.0)
    shortest = np.where(active, stay, aged).clip(0, _MIDDLE / 2).astype(np.int64)
    kept = np.where(active, slack - _MIDDLE // 2, np.maximum(slack, 0))
    loose = (cls == Class.BASIC) | (cls == Class.PREMIUM_LATE) | (cls == Class.STANDARD_LATE)
    return np.where(loose, shortest, kept)


DEFAULT_AGING_US = HOUR
"""A waiting job counts half as long for every such time it has waited."""
