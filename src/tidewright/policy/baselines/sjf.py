"""Shortest job first, without preemption: the least mean waiting time of a queue before one machine (Smith 1956)."""

from __future__ import annotations

from ...estimate.duration import remaining_us
from ...model.cause import Code
from ...model.table import Column
from ...model.view import View
from ...plan.order import OrderTerm, QueueOrder
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences, least_need


class Sjf:
    """By the whole run time, as estimated. ``skip``: a job that does not fit is passed over (Alibaba's simulator, NSDI'22);
    otherwise it is waited for (Helios, SC'21).
    """

    name = "sjf"

    def __init__(self, *, skip: bool = False) -> None:
        self.skip = skip

    def plan(self, view: View) -> Plan:
        """Start from the shortest job on."""
        jobs = view.jobs
        total = _total_us(view)
        preferences = Preferences(
            key=total,
            waiting=jobs.waiting,
            why=lambda row: Code.SHORTEST_JOB(int(total[row])),
            strict=not self.skip,
        )
        composer = Composer(view, preferences)
        composer.fill()
        composer.grow()
        if self.skip or not composer.unplaced:
            return composer.plan(Wake())
        return composer.plan(Wake(min_free=least_need(view, composer.unplaced)))

    def order(self, view: View) -> QueueOrder:
        """By whole run time."""
        total = _total_us(view)
        return QueueOrder(
            (OrderTerm(Code.AHEAD_BY_RUN_TIME, total, lambda row: Code.RUN_TIME_IN_ALL(int(total[row]))),)
        )


def _total_us(view: View) -> Column:
    """The whole run time of each row, as estimated."""
    total: Column = view.jobs.ideal_now + remaining_us(view.jobs)
    return total
