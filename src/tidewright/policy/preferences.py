"""What a policy prefers, row by row. Rows are those of ``view.jobs``; a smaller key is more wanted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from ..base.units import WHOLE_DEVICE
from ..model.cause import Cause
from ..model.job import Level, State
from ..model.table import Column
from ..model.view import View
from ..placement.facts import facts

_RUNNING, _NONE = int(State.RUNNING), int(Level.NONE)


class Preferences(Struct, frozen=True, kw_only=True):
    """The preferences of a policy for one view. Columns have shape (n,).

    ``key`` orders rows, the most wanted first (smallest key; equal keys go by id). ``waiting`` are the rows that may be
    placed. With ``victims`` the policy is preemptive: these running rows may be preempted for a row with a smaller key,
    at ``cost`` device-microseconds each; ``may_preempt`` says which waiting rows may do so (default: all). ``victims``
    and ``cost`` may be functions: most plans of a full pool end before they ask for either.
    ``strict``: no row passes one that does not fit. ``why`` says why a row is moved.

    ``counts``, of shape (n, kinds), is for policies that work out whole allocations (``policy.targets``): how many devices a row
    is to have if it gets them of that kind; 0: none of it.
    """

    key: Column
    waiting: Column
    why: Callable[[int], Cause | str]
    strict: bool = False
    victims: Column | Callable[[], Column] | None = None
    may_preempt: Column | None = None
    cost: Column | Callable[[], Column] | None = None
    counts: Column | None = None


def need_milli(view: View, rows: Column) -> Column:
    """Thousandths of devices each of ``rows`` needs at least: its floor, or its share of a device. int64."""
    jobs = view.jobs
    need: Column = np.multiply(jobs.floor[rows], WHOLE_DEVICE, dtype=np.int64)
    memory = jobs.memory[rows]
    if np.count_nonzero(memory):
        share = np.ceil(memory / (facts(view.layout).least_memory or 1) * WHOLE_DEVICE)
        need = np.where(memory > 0, np.clip(share, 1, WHOLE_DEVICE).astype(np.int64), need)
    if jobs.resourced:
        need = np.where(jobs.gpu_milli[rows] > 0, jobs.gpu_milli[rows], need)
    return need


def suspendable(view: View, min_run_us: int | Column = 0) -> Column:
    """Running rows that can be suspended and have had their devices for ``min_run_us``. Shape (n,), bool."""
    jobs = view.jobs
    able: Column | None = jobs.memo.get("suspendable")
    if able is None:
        able = (jobs.state == _RUNNING) & (jobs.level > _NONE) & ~jobs.reserved
        if view.any_closed:
            # What a job on a closed device releases is of no use to another, and it is being moved anyway.
            for row in np.flatnonzero(able).tolist():
                able[row] = view.in_service(jobs.id.item(row))
        able.flags.writeable = False
        jobs.memo["suspendable"] = able
    return able & (view.now - jobs.run_since >= min_run_us) if np.count_nonzero(min_run_us) else able


def first_rows(rows: Column, key: Column, ids: Column, count: int) -> Column:
    """The ``count`` most wanted of ``rows``, in order; a partition first, so that long queues are never sorted."""
    if len(rows) > count:
        mine = key[rows]
        last = np.partition(mine, count - 1)[count - 1]
        sure, tied = rows[mine < last], rows[mine == last]
        more = count - len(sure)
        if len(tied) > more:  # among equals the lowest ids, not whichever a partition leaves in front
            tied = tied[np.argpartition(ids[tied], more - 1)[:more]]
        rows = np.concatenate([sure, tied])
    keys = key[rows]
    order = keys.argsort()
    ranked = keys[order]
    if np.count_nonzero(ranked[1:] == ranked[:-1]):
        order = np.lexsort((ids[rows], keys))
    ordered: Column = rows[order]
    return ordered


def least(rows: Column, key: Column, ids: Column) -> int:
    """The most wanted of ``rows``."""
    mine = key[rows]
    low = mine.min()
    tied = rows[mine == low]
    return int(tied[ids[tied].argmin()])


def least_need(view: View, rows: list[int]) -> int:
    """Fewest devices that would let one of ``rows`` start (a share counts as none): what a wake may wait for."""
    return min((0 if view.jobs.shares[row] else int(view.jobs.floor[row]) for row in rows), default=0)


def median(values: Column) -> float:
    """As ``np.median``, which takes longer than the whole of a plan's sorting; 0 of nothing."""
    half, odd = divmod(len(values), 2)
    if not len(values):
        return 0.0
    ordered = np.sort(values)
    return float(ordered[half] if odd else (ordered[half - 1] + ordered[half]) / 2)
