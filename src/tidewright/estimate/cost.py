"""What making a job give its devices back loses."""

from __future__ import annotations

import numpy as np

from ..base.units import SECOND
from ..model.job import Level
from ..model.table import Column
from ..model.view import JobColumns

_REQUEUE = int(Level.REQUEUE)

LAUNCH_US = 3 * SECOND
"""Starting an attempt anew, paid by jobs that lose their process: interpreter, imports, process group."""

PAYBACK = 5
"""A job runs for so many times the pause that preempting it costs, so that at most a sixth of its time is lost to pauses."""


def pause_us(jobs: JobColumns) -> Column:
    """Run time lost by one suspension and the resume after it, per row. Shape (n,), float64.

    ``save_us + restore_us`` as measured; a job of level REQUEUE starts anew and loses all it has computed.
    """
    known: Column | None = jobs.memo.get("pause_us")
    if known is None:
        known = (jobs.save_us + jobs.restore_us).astype(float)
        anew = jobs.level == _REQUEUE
        if np.count_nonzero(anew):
            known = np.where(anew, known + LAUNCH_US + jobs.ideal_now, known)
        jobs.memo["pause_us"] = known
    return known


def victim_cost(jobs: JobColumns) -> Column:
    """Device-microseconds lost by suspending each row. Shape (n,), float64 (sums would overflow 64-bit integers)."""
    return (pause_us(jobs) + 1.0) * np.maximum(jobs.held_milli, 1) / 1000.0


def worth_running_us(jobs: JobColumns, most_us: int) -> Column:
    """Least run time, per row, before preempting it again is fair: PAYBACK times its pause, at most ``most_us``.

    ``most_us`` also where nothing is known of the pause. Shape (n,), int64.
    """
    known: Column | None = jobs.memo.get(("worth_running_us", most_us))
    if known is None:
        pause = pause_us(jobs)
        known = np.where(pause > 0, np.minimum(PAYBACK * pause, most_us), most_us).astype(np.int64)
        jobs.memo["worth_running_us", most_us] = known
    return known
