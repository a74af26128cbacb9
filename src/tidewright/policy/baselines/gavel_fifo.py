"""First in, first out on whatever kind of device is free: the baseline of Gavel that is blind to rates.

Narayanan et al., OSDI'20, section 7, by the rules of its artifact's simulator: a job keeps its kind to its end, a job that ends
leaves its place to the head of the queue, and the others get the last kind by name that has room. (The artifact draws a kind and
then uses the last one; where a kind is used up it closes the one drawn, so that others may be allocated twice. That is left out.)
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, structs

from ...estimate.speed import useful
from ...model.cause import Code
from ...model.view import View
from ...plan.order import QueueOrder
from ...plan.plan import Plan, Wake
from ...plan.request import placement_of
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
            counts[row, layout.kind_index(kind)] = _devices(view, job, kind)
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
            free[kind] -= _devices(view, job, kind)
            continue
        del kinds[job]
        if queue and 0 < _devices(view, queue[0], kind) <= free[kind]:
            head = queue.pop(0)
            kinds[head] = kind
            free[kind] -= _devices(view, head, kind)
    for job in queue:
        fitting = [kind for kind, devices in free.items() if 0 < _devices(view, job, kind) <= devices]
        if not fitting:
            break
        kinds[job] = fitting[-1]
        free[fitting[-1]] -= _devices(view, job, fitting[-1])
    return kinds


def _devices(view: View, job: int, kind: str) -> int:
    """How many devices of ``kind`` a job is to have: all that it asks for, or as many as it could have; 0: it runs on none."""
    jobs, layout = view.jobs, view.layout
    row, at = jobs.row[job], layout.kind_index(kind)
    floor, demand, ranks = int(jobs.floor[row]), int(jobs.demand[row]), int(jobs.ranks[row])
    most = layout.kind_biggest[at] if placement_of(view.specs[job]) == "one-node" else layout.kind_devices[at]
    if not jobs.kinds.item(row) >> at & 1 or floor > most:
        return 0
    return demand if demand <= most else max(floor, useful(most, ranks, demand))
