"""Strict first in, first out: no job starts before one that was submitted earlier. The baseline of every comparison."""

from __future__ import annotations

from ...model.cause import Code
from ...model.view import View
from ...plan.order import QueueOrder
from ...plan.plan import Plan, Wake
from ..compose import Composer
from ..preferences import Preferences, least_need

_FIRST = Code.FIRST_IN_QUEUE()
_ALWAYS = 1 << 62


class Fifo:
    """Job ids are given in order of arrival, so the id is the key; only the head and the jobs started are ever touched."""

    name = "fifo"
    reads_estimates = False

    def plan(self, view: View) -> Plan:
        """Start from the head until it does not fit."""
        jobs = view.jobs
        preferences = Preferences(key=jobs.id, waiting=jobs.waiting, why=lambda row: _FIRST, strict=True)
        composer = Composer(view, preferences)
        composer.fill()
        composer.grow()
        if not composer.unplaced:
            return composer.plan(Wake())
        # Only a job that comes back ahead of the head, from its user's hold say, is served before it.
        head = jobs.id.item(composer.unplaced[0])
        return composer.plan(Wake(min_free=least_need(view, composer.unplaced), behind=head, behind_until=_ALWAYS))

    def order(self, view: View) -> QueueOrder:
        """By submission."""
        return QueueOrder()
