"""What making a job give its devices back loses."""

from __future__ import annotations

import numpy as np

from ..base.units import SECOND
from ..model.job import Level
from ..model.table import Column
from ..model.view import JobColumns

LAUNCH_US = 3 * SECOND
"""Starting an attempt anew, paid by jobs that lose their process: interpreter, imports, process group."""

PAYBACK = 5
"""A job runs for so many times the pause that preempting it costs, so that at most a sixth of its time is lost to pauses."""


def pause_us(jobs: JobColumns) -> Column:
    """Run time lost by one suspension and the resume after it, per row. Shape (n,), float64.

    ``save_us + restore_us`` as measured; a job of level REQUEUE starts anew and loses all it has computed.
    """
    pause = (jobs.save_us + jobs.restore_us).astype(float)
    return np.where(jobs.level == int(Level.REQUEUE), pause + LAUNCH_US + jobs.ideal_now, pause)


def victim_cost(jobs: JobColumns) -> Column:
    """Device-microseconds lost by suspending each row. Shape (n,), float64 (sums would overflow 64-bit integers)."""
    return (pause_us(jobs) + 1.0) * np.maximum(jobs.held_milli, 1) / 1000.0


def worth_running_us(jobs: JobColumns, most_us: int) -> Column:
    """Least run time, per row, before preempting it again is fair: PAYBACK times its pause, at most ``most_us``.

    ``most_us`` also where nothing is known of the pause. Shape (n,), int64.
    """
    pause = pause_us(jobs)
    return np.where(pause > 0, np.minimum(PAYBACK * pause, most_us), most_us).astype(np.int64)
