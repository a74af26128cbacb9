"""Room made by sending less wanted rows away: the holders that may go, found no sooner than somebody needs them.

Most pools are asked for one device at a time, which one vector search answers; prices per node are worked out
(``placement.victims``) only when a plan needs more.
"""

from __future__ import annotations

import sys

import numpy as np

from ..base.units import WHOLE_DEVICE
from ..estimate.cost import victim_cost
from ..model.board import ALL_NODES, Board
from ..model.job import Level
from ..model.node import Allocation, Part
from ..model.table import Column
from ..model.view import View
from ..placement.find import lowest
from ..placement.victims import Holder, Room, Victims, enough
from ..plan.request import Request
from .base import Wants

_SELECTED_COST = 8.0
"""How many times dearer a victim is that deserves its devices than one that does not."""

_TIED = 64
"""Equally cheap victims compared one by one; among more, prices per node are faster."""


def holder_of(view: View, board: Board, row: int, cost: float) -> Holder:
    """A running row, of a level above NONE, as somebody who may be sent away."""
    jobs = view.jobs
    allocation = view.allocations[jobs.id.item(row)]
    level, held = jobs.level.item(row), jobs.held.item(row)
    spare = max(held - jobs.floor.item(row), 0)
    if spare and not all(board.up >> part.node & 1 for part in allocation):
        spare = 0  # what it keeps would be given to it anew, and a node that takes no work gives nothing
    pause = float(jobs.save_us.item(row) + jobs.restore_us.item(row) + 1) * held if spare else 0.0
    return Holder(row, allocation, cost, spare, pause if level > Level.REQUEUE else cost)


class Evictor:
    """Makes room on ``board`` for rows served in the order of their keys. ``movable`` are the rows that may go, for rows
    with smaller keys only, or with ``anybody`` for every row.
    """

    def __init__(
        self, view: View, board: Board, wants: Wants, movable: Column, selected: Column, anybody: bool = False
    ) -> None:
        self.view, self.board, self.wants, self.jobs = view, board, wants, view.jobs
        self.movable = movable
        self.selected = selected
        """Rows that deserve devices: the last to be sent away."""
        self._cost: Column = wants.cost if wants.cost is not None else victim_cost(self.jobs)
        self._anybody = anybody
        self._victims: Victims | None = None
        self._everybody = False
        """Whether rows that deserve their devices are looked at too, from now on."""
        self._ranked: list[int] = []
        self._simple: bool | None = None
        self._too_many = sys.maxsize
        """So many devices cannot be had by sending everybody away: later rows could send fewer."""

    def touch(self, allocation: Allocation) -> None:
        """These devices were taken on the board by somebody who needed no room."""
        if self._victims is not None:
            self._victims.touch(allocation)

    def room(self, row: int, request: Request) -> Room | None:
        """Room among less wanted rows: first those that do not deserve their devices, then any. Taken on the board."""
        if self._victims is None:
            room = self._one_device(row, request)
            if room is None:
                room = self._search(row, request)
        else:
            room = self._among(row, request) or self._among_all(row, request)
        if room is not None:
            self._gone(room)
        return room

    def _gone(self, room: Room) -> None:
        for row in room.suspended:
            self.movable[row] = False
        for row, _ in room.shrunk:
            self.movable[row] = False

    # -- one device ---------------------------------------------------------------------------------------------------

    def _one_device(self, row: int, request: Request) -> Room | None:
        """The cheapest single victim, where whole devices of one kind make that a plain minimum; else None."""
        if request.count != 1 or request.memory or request.nodes(self.board.layout) != ALL_NODES:
            return None
        if self._simple is None:
            self._simple = self._all_simple()
        if not self._simple:
            return None
        rows = self._lesser(row)
        pool = (rows if self._everybody else rows & ~self.selected).nonzero()[0]
        if not len(pool):
            pool = rows.nonzero()[0]
            if self._everybody or not len(pool):
                return None
            self._everybody = True
        cost = self._cost[pool]
        if self._everybody:
            cost = np.where(self.selected[pool], cost * _SELECTED_COST, cost)
        tied = pool[cost == cost.min()].tolist()
        return self._take_one(tied, request.locality) if len(tied) <= _TIED else None

    def _all_simple(self) -> bool:
        """Whether all nodes work and everybody who may go holds whole devices of the only kind, to give back all or none."""
        jobs, rows = self.jobs, self.movable
        board = self.board
        if len(board.layout.kinds) != 1 or board.up.bit_count() < len(board.free):
            return False
        odd = jobs.held != jobs.floor
        if np.count_nonzero(jobs.memory):
            odd |= jobs.memory > 0
        return not np.count_nonzero(odd & rows)

    def _take_one(self, tied: list[int], near: int) -> Room:
        """Take a device of the one on the lowest node (of ``near``, if one is there) of several that are equally cheap."""
        board, ids, allocations = self.board, self.jobs.id, self.view.allocations
        lowest_nodes = ((min(part.node for part in allocations[ids.item(row)]), row) for row in tied)
        _, node, victim = min((not near >> node & 1, node, row) for node, row in lowest_nodes)
        board.give(allocations[ids.item(victim)])
        mine = (Part(node, lowest(board.free[node], 1), WHOLE_DEVICE),)
        board.take(mine)
        return Room(mine, (victim,), ())

    # -- any shape ----------------------------------------------------------------------------------------------------

    def _search(self, row: int, request: Request) -> Room | None:
        """Price the nodes, unless even sending everybody away could not help."""
        if not self._could(row, request):
            return None
        if self._everybody:
            self._victims = self._index(self._lesser(row))
            return self._among(row, request)
        pool = self._lesser(row) & (~self.selected | (self.jobs.held > self.jobs.floor))
        self._victims = self._index(pool)
        return self._among(row, request) or self._among_all(row, request, True)

    def _among_all(self, row: int, request: Request, could: bool = False) -> Room | None:
        if self._everybody or not (could or self._could(row, request)):
            return None
        self._everybody = True
        self._victims = self._index(self._lesser(row))
        return self._among(row, request)

    def _among(self, row: int, request: Request) -> Room | None:
        """Room among indexed holders less wanted than the row. Rows come in order, so passed holders never come back."""
        assert self._victims is not None
        key, keys = self.wants.key[row], self.wants.key
        while not self._anybody and self._ranked and keys[self._ranked[-1]] <= key:
            self._victims.retire(self._ranked.pop())
        return self._victims.make_room(request)

    def _lesser(self, row: int) -> Column:
        if self._anybody:
            return self.movable
        lesser: Column = self.movable & (self.wants.key > self.wants.key[row])
        return lesser

    def _could(self, row: int, request: Request) -> bool:
        """Whether there would be enough with everybody less wanted gone. The more devices, the harder, for plain asks."""
        plain = request.unit == 1 and not request.memory and len(self.board.layout.kinds) == 1
        plain = plain and request.nodes(self.board.layout) == ALL_NODES
        plain = plain and request.placement == "consolidate"
        if plain and request.count >= self._too_many:
            return False
        allocations = self.view.allocations
        found = enough(self.board, request, (allocations[job] for job in self.jobs.id[self._lesser(row)].tolist()))
        if plain and not found:
            self._too_many = request.count
        return found

    def _index(self, rows: Column) -> Victims:
        picked = rows.nonzero()[0]
        self._ranked = picked[np.argsort(-self.wants.key[picked], kind="stable")].tolist()
        weighed = np.where(self.selected[picked], self._cost[picked] * _SELECTED_COST, self._cost[picked])
        holders = (
            holder_of(self.view, self.board, r, c) for r, c in zip(picked.tolist(), weighed.tolist(), strict=True)
        )
        return Victims(self.board, holders)
