"""Fewest devices first, preemptive: the ``sjf`` of the Tiresias simulator (Gu et al., NSDI'19), which sorts by GPUs."""

from __future__ import annotations

import numpy as np

from ...model.cause import Code
from ...model.view import View
from ...plan.order import OrderTerm, QueueOrder
from ...plan.plan import Plan
from ..preferences import Preferences, suspendable
from .preemptive import preemptive_plan

_DEVICES_BIT = 40
"""Keys are the devices above the id: among equals the earlier job goes first, running or not."""


class Smallest:
    """Needs no run times. ``min_run_us``: a job is not preempted before it has run so long."""

    name = "smallest"

    def __init__(self, *, min_run_us: int = 0) -> None:
        self.min_run_us = min_run_us

    def plan(self, view: View) -> Plan:
        """The pool goes to the rows with the fewest devices; victims are those with the most."""
        jobs = view.jobs
        preferences = Preferences(
            key=(jobs.demand.astype(np.int64) << _DEVICES_BIT) + jobs.id,
            waiting=jobs.waiting,
            why=lambda row: Code.FEWEST_DEVICES(int(jobs.demand[row])),
            victims=suspendable(view, self.min_run_us),
            cost=1.0 / np.maximum(jobs.held_milli, 1),
        )
        return preemptive_plan(view, preferences, self.min_run_us)

    def order(self, view: View) -> QueueOrder:
        """By devices."""
        demand = view.jobs.demand
        return QueueOrder((OrderTerm(Code.AHEAD_BY_DEVICES, demand, lambda row: Code.DEVICES_ASKED(int(demand[row]))),))
