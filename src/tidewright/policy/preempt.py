"""Devices freed by preempting less wanted rows: the candidates, found no sooner than a row needs them.

Most pools are asked for one device at a time, which one vector search answers; prices per node are worked out
(``placement.preemption``) only when a plan needs more.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np

from ..base.units import WHOLE_DEVICE
from ..estimate.cost import victim_cost
from ..model.board import ALL_NODES, Board
from ..model.job import Level
from ..model.node import Allocation, Part, without_memory
from ..model.table import Column
from ..model.view import View
from ..placement.could_hold import could_hold, devices_on
from ..placement.find import lowest
from ..placement.preemption import Preemption, PreemptionCandidate, PreemptionIndex
from ..plan.request import Request
from .preferences import Preferences

_SELECTED_COST = 8.0
"""How many times dearer a victim is that is entitled to its devices than one that is not."""

_REQUEUE = int(Level.REQUEUE)
_TIED = 64
"""Equally cheap victims compared one by one; among more, prices per node are faster."""


def candidate_of(view: View, board: Board, row: int, cost: float) -> PreemptionCandidate:
    """A running row, of a level above NONE, as a candidate for preemption."""
    jobs = view.jobs
    allocation = view.allocations[jobs.id.item(row)]
    level, held = jobs.level.item(row), jobs.held.item(row)
    spare = max(held - jobs.floor.item(row), 0)
    if any(part.resources is not None for part in allocation):
        allocation, spare = _freed(allocation, level), spare if len(allocation) == 1 and level != Level.FREEZE else 0
    if spare and not all(board.up >> part.node & 1 for part in allocation):
        spare = 0  # what it keeps would be given to it anew, and an unschedulable node gives nothing
    if spare and len(allocation) > 1 and 1 < jobs.ranks.item(row) < jobs.demand.item(row):
        spare = 0  # devices taken from one node could leave a rank with devices of two
    pause = float(jobs.save_us.item(row) + jobs.restore_us.item(row) + 1) * held if spare else 0.0
    return PreemptionCandidate(row, allocation, cost, spare, pause if level > Level.REQUEUE else cost)


def _freed(allocation: Allocation, level: int) -> Allocation:
    """What is free once the job is suspended: of a frozen one all but its host memory."""
    return without_memory(allocation) if level == Level.FREEZE else allocation


class Preemptor:
    """Frees devices on ``board`` for rows served in the order of their keys. ``movable`` are the rows that may go, for rows
    with smaller keys only, or with ``any_key`` for every row.
    """

    def __init__(
        self,
        view: View,
        board: Board,
        preferences: Preferences,
        movable: Column,
        selected: Column,
        any_key: bool = False,
    ) -> None:
        self.view, self.board, self.preferences, self.jobs = view, board, preferences, view.jobs
        self.movable = movable
        self.selected = selected
        """Rows that are entitled to devices: the last to be preempted."""
        cost = preferences.cost() if callable(preferences.cost) else preferences.cost
        self._cost: Column = cost if cost is not None else victim_cost(self.jobs)
        self._any_key = any_key
        self._index: PreemptionIndex | None = None
        self._indexed: Column = np.zeros(len(movable), bool)
        """Rows in the index, where ``restrict`` changes it."""
        self._selected_too = False
        """Whether rows that are entitled to their devices are candidates too, from now on."""
        self._ranked: list[int] = []
        self._simple: bool | None = None
        self._too_many = sys.maxsize
        """So many devices cannot be freed by preempting all candidates: later rows have fewer."""

    def touch(self, allocation: Allocation) -> None:
        """These devices were taken on the board by a row that preempts none."""
        if self._index is not None:
            self._index.touch(allocation)

    def room(self, row: int, request: Request) -> Preemption | None:
        """Room among less wanted rows: first those that are not entitled to their devices, then any. Taken on the board."""
        if self._index is None:
            room = self._one_device(row, request)
            if room is None:
                room = self._search(row, request)
        else:
            room = self._among(row, request) or self._among_all(row, request)
        if room is not None:
            self._note_preempted(room)
        return room

    def restrict(self, movable: Column) -> None:
        """From now on these rows may go, others than before; for rows that are served ahead of all keys.

        Hundreds of jobs may be overdue in one plan, each against almost the same victims: their index is kept, and only the rows
        that come and go are changed in it.
        """
        self.movable, self._simple, self._too_many = movable, None, sys.maxsize
        if self._index is not None:
            for row in (self._indexed & ~movable).nonzero()[0].tolist():
                self._index.remove(row)
            more = (movable & ~self._indexed).nonzero()[0]
            self._index.add(self._candidates(more, self._cost[more]))
            self._indexed = movable.copy()

    def room_ahead(self, row: int, request: Request) -> Preemption | None:
        """Room for a row that is served ahead of all keys, among all that may go. Taken on the board."""
        room = self._one_device(row, request)
        if room is not None and self._index is not None:
            self._index.remove(room.suspended[0])
            self._index.touch(room.allocation)
        elif room is None:
            if self._index is None:
                if not self._feasible(row, request):
                    return None
                self._index, self._indexed = self._index_of(self.movable), self.movable.copy()
            room = self._index.find_preemption(request)
        if room is not None:
            self._note_preempted(room)
            self._indexed &= self.movable
        return room

    def _note_preempted(self, room: Preemption) -> None:
        for row in room.suspended:
            self.movable[row] = False
        for row, _ in room.shrunk:
            self.movable[row] = False

    # -- one device ---------------------------------------------------------------------------------------------------

    def _one_device(self, row: int, request: Request) -> Preemption | None:
        """The cheapest single victim, where whole devices of one kind make that a plain minimum; else None."""
        if request.count != 1 or request.shares or request.hosted or request.nodes(self.board.layout) != ALL_NODES:
            return None
        if self._simple is None:
            self._simple = self._all_simple()
        if not self._simple:
            return None
        rows = self._lesser(row)
        pool = (rows if self._selected_too else rows & ~self.selected).nonzero()[0]
        if not len(pool):
            pool = rows.nonzero()[0]
            if self._selected_too or not len(pool):
                return None
            self._selected_too = True
        cost = self._cost[pool]
        if self._selected_too:
            cost = np.where(self.selected[pool], cost * _SELECTED_COST, cost)
        tied = pool[cost == cost.min()].tolist()
        return self._take_one(tied, request.locality) if len(tied) <= _TIED else None

    def _all_simple(self) -> bool:
        """Whether all nodes work and every candidate holds whole devices of the only kind, to give back all or none."""
        jobs, rows = self.jobs, self.movable
        board = self.board
        if len(board.layout.kinds) != 1 or board.up.bit_count() < len(board.free):
            return False
        odd = jobs.held != jobs.floor
        if np.count_nonzero(jobs.memory) or jobs.resourced:
            odd |= jobs.shares
        return not np.count_nonzero(odd & rows)

    def _take_one(self, tied: list[int], locality: int) -> Preemption:
        """Take a device of the one on the lowest node (of ``locality``, if one is there) of several that are equally cheap."""
        board, ids, allocations = self.board, self.jobs.id, self.view.allocations
        lowest_nodes = ((min(part.node for part in allocations[ids.item(row)]), row) for row in tied)
        _, node, victim = min((not locality >> node & 1, node, row) for node, row in lowest_nodes)
        board.release(allocations[ids.item(victim)])
        mine = (Part(node, lowest(board.free[node], 1), WHOLE_DEVICE),)
        board.acquire(mine)
        return Preemption(mine, (victim,), ())

    # -- any shape ----------------------------------------------------------------------------------------------------

    def _search(self, row: int, request: Request) -> Preemption | None:
        """Price the nodes, unless even preempting every candidate would not help."""
        if not self._feasible(row, request):
            return None
        if self._selected_too:
            self._index = self._index_of(self._lesser(row))
            return self._among(row, request)
        pool = self._lesser(row) & (~self.selected | (self.jobs.held > self.jobs.floor))
        if self._could_hold(request, pool):  # else an index of these alone would be built for nothing
            self._index = self._index_of(pool)
            room = self._among(row, request)
            if room is not None:
                return room
        return self._among_all(row, request, True)

    def _among_all(self, row: int, request: Request, could: bool = False) -> Preemption | None:
        if self._selected_too or not (could or self._feasible(row, request)):
            return None
        self._selected_too = True
        self._index = self._index_of(self._lesser(row))
        return self._among(row, request)

    def _among(self, row: int, request: Request) -> Preemption | None:
        """Room among indexed holders less wanted than the row. Rows come in order, so passed holders never come back."""
        assert self._index is not None
        key, keys = self.preferences.key[row], self.preferences.key
        while not self._any_key and self._ranked and keys[self._ranked[-1]] <= key:
            self._index.remove(self._ranked.pop())
        return self._index.find_preemption(request)

    def _lesser(self, row: int) -> Column:
        if self._any_key:
            return self.movable
        lesser: Column = self.movable & (self.preferences.key > self.preferences.key[row])
        return lesser

    def _feasible(self, row: int, request: Request) -> bool:
        """Whether preempting every less wanted row would free enough. The more devices, the harder, for plain requests."""
        plain = request.unit == 1 and not (request.shares or request.hosted) and len(self.board.layout.kinds) == 1
        plain = plain and request.nodes(self.board.layout) == ALL_NODES
        plain = plain and request.placement == "consolidate"
        if plain and request.count >= self._too_many:
            return False
        found = self._could_hold(request, self._lesser(row))
        if plain and not found:
            self._too_many = request.count
        return found

    def _could_hold(self, request: Request, rows: Column) -> bool:
        """Whether preempting all of ``rows`` could free enough: a necessary condition."""
        if request.shares or request.placement == "any":
            return True
        if self.board.free_in(request.kinds) + int(self.jobs.held[rows].sum()) < request.count:
            return False  # wherever they lie
        return could_hold(self.board, request, devices_on(self.view, rows))

    def _index_of(self, rows: Column) -> PreemptionIndex:
        picked = rows.nonzero()[0]
        self._ranked = picked[np.argsort(-self.preferences.key[picked], kind="stable")].tolist()
        weighed = np.where(self.selected[picked], self._cost[picked] * _SELECTED_COST, self._cost[picked])
        return PreemptionIndex(self.board, self._candidates(picked, weighed))

    def _candidates(self, rows: Column, costs: Column) -> Iterator[PreemptionCandidate]:
        """``candidate_of`` each, by columns: nearly all hold no more than their floor, and plans make them by the dozen."""
        jobs, allocations = self.jobs, self.view.allocations
        fixed, loses = (jobs.held[rows] <= jobs.floor[rows]).tolist(), (jobs.level[rows] <= _REQUEUE).tolist()
        listed = zip(rows.tolist(), jobs.id[rows].tolist(), costs.tolist(), fixed, loses, strict=True)
        for row, job, cost, whole, all_lost in listed:
            if whole:
                yield PreemptionCandidate(row, allocations[job], cost, 0, cost if all_lost else 0.0)
            else:
                yield candidate_of(self.view, self.board, row, cost)
