"""Shortest remaining time first, preemptive: the least mean completion time on one machine (Schrage 1968)."""

from __future__ import annotations

import numpy as np

from ...estimate.duration import remaining_us
from ...model.cause import Code
from ...model.view import View
from ...plan.order import OrderTerm, QueueOrder
from ...plan.plan import Plan
from ..preferences import Preferences, suspendable
from .preemptive import preemptive_plan


class Srtf:
    """With true run times in ``expected`` (as in replays of traces) this is the oracle; else it works on estimates.

    ``min_run_us``: a job is not preempted before it has run so long.
    """

    name = "srtf"

    def __init__(self, *, min_run_us: int = 0) -> None:
        self.min_run_us = min_run_us

    def plan(self, view: View) -> Plan:
        """The pool goes to the rows with the least run time left; victims are those with the most."""
        jobs = view.jobs
        left = remaining_us(jobs)
        preferences = Preferences(
            key=left,
            waiting=jobs.waiting,
            why=lambda row: Code.SHORTEST_REMAINING(int(left[row])),
            victims=suspendable(view, self.min_run_us),
            cost=np.maximum(jobs.held_milli, 1) / left,
        )
        return preemptive_plan(view, preferences, self.min_run_us)

    def order(self, view: View) -> QueueOrder:
        """By run time left."""
        left = remaining_us(view.jobs)
        return QueueOrder((OrderTerm(Code.AHEAD_BY_REMAINING, left, lambda row: Code.RUN_TIME_LEFT(int(left[row]))),))
