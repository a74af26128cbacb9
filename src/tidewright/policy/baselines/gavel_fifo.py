"""First in, first out on whatever kind of device is free: the baseline of Gavel that is blind to rates.

Narayanan et al., OSDI'20, section 7, by the rules of its artifact's simulator: a job keeps its kind to its end, a job that ends
leaves its place to the head of the queue, and the others get the last kind by name that has room. (The artifact draws a kind and
then uses the last one; where a kind is used up it closes the one drawn, so that others may be allocated twice. That is left out.)
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs

from ...model.cause import Code
from ...model.view import View
from ...plan.order import QueueOrder
from ...plan.plan import Plan, Wake
from ..preferences import Preferences
from ..state import recall, remember
from ..targets import plan_targets

_FIRST = Code.FIRST_IN_QUEUE()


class GavelFifoState(Struct, frozen=True):
    """``kinds``: job to the kind it was given."""

    kinds: dict[int, str] = {}


class GavelFifo:
    """Without settings."""

    name = "gavel-fifo"

    def plan(self, view: View) -> Plan:
        """Give kinds to as many jobs of the queue as there is room for, and devices of them to all that have one."""
        jobs, layout = view.jobs, view.layout
        kinds = _allocate(view, dict(recall(view, self.name, GavelFifoState()).kinds))
        counts = np.zeros((jobs.n, len(layout.kinds)), np.int32)
        for job, kind in kinds.items():
            row = jobs.row[job]
            counts[row, layout.kind_index(kind)] = jobs.demand[row]
        preferences = Preferences(key=jobs.id, waiting=jobs.waiting, why=lambda row: _FIRST, counts=counts)
        plan = plan_targets(view, preferences, Wake())
        return structs.replace(plan, state=remember(self.name, GavelFifoState(kinds)))

    def order(self, view: View) -> QueueOrder:
        """By submission."""
        return QueueOrder()


def _allocate(view: View, kinds: dict[int, str]) -> dict[int, str]:
    """Job to kind: those of before that have not ended, then the queue in order, until its head fits nowhere."""
    jobs, layout = view.jobs, view.layout
    free = {kind: layout.kind_devices[layout.kind_index(kind)] for kind in sorted(layout.kinds)}
    queue = sorted(job for job in jobs.row if job not in kinds)
    for job in sorted(kinds):
        kind = kinds[job]
        if job in jobs.row:
            free[kind] -= jobs.demand.item(jobs.row[job])
            continue
        del kinds[job]
        if queue and _demand(view, queue[0]) <= free[kind] and _runs_on(view, queue[0], kind):
            head = queue.pop(0)
            kinds[head] = kind
            free[kind] -= _demand(view, head)
    for job in queue:
        fitting = [kind for kind, devices in free.items() if devices >= _demand(view, job)]
        if not fitting:
            break
        if _runs_on(view, job, fitting[-1]):
            kinds[job] = fitting[-1]
            free[fitting[-1]] -= _demand(view, job)
    return kinds


def _demand(view: View, job: int) -> int:
    return int(view.jobs.demand[view.jobs.row[job]])


def _runs_on(view: View, job: int, kind: str) -> bool:
    return bool(view.jobs.kinds.item(view.jobs.row[job]) >> view.layout.kind_index(kind) & 1)
