"""Which waiting jobs are served before a job, and why: by the order that the policy itself says."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from ..model.cause import Cause, Code
from ..model.table import Column
from ..model.view import View
from ..plan.order import OrderedPlanner, QueueOrder
from ..plan.plan import Planner


class Ahead(Struct, frozen=True):
    """``jobs``: the waiting jobs served first, the first one first; ``reasons``: how many of them for which
    reason; ``first``: what puts the first one before the job, of both. The last two as far as the policy says."""

    jobs: tuple[int, ...] = ()
    reasons: tuple[Cause, ...] = ()
    first: Cause | None = None

    @property
    def count(self) -> int:
        """How many they are."""
        return len(self.jobs)


def ahead_of(view: View, planner: Planner, job: int) -> Ahead:
    """The waiting jobs that the planner serves before ``job``; by submission where it does not say in which order it serves."""
    jobs, row = view.jobs, view.jobs.row[job]
    known = planner.order(view) if isinstance(planner, OrderedPlanner) else None
    order = QueueOrder() if known is None else known
    rows = np.flatnonzero(jobs.waiting & (np.arange(jobs.n) != row))
    if order.queue is not None:
        rows = rows[order.queue[rows] == order.queue[row]]
    counts: dict[Code, int] = {}
    before: list[Column] = []
    equal = rows
    for term in order.terms:
        mine = term.values[row]
        values = term.values[equal]
        first = equal[values < mine]
        if len(first):
            counts[term.code] = counts.get(term.code, 0) + len(first)
            before.append(first)
        equal = equal[values == mine]
    elder = equal[jobs.id[equal] < job]
    if len(elder):
        before.append(elder)
        counts[Code.AHEAD_BY_AGE] = counts.get(Code.AHEAD_BY_AGE, 0) + len(elder)
    served = _served(jobs.id, order, before)
    if known is None or not served:
        return Ahead(served)
    return Ahead(served, tuple(code(count) for code, count in counts.items()), _compared(view, order, served[0], job))


def _compared(view: View, order: QueueOrder, first: int, job: int) -> Cause | None:
    """By what ``first`` comes before ``job``: what the first term that tells them apart is of both."""
    jobs = view.jobs
    theirs, mine = jobs.row[first], jobs.row[job]
    for term in order.terms:
        if term.values[theirs] != term.values[mine]:
            return Code.FIRST_AHEAD(first, term.say(theirs), term.say(mine)) if term.say is not None else None
    return Code.FIRST_AHEAD(first, _age(view, theirs), _age(view, mine))


def _age(view: View, row: int) -> Cause:
    return Code.SUBMITTED_AGO(view.now - view.jobs.submit.item(row))


def _served(ids: Column, order: QueueOrder, before: list[Column]) -> tuple[int, ...]:
    if not before:
        return ()
    rows = np.concatenate(before)
    keys = [ids[rows], *(term.values[rows] for term in reversed(order.terms))]
    return tuple(ids[rows[np.lexsort(keys)]].tolist())
