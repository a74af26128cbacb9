"""First in, first out on whatever kind of device is free: the baseline of Gavel that is blind to rates.

Narayanan et al., OSDI'20, section 7, by the rules of its artifact's simulator: a job keeps its kind to its end, a job that ends
leaves its place to the head of the queue, and the others get the last kind by name that has room. (The artifact draws a kind and
then uses the last one; where a kind is used up it closes the one drawn, so that others may be allocated twice. That is left out.)
"""

from __future__ import annotations

from collections import deque

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
        given = _allocate(view, recall(view, self.name, GavelFifoState()).kinds)
        counts = np.zeros((jobs.n, len(layout.kinds)), np.int32)
        for job, (kind, devices) in given.items():
            counts[jobs.row[job], layout.kind_index(kind)] = devices
        preferences = Preferences(key=jobs.id, waiting=jobs.waiting, why=lambda row: _FIRST, counts=counts)
        plan = plan_targets(view, preferences, Wake())
        kinds = {job: kind for job, (kind, _) in given.items()}
        return structs.replace(plan, state=remember(self.name, GavelFifoState(kinds)))

    def order(self, view: View) -> QueueOrder:
        """By submission."""
        return QueueOrder()


def _allocate(view: View, kinds: dict[int, str]) -> dict[int, tuple[str, int]]:
    """Job to kind and number of devices: those of ``kinds`` that have not ended keep theirs, then the queue in order, until its
    head fits nowhere."""
    jobs, layout = view.jobs, view.layout
    free = {kind: layout.kind_devices[layout.kind_index(kind)] for kind in sorted(layout.kinds)}
    queue = deque(sorted(job for job in jobs.row if job not in kinds))
    given: dict[int, tuple[str, int]] = {}

    def give(job: int, kind: str, devices: int) -> None:
        given[job] = kind, devices
        free[kind] -= devices

    for job, kind in sorted(kinds.items()):
        if job in jobs.row:
            give(job, kind, _devices(view, job, kind))
        elif queue and 0 < (devices := _devices(view, queue[0], kind)) <= free[kind]:
            give(queue.popleft(), kind, devices)
    for job in queue:
        asked = {kind: _devices(view, job, kind) for kind in free}
        fitting = [kind for kind, devices in asked.items() if 0 < devices <= free[kind]]
        if not fitting:
            break
        give(job, fitting[-1], asked[fitting[-1]])
    return given


def _devices(view: View, job: int, kind: str) -> int:
    """How many devices of ``kind`` a job is to have: all that it asks for, or as many as it could have; 0: it runs on none."""
    jobs, row, at = view.jobs, view.jobs.row[job], view.layout.kind_index(kind)
    floor: int = jobs.floor.item(row)
    most = view.layout.most(at, placement_of(view.specs[job]) == "one-node")
    if not jobs.kinds.item(row) >> at & 1 or floor > most:
        return 0
    return max(floor, useful(most, jobs.ranks.item(row), jobs.demand.item(row)))
