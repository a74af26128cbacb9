"""Which rows are entitled to devices: the most wanted ones that fit the pool's capacity together, before any is moved."""

from __future__ import annotations

import numpy as np

from ..base.units import WHOLE_DEVICE
from ..model.board import Board
from ..model.table import Column
from ..model.view import View
from ..placement.facts import facts
from .preferences import first_rows, need_milli


def entitled(
    view: View, board: Board, key: Column, waiting: Column, may_preempt: Column, movable: Column
) -> tuple[Column, Column]:
    """The most wanted rows that fit the pool's capacity together, in order, and flags of them with shape (n,).

    Waiting rows that may not preempt need no capacity of their own: free devices are enough for them.
    """
    running, rows = movable.nonzero()[0], (movable | waiting).nonzero()[0]
    count, least = 2 * len(running) + 256, int(may_preempt is waiting)
    while True:
        order = first_rows(rows, key, view.jobs.id, count)
        need = need_milli(view, order)
        if may_preempt is not waiting:
            need[(waiting & ~may_preempt)[order]] = 0
        taken, left = chosen(view, board, order, need, running, least)
        if count >= len(rows) or left <= 0:
            break
        count = len(rows)
    selected = np.zeros(view.jobs.n, bool)
    order = order[taken]
    selected[order] = True
    return order, selected


def chosen(
    view: View, board: Board, order: Column, need: Column, movable: Column, least: int = 0
) -> tuple[Column, int]:
    """Flags over ``order`` of the rows that fit together, and the thousandths of devices left.

    Capacity is what is free, of shared devices too, plus what the ``movable`` rows hold; rows that do not fit are passed over.
    ``need`` has the shape of ``order``, and none of it is below ``least``.
    """
    if len(view.layout.kinds) <= 1:
        free = WHOLE_DEVICE * sum(board.free_total) + (sum(board.spare_milli()) if board.partial else 0)
        capacity = free + int(view.jobs.held_milli[movable].sum())
        return _one_kind(need, capacity, least)
    return _several_kinds(view, board, order, need, movable)


def _one_kind(need: Column, left: int, least: int) -> tuple[Column, int]:
    """``least``: no row needs less."""
    taken = np.zeros(len(need), bool)
    total = need.cumsum()
    fit = int(total.searchsorted(left, side="right"))
    taken[:fit] = True
    left -= int(total[fit - 1]) if fit else 0
    if left < least:
        return taken, left
    pending = (need[fit + 1 :] <= left).nonzero()[0] + (fit + 1)
    while len(pending):
        total = need[pending].cumsum()
        fit = int(total.searchsorted(left, side="right"))
        taken[pending[:fit]] = True
        left -= int(total[fit - 1]) if fit else 0
        pending = pending[fit + 1 :]
        pending = pending[need[pending] <= left]
    return taken, left


def _several_kinds(view: View, board: Board, order: Column, need: Column, movable: Column) -> tuple[Column, int]:
    jobs = view.jobs
    left = [WHOLE_DEVICE * free + more for free, more in zip(board.free_total, board.spare_milli(), strict=True)]
    kind_of = facts(view.layout).kind_of
    placed: dict[int, int] = {}
    for row in movable.tolist():
        placed[row] = kind = int(kind_of[view.allocations[int(jobs.id[row])][0].node])
        left[kind] += int(jobs.held_milli[row])
    taken = np.zeros(len(order), bool)
    for at, (row, milli, kinds) in enumerate(
        zip(order.tolist(), need.tolist(), jobs.kinds[order].tolist(), strict=True)
    ):
        options = (placed[row],) if row in placed else range(len(left))
        for kind in options:
            if kinds >> kind & 1 and left[kind] >= milli:
                left[kind] -= milli
                taken[at] = True
                break
        if not any(left):
            break
    return taken, sum(left)
