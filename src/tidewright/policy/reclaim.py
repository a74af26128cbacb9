"""Devices that a service lends to other jobs, and takes back within its deadline.

As in Lyra (EuroSys'23), which lends idle serving capacity to training and reclaims it at the least cost of preemption. A waiting
replica takes devices from jobs of lower tiers that release them in time, however short they have run: the load that it is made
for does not wait until their pause has paid. And jobs that could not release them in time do not start on devices that the
service could still claim. See docs/why/reclaim.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import structs

from ..base.units import WHOLE_DEVICE
from ..model.cause import Code
from ..model.job import Level
from ..model.node import bits
from ..model.service import ReclaimTerms
from ..model.table import Column
from ..model.view import View
from ..plan.reasons import Blocked, Reason
from .compose import Composer
from .preferences import suspendable

_COOPERATIVE, _FULL = int(Level.COOPERATIVE), int(Level.FULL)


class Reclaim:
    """Of one view. ``key``: the policy's order of rows."""

    def __init__(self, view: View, key: Column) -> None:
        self.view, self.jobs, self._key = view, view.jobs, key
        self._kept_out: dict[int, ReclaimTerms] = {}
        """Jobs that may not start on what a service could still claim."""

    def serve(self, composer: Composer, able: Column, cost: Callable[[], Column]) -> None:
        """Place waiting replicas in order: on free devices, else on those that rows of ``able`` release in time."""
        rows = {
            self.jobs.row[job]: terms for terms in self.view.reclaims for job in terms.replicas if job in self.jobs.row
        }
        pending = composer.preferences.waiting & ~composer.touched if rows else None
        for row in sorted(rows, key=lambda row: (self._key.item(row), self.jobs.id.item(row))):
            if pending is not None and pending[row]:
                lesser = able & (self.jobs.tier < self.jobs.tier[row]) & (self._key > self._key[row])
                within_us = rows[row].deadline_us
                composer.force(row, lesser & self.in_time(within_us), cost, within_us)

    def in_time(self, deadline_us: int) -> Column:
        """Running rows that release their devices within so long: as measured or expected, or frozen. Shape (n,), bool."""
        jobs = self.jobs
        able: Column = suspendable(self.view)
        late = able & (jobs.save_us > deadline_us)
        if np.count_nonzero(late):
            able = able.copy()
            for row in late.nonzero()[0].tolist():
                able[row] = jobs.level[row] == _FULL and self.view.freezes(jobs.id.item(row))
        return able

    def waiting(self) -> Column:
        """Rows that may be placed: without those that could not release in time what a service could still claim."""
        waiting: Column = self.jobs.waiting
        for terms in self.view.reclaims:
            kinds = self._kinds(terms)
            left = self._lendable(terms, kinds) - self._claims(terms)
            rows = (waiting & self._unyielding(terms) & (self.jobs.kinds & kinds > 0)).nonzero()[0]
            for row in rows[np.lexsort((self.jobs.id[rows], self._key[rows]))].tolist():
                need = max(self.jobs.demand.item(row), 1)
                if need <= left:
                    left -= need
                    continue
                if waiting is self.jobs.waiting:
                    waiting = waiting.copy()
                waiting[row] = False
                self._kept_out[self.jobs.id.item(row)] = terms
        return waiting

    def _kinds(self, terms: ReclaimTerms) -> int:
        """The set of kinds of devices that replicas may run on."""
        return self.view.layout.kind_mask(terms.kinds)

    def _claims(self, terms: ReclaimTerms) -> int:
        """Devices that the service could still claim, beyond what its replicas have."""
        jobs = self.jobs
        rows = [jobs.row[job] for job in terms.replicas if job in jobs.row]
        having = sum(bool(jobs.active[row] or jobs.reserved[row]) for row in rows)
        return max(0, terms.most - having) * terms.devices

    def _lendable(self, terms: ReclaimTerms, kinds: int) -> int:
        """Devices that are free, or held by rows of lower tiers that release them in time."""
        board = self.view.board()
        free = sum(board.free_total[kind] for kind in bits(kinds))
        yielding = self.in_time(terms.deadline_us) & (self.jobs.tier < terms.tier)
        held = 0
        for row in yielding.nonzero()[0].tolist():
            node = self.view.allocations[self.jobs.id.item(row)][0].node
            if kinds >> self.view.layout.node_kind[node] & 1:
                held += self.jobs.held_milli.item(row)
        return free + held // WHOLE_DEVICE

    def _unyielding(self, terms: ReclaimTerms) -> Column:
        """Waiting rows of lower tiers that would not release devices in time, as far as is known before they start.

        Images count as in time: what they take is learnt, and who takes least is preempted first.
        """
        jobs = self.jobs
        late: Column = (jobs.level <= _COOPERATIVE) & (jobs.tier < terms.tier)
        for row in (late & jobs.waiting).nonzero()[0].tolist():
            late[row] = jobs.save_us[row] > terms.deadline_us if jobs.level[row] else not self._images_there(row)
        return late

    def _images_there(self, row: int) -> bool:
        """Whether a row of level NONE, that has no devices yet, will be of level FULL on those that it gets."""
        spec = self.view.specs[self.jobs.id.item(row)]
        return spec.preempt != "none" and any(node.full for node in self.view.layout.nodes)

    def explained(self, blocked: Blocked) -> Blocked:
        """Why a row may not start, if that is what a service could still claim."""
        terms = self._kept_out.get(blocked.job)
        if terms is None:
            return blocked
        why = Code.LENT(terms.service, terms.deadline_us)
        return structs.replace(blocked, reason=Reason.RESERVED, why=why)

    @property
    def kept_out(self) -> list[int]:
        """Rows that ``waiting`` has left out."""
        return [self.jobs.row[job] for job in self._kept_out]
