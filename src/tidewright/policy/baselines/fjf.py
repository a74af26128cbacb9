"""Fit job first: in order of arrival, but a job that does not fit is passed over, not waited for. Large jobs can starve.

The ``fjf`` of the Tiresias simulator (Gu et al., NSDI'19) and the FIFO of Alibaba's (Weng et al., NSDI'22).
"""

from __future__ import annotations

from ...model.cause import Code
from ...model.view import View
from ...plan.order import QueueOrder
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences

_FITS = Code.FIRST_THAT_FITS()


class FitJobFirst:
    """Never preempts, and needs no run times."""

    name = "fjf"

    def plan(self, view: View) -> Plan:
        """Start every waiting job that fits, the earliest first."""
        jobs = view.jobs
        composer = Composer(view, Preferences(key=jobs.id, waiting=jobs.waiting, why=lambda row: _FITS))
        composer.fill()
        composer.grow()
        return composer.plan(Wake())

    def order(self, view: View) -> QueueOrder:
        """By submission."""
        return QueueOrder()
