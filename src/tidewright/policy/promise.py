"""What the SLA promise of each row asks for at this moment: slack, class, and the order that follows."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from msgspec import Struct

from ..base.units import MINUTE
from ..estimate.cost import pause_us
from ..estimate.duration import remaining_us, total_us
from ..model.job import TIER_TARGET, Tier
from ..model.table import Column
from ..model.view import View

_CLASS_BIT = 55
"""Keys are the class above microseconds; 2**55 of them are a thousand years."""
_MIDDLE = 1 << 54

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


# Tables instead of comparisons: thousands of plans an hour judge a few hundred rows each, so the number of vector expressions
# counts, not their length.
_TARGET = np.array([TIER_TARGET[Tier(tier)] for tier in sorted(TIER_TARGET)])
_IDLE_SHARE = 1.0 / np.maximum(_TARGET, 1e-9) - 1.0
"""By tier: idle time allowed, as a share of the run time."""
_PROMISED = _TARGET > 0
_BASIC_TIER, _STANDARD_TIER = int(Tier.BASIC), int(Tier.STANDARD)
_CLASS_OF = np.array(
    [
        *(Class.BASIC,) * 4,
        *(Class.STANDARD, Class.PRESSING, Class.STANDARD_LATE, Class.STANDARD_LATE),
        *(Class.PREMIUM, Class.PREMIUM, Class.PREMIUM_LATE, Class.PREMIUM_LATE),
    ],
    dtype=np.int64,
)
"""By 4 * tier + 2 * late + presses."""
_LOOSE = np.array([one in (Class.BASIC, Class.PREMIUM_LATE, Class.STANDARD_LATE) for one in Class])
"""By class: no promise to keep."""


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
    allowance = total_us(jobs) * _IDLE_SHARE[jobs.tier]
    slack = allowance - (jobs.wall - jobs.ideal_now)
    if np.count_nonzero(jobs.tier == _BASIC_TIER):
        slack = np.where(_PROMISED[jobs.tier], slack, 4.0 * _MIDDLE)
    slack = np.minimum(np.maximum(slack, -_MIDDLE / 2), _MIDDLE / 2).astype(np.int64)
    margin = np.minimum(np.maximum(pressing * allowance, MINUTE), _MIDDLE / 2).astype(np.int64)
    cls = _classes(view, slack, margin)
    left = remaining_us(jobs)
    key = (cls << _CLASS_BIT) + _MIDDLE + _within(view, cls, left, aging_us)
    return Promise(cls, slack, left, key, view.now + slack - margin)


def _classes(view: View, slack: Column, margin: Column) -> Column:
    """A promise counts as broken only where the run time is known: a job that turns out longer can still catch up.

    While a standard row presses, running standard rows count as pressing too: to send one away for its equal would only
    swap their places.
    """
    jobs = view.jobs
    late = (slack < 0) & (jobs.expected > 0)
    presses = slack <= margin
    if np.count_nonzero(presses & ~late & (jobs.tier == _STANDARD_TIER) & jobs.waiting):
        presses |= jobs.active
    return _CLASS_OF[4 * jobs.tier + 2 * late.view(np.int8) + presses]


def _within(view: View, cls: Column, left: Column, aging_us: int) -> Column:
    """Order inside a class, in [0, 2**53]: the least work left first, which keeps the most promises for the device-time.

    Least slack first would keep none under overload, like earliest deadline first. A running row counts half, less what
    preempting it would lose, so that equals do not swap places; a waiting row without a promise to keep counts less with time.
    """
    jobs = view.jobs
    devices = np.maximum(jobs.demand, 1)
    work = left.astype(float) * devices
    stay = np.maximum(work / 2 - pause_us(jobs) * devices, 0.0)
    loose = _LOOSE[cls]
    if np.count_nonzero(loose):
        waited = np.where(loose, view.now - jobs.wait_since, 0)
        work = work / np.minimum(1.0 + waited / aging_us, _AGED)
    within = np.where(jobs.active, stay, work)
    return np.minimum(np.maximum(within, 0), _MIDDLE / 2).astype(np.int64)
