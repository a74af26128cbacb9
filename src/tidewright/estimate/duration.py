"""How much run time each job still needs, from what its user said or from how long it has run."""

from __future__ import annotations

import math

import numpy as np

from ..base.units import MINUTE
from ..model.table import Column
from ..model.view import JobColumns

LEAST_US = 10 * MINUTE
"""Remaining run time of a job nothing is known of. The median Philly job runs 13 minutes (Jeon et al., ATC'19)."""
SHORTEST_US = MINUTE
"""The same where the least that it may be is asked for: a tenth of the Philly jobs run for less."""
OVERRUN_US = MINUTE


def remaining_us(jobs: JobColumns) -> Column:
    """Full-speed microseconds each row still needs, at least 1. Shape (n,), int64.

    From ``expected``; else from what similar jobs took (their median, then their ninth decile); else from ``limit``; else as
    long again as it has run, at least ten minutes (the heavy-tail rule: the longer it ran, the longer it will). An estimate
    that was overrun is stretched by the overrun, at least a minute.
    """
    left = _as_estimated(jobs)
    if left is not None:
        return left
    foretold = foretold_us(jobs)
    known = np.where(jobs.expected > 0, jobs.expected, np.where(foretold > 0, foretold, jobs.limit))
    return _left(known, jobs.ideal_now)


def foretold_us(jobs: JobColumns) -> Column:
    """Run time of similar jobs that took longer than the row has run already; 0 where none is known. Shape (n,), int64."""
    done = jobs.ideal_now
    found: Column = np.where(jobs.predicted > done, jobs.predicted, jobs.predicted_high)
    return np.where(found > done, found, 0)


def total_us(jobs: JobColumns, sigma: float = 0.0, sigmas: float = 0.0) -> Column:
    """Full-speed microseconds of each row's whole run as SLA promises are judged by it. Shape (n,), int64.

    ``sigmas`` standard deviations below (negative) or above the estimate, where estimates are off by ``sigma``. A limit is no
    estimate: users ask for days and run for minutes, and a promise judged by the limit looks safe until it is lost. So what
    similar jobs took is used where no estimate was given, or the heavy-tail rule, and the limit only caps it.
    """
    if not sigma and _as_estimated(jobs) is not None:
        return jobs.expected
    done = jobs.ideal_now
    foretold = np.where(jobs.predicted_low > done, jobs.predicted_low, 0) if sigmas < 0 else foretold_us(jobs)
    known = np.where(jobs.expected > 0, _scaled(jobs.expected, sigmas * sigma), foretold).astype(np.int64)
    total = done + _left(known, done, SHORTEST_US if sigmas < 0 else LEAST_US)
    return np.where((jobs.expected == 0) & (jobs.limit > 0), np.minimum(total, np.maximum(jobs.limit, done + 1)), total)


def _scaled(expected: Column, by: float) -> Column:
    """Estimates times e to the power of ``by``; a thousand years at most."""
    found: Column = np.minimum(expected * math.exp(min(max(by, -50.0), 50.0)), 2.0**55)
    return found


def _as_estimated(jobs: JobColumns) -> Column | None:
    """What is left by the estimates alone where every one was given and none overrun, by far the commonest case; else None."""
    if "as_estimated" not in jobs.memo:
        given = np.count_nonzero(jobs.expected) == jobs.n
        left = jobs.expected - jobs.ideal_now if given else None
        jobs.memo["as_estimated"] = left if left is not None and np.count_nonzero(left > 0) == jobs.n else None
    found: Column | None = jobs.memo["as_estimated"]
    return found


def _left(known: Column, done: Column, least_us: int = LEAST_US) -> Column:
    left = np.where(known > 0, known - done, np.maximum(done, least_us))
    return np.where(left > 0, left, np.maximum(-left, OVERRUN_US))
