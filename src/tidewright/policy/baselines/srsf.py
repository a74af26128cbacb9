"""Shortest remaining service first, preemptive: run time left times devices (``shortest-gpu`` of Tiresias, NSDI'19; Tiresias'
paper, section 2.2, has it as SRSF)."""

from __future__ import annotations

import numpy as np

from ...estimate.duration import remaining_us
from ...model.cause import Code
from ...model.table import Column
from ...model.view import JobColumns, View
from ...plan.order import OrderTerm, QueueOrder
from ...plan.plan import Plan
from ..preferences import Preferences, suspendable
from .preemptive import preemptive_plan


class Srsf:
    """With true run times in ``expected`` (as in replays of traces) this is the oracle; else it works on estimates.

    ``min_run_us``: a job is not preempted before it has run so long.
    """

    name = "srsf"

    def __init__(self, *, min_run_us: int = 0) -> None:
        self.min_run_us = min_run_us

    def plan(self, view: View) -> Plan:
        """The pool goes to the rows with the least device-time left; victims are those with the most."""
        jobs = view.jobs
        left = remaining_us(jobs)
        work = _work(jobs, left)
        preferences = Preferences(
            key=work,
            waiting=jobs.waiting,
            why=lambda row: Code.LEAST_WORK_LEFT(int(jobs.demand[row]), int(left[row])),
            victims=suspendable(view, self.min_run_us),
            cost=np.maximum(jobs.held_milli, 1) / np.maximum(work, 1.0),
        )
        return preemptive_plan(view, preferences, self.min_run_us)

    def order(self, view: View) -> QueueOrder:
        """By device-time left."""
        work = _work(view.jobs, remaining_us(view.jobs))
        return QueueOrder((OrderTerm(Code.AHEAD_BY_WORK, work, lambda row: Code.DEVICE_TIME_LEFT(int(work[row]))),))


def _work(jobs: JobColumns, left: Column) -> Column:
    """Device-microseconds left of each row."""
    work: Column = left.astype(float) * jobs.demand
    return work
