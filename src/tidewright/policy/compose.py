"""The composer: turns what a policy wants into a plan of moves, the same way for every policy.

Running jobs stay where they are. Waiting rows are placed on free devices in order of their keys; a preemptive policy's
rows may send less wanted ones away, never more than needed, and what one start needs lands together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from ..estimate.cost import victim_cost
from ..model.board import whole
from ..model.job import Level, State
from ..model.node import Allocation, device_count
from ..model.table import Column
from ..model.view import View
from ..placement.explain import explain
from ..placement.facts import EVERYWHERE
from ..placement.find import Ask, ask_of, best_fit, place
from ..placement.victims import Holder, Room, Victims, enough
from ..plan.moves import Move, Resize, Resume, Start, Suspend
from ..plan.plan import Plan, Wake
from ..plan.reasons import Blocked
from .base import Wants, first_rows, least, need_milli
from .choose import chosen

_CHUNK = 32
"""Rows sorted at a time while filling; more than are started by most plans."""
_EXPLAINED = 3
_SELECTED_COST = 8.0
"""How many times dearer a victim is that deserves its devices than one that does not."""


class _Step(Struct):
    row: int
    allocation: Allocation
    suspended: tuple[int, ...] = ()
    shrunk: tuple[tuple[int, Allocation], ...] = ()


class Composer:
    """One plan in the making. Call any of ``force``, ``rearrange``, ``fill``, ``grow``, then ``plan``."""

    def __init__(self, view: View, wants: Wants) -> None:
        self.view, self.wants = view, wants
        self.jobs = view.jobs
        self.board = view.board()
        self.stuck: list[int] = []
        """Rows that were tried and could not be placed, most wanted first."""
        self._steps: list[_Step] = []
        self._placed = np.zeros(self.jobs.n, bool)
        self._resized: list[tuple[int, Allocation, str]] = []
        self._moved: dict[int, bool] = {}
        self._victims: Victims | None = None
        self._complete = False
        self._ranked: list[int] = []

    def ask(self, row: int, count: int = 0) -> Ask:
        """What a row needs of a board: its floor, or ``count`` devices."""
        job = int(self.jobs.id[row])
        home = int(self.jobs.home[row]) if self.jobs.state[row] == int(State.SUSPENDED) else -1
        return ask_of(self.view.layout, self.view.specs[job], count or int(self.jobs.floor[row]), home)

    def start(self, row: int, within: int = EVERYWHERE) -> bool:
        """Place a row on free devices of the nodes ``within``."""
        allocation = place(self.board, self.ask(row), within)
        if allocation is None:
            return False
        self.board.take(allocation)
        if self._victims is not None:
            self._victims.touch(allocation)
        self._note(_Step(row, allocation))
        return True

    # -- filling ----------------------------------------------------------------------------------------------------

    def fill(self, rows: Column | None = None, within: int = EVERYWHERE) -> None:
        """Place waiting rows on free devices in order; ``strict`` wants stop at the first that does not fit."""
        wants, jobs = self.wants, self.jobs
        rows = np.flatnonzero(wants.waiting & ~self._placed) if rows is None else rows
        if not len(rows):
            return
        if wants.strict and not self._start_head(rows, within):
            return
        rows = rows[~self._placed[rows]]
        shapes: dict[tuple[int, ...], bool] = {}
        while len(rows) and self.room_left():
            batch = first_rows(rows, wants.key, jobs.id, _CHUNK)
            if not self._fill_batch(batch, within, shapes):
                return
            rows = rows[~self._placed[rows]] if wants.strict else self._untried(rows, shapes)

    def _start_head(self, rows: Column, within: int) -> bool:
        """Try the most wanted row alone: most strict plans end here, without sorting anything."""
        head = least(rows, self.wants.key, self.jobs.id)
        if self.start(head, within):
            return True
        self.stuck.append(head)
        return False

    def _fill_batch(self, batch: Column, within: int, shapes: dict[tuple[int, ...], bool]) -> bool:
        for row in batch.tolist():
            shape = self._shape(row)
            if shape in shapes or self.start(row, within):
                continue
            self.stuck.append(row)
            if self.wants.strict:
                return False
            shapes[shape] = True
        return True

    def room_left(self) -> bool:
        """Whether anything at all is free."""
        return any(self.board.free_total) or bool(self.board.partial)

    def _shape(self, row: int) -> tuple[int, ...]:
        jobs = self.jobs
        return (
            jobs.floor.item(row), jobs.kinds.item(row), jobs.memory.item(row), jobs.placement.item(row), jobs.home.item(row),
            jobs.ranks.item(row),
        )  # fmt: skip

    def _untried(self, rows: Column, shapes: dict[tuple[int, ...], bool]) -> Column:
        """Rows not placed whose shape has not failed: devices only get fewer while filling."""
        jobs = self.jobs
        keep = ~self._placed[rows]
        for floor, kinds, memory, placement, home, ranks in shapes:
            same = (jobs.floor[rows] == floor) & (jobs.placement[rows] == placement) & (jobs.ranks[rows] == ranks)
            keep &= ~(same & (jobs.kinds[rows] == kinds) & (jobs.memory[rows] == memory) & (jobs.home[rows] == home))
        return rows[keep]

    # -- preempting -------------------------------------------------------------------------------------------------

    def rearrange(self) -> None:
        """Walk the rows that deserve devices; place each on free ones, else send less wanted rows away for it."""
        wants = self.wants
        if wants.victims is None:
            return
        movable = self._movable()
        if not movable.any():
            return
        # Rows less wanted than everybody who could go are left to ``fill``.
        waiting = wants.waiting & ~self._placed & (wants.key < wants.key[movable].max())
        evicts = waiting if wants.evicts is None else waiting & wants.evicts
        if not evicts.any():
            return
        order, selected = self._select(waiting, evicts, movable)
        failed: dict[tuple[int, ...], bool] = {}
        for row in order[waiting[order]].tolist():
            # Who comes later may send fewer away, so what failed for one row fails for every later row of its shape.
            shape = (*self._shape(row), int(evicts[row]))
            if shape in failed:
                self.stuck.append(row)
                continue
            before = sum(self.board.free_total)
            if self.start(row):
                continue
            if evicts[row] and self._evict(row, selected):
                if sum(self.board.free_total) > before:
                    failed.clear()
                continue
            failed[shape] = True
            self.stuck.append(row)
        self._victims = None

    def _select(self, waiting: Column, evicts: Column, movable: Column) -> tuple[Column, Column]:
        """Rows worth a try, in order, and the flags of those that fit the pool's capacity together."""
        wants, jobs = self.wants, self.jobs
        need = np.where(waiting & ~evicts, 0, need_milli(self.view))
        rows = np.flatnonzero(movable | waiting)
        least_milli = int(need[rows].min(initial=1, where=need[rows] > 0))
        count = 2 * int(movable.sum()) + 256
        while True:
            order = first_rows(rows, wants.key, jobs.id, count)
            taken, left = chosen(self.view, self.board, order, need[order], np.flatnonzero(movable))
            if count >= len(rows) or left < least_milli:
                break
            count = len(rows)
        selected = np.zeros(jobs.n, bool)
        selected[order[taken]] = True
        return order[taken], selected

    def _movable(self) -> Column:
        assert self.wants.victims is not None
        movable = self.wants.victims.copy()
        for row in self._moved:
            movable[row] = False
        if self.board.up.bit_count() < len(self.board.free):
            for row in np.flatnonzero(movable).tolist():
                parts = self.view.allocations[int(self.jobs.id[row])]
                movable[row] = all(self.board.up >> part.node & 1 for part in parts)
        return movable

    def _evict(self, row: int, selected: Column) -> bool:
        """Send less wanted rows away for this one: first those that do not deserve their devices, then any."""
        wants, view = self.wants, self.view
        movable = self._movable() & (wants.key > wants.key[row])
        ask = self.ask(row)
        ids = self.jobs.id[movable].tolist()
        if not enough(self.board, ask, (view.allocations[job] for job in ids)):
            return False
        if self._victims is None:
            self._victims = self._index(movable & (~selected | (self.jobs.held > self.jobs.floor)), selected)
            self._complete = False
        room = self._room(row, ask)
        if room is None and not self._complete:
            self._victims = self._index(movable, selected)
            self._complete = True
            room = self._room(row, ask)
        if room is None:
            return False
        self._note(_Step(row, *room))
        return True

    def _room(self, row: int, ask: Ask) -> Room | None:
        """Room among holders less wanted than the row. Rows are served in order, so passed holders never come back."""
        assert self._victims is not None
        key = self.wants.key[row]
        while self._ranked and self.wants.key[self._ranked[-1]] <= key:
            self._victims.retire(self._ranked.pop())
        return self._victims.make_room(ask)

    def _index(self, rows: Column, selected: Column) -> Victims:
        cost = self.wants.cost if self.wants.cost is not None else victim_cost(self.jobs)
        picked = np.flatnonzero(rows)
        self._ranked = picked[np.argsort(-self.wants.key[picked], kind="stable")].tolist()
        weighed = np.where(selected, cost * _SELECTED_COST, cost)
        return Victims(self.board, filter(None, (self.holder(row, float(weighed[row])) for row in picked.tolist())))

    def holder(self, row: int, cost: float) -> Holder | None:
        """A running row as somebody who may be sent away; None when the engine would refuse."""
        jobs = self.jobs
        allocation = self.view.allocations[int(jobs.id[row])]
        if jobs.level[row] == int(Level.FREEZE) and not self._can_freeze(allocation):
            return None
        spare = max(int(jobs.held[row] - jobs.floor[row]), 0)
        pause = float(jobs.save_us[row] + jobs.restore_us[row] + 1) * float(jobs.held[row])
        return Holder(row, allocation, cost, spare, pause if jobs.level[row] > int(Level.REQUEUE) else cost)

    def _can_freeze(self, allocation: Allocation) -> bool:
        """Freezing frees nothing where device memory stays occupied, and cannot stop several nodes at one instant."""
        return len(allocation) == 1 and self.view.layout.nodes[allocation[0].node].kind == "cpu"

    def force(self, row: int, victims: Column, cost: Column) -> bool:
        """Place a row ahead of all others, sending away any of ``victims``, whatever their keys."""
        if self.start(row):
            return True
        rows = [row for row in np.flatnonzero(victims).tolist() if row not in self._moved]
        room = Victims(self.board, filter(None, (self.holder(r, float(cost[r])) for r in rows))).make_room(
            self.ask(row)
        )
        if room is None:
            return False
        self._note(_Step(row, *room))
        return True

    def reserve(self, row: int) -> None:
        """Keep what is free where this row could next start from less wanted ones: small jobs would starve it."""
        ask = self.ask(row)
        kinds = ask.groups[0] if ask.groups else 0
        left = ask.count
        nodes = self.board.up if ask.home < 0 else 1 << ask.home
        for size in range(max(self.board.layout.node_size, default=0), 0, -1):
            node = best_fit(self.board, kinds, size, nodes)
            while node >= 0 and left > 0:
                left -= self.board.layout.node_size[node]
                self.board.take((whole(node, self.board.free[node]),))
                node = best_fit(self.board, kinds, size, nodes)

    def _note(self, step: _Step) -> None:
        self._steps.append(step)
        self._placed[step.row] = True
        for row in (*step.suspended, *(row for row, _ in step.shrunk)):
            self._moved[row] = True

    # -- growing ----------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Give elastic rows placed by this plan more of the devices nobody else could use, the most wanted first."""
        grown: dict[int, _Step] = {}
        for step in self._steps:
            most = int(self.jobs.demand[step.row])
            if self._made_room(step) or device_count(step.allocation) >= most or not any(self.board.free_total):
                continue
            self.board.give(step.allocation)
            larger = self._larger(step.row, step.allocation, most)
            self.board.take(larger or step.allocation)
            if larger is not None:
                step.allocation = larger
                grown[step.row] = step
        # What they grew onto may be left over by a later step's victims, so they land after everybody else.
        self._steps = [*(step for step in self._steps if step.row not in grown), *grown.values()]

    @staticmethod
    def _made_room(step: _Step) -> bool:
        return bool(step.suspended or step.shrunk)

    def grow_running(self, rows: list[int], why: Callable[[int, int], str]) -> None:
        """Resize running elastic rows, in this order, onto more devices while some are free."""
        for row in rows:
            if row in self._moved or not any(self.board.free_total):
                continue
            mine = self.view.allocations[int(self.jobs.id[row])]
            frozen = self.jobs.level[row] == int(Level.FREEZE)
            self.board.give(mine)
            larger = self._larger(row, mine, int(self.jobs.demand[row]), 1 << mine[0].node if frozen else EVERYWHERE)
            self.board.take(larger or mine)
            if larger is not None:
                self._moved[row] = True
                self._resized.append((row, larger, why(row, device_count(larger))))

    def _larger(self, row: int, mine: Allocation, most: int, within: int = EVERYWHERE) -> Allocation | None:
        """The most devices it can have now, more than it has. Its own are free on the board while this looks."""
        now = device_count(mine)
        most = min(most, now + sum(self.board.free_total))
        for count in range(most, now, -max(1, (most - now) // 16)):
            found = place(self.board, self.ask(row, count), within)
            if found is not None:
                return found
        return None

    # -- the plan ---------------------------------------------------------------------------------------------------

    @property
    def touched(self) -> Column:
        """Rows that this plan already moves. Shape (n,), bool."""
        flags = self._placed.copy()
        flags[list(self._moved)] = True
        return flags

    @property
    def started(self) -> list[int]:
        """Rows placed so far."""
        return [step.row for step in self._steps]

    def plan(self, wake: Wake) -> Plan:
        """Everything decided so far, as moves."""
        moves: list[Move] = []
        gangs: list[tuple[int, int]] = []
        for step in self._steps:
            first = len(moves)
            moves.extend(self._moves(step))
            if len(moves) - first > 1:
                gangs.append((first, len(moves)))
        ids = self.jobs.id
        moves.extend(Resize(int(ids[row]), allocation, why) for row, allocation, why in self._resized)
        return Plan(self.view.revision, tuple(moves), tuple(gangs), wake, self._blocked())

    def _moves(self, step: _Step) -> list[Move]:
        ids, why = self.jobs.id, self.wants.why(step.row)
        job = int(ids[step.row])
        parting = f"makes room for job {job}: {why}"
        moves: list[Move] = [Suspend(int(ids[row]), parting) for row in step.suspended]
        moves.extend(Resize(int(ids[row]), kept, parting) for row, kept in step.shrunk)
        resumes = self.jobs.state[step.row] == int(State.SUSPENDED)
        moves.append(Resume(job, step.allocation, why) if resumes else Start(job, step.allocation, why))
        return moves

    def _blocked(self) -> tuple[Blocked, ...]:
        rows = [row for row in dict.fromkeys(self.stuck) if not self._placed[row]][:_EXPLAINED]
        known: dict[tuple[int, int], tuple[int, ...]] = {}
        return tuple(explain(self.view, self.board, int(self.jobs.id[row]), self.ask(row), known) for row in rows)


def least_need(view: View, rows: list[int]) -> int:
    """Fewest devices that would let one of ``rows`` start (a share counts as none): what a wake may wait for."""
    return min((0 if view.jobs.memory[row] else int(view.jobs.floor[row]) for row in rows), default=0)
