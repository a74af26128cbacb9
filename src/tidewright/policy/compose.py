"""The composer: turns a policy's preferences into a plan of moves, the same way for every policy.

Running jobs stay where they are. Waiting rows are placed on free devices in order of their keys; a preemptive policy's
rows may preempt less wanted ones, never more than needed, and what one start needs lands together or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

import numpy as np
from msgspec import structs

from ..estimate.speed import useful
from ..model.board import ALL_NODES, whole
from ..model.cause import Cause
from ..model.job import State
from ..model.node import Allocation, Part, device_count
from ..model.table import Column
from ..model.view import View
from ..placement.defragment import Defragmentation
from ..placement.explain import limit
from ..placement.find import best_fit, place
from ..placement.kind_order import fastest_first
from ..placement.locality import members
from ..placement.preemption import PreemptionCandidate
from ..plan.moves import Migrate, Move, Resize
from ..plan.plan import Plan, Wake
from ..plan.reasons import Blocked
from ..plan.request import Request, row_request
from .entitled import entitled
from .preempt import Preemptor, candidate_of
from .preferences import Preferences, first_rows, least
from .shapes import Shape, of_shapes, shapes_of
from .steps import PlanStep, step_moves

_CHUNK = 32
"""Rows sorted at a time while filling; more than are started by most plans."""
_EXPLAINED = 2
_SHORT = 128
"""Rows up to which plain Python is faster than vectors."""
_QUEUED, _SUSPENDED = int(State.QUEUED), int(State.SUSPENDED)


class Composer:
    """One plan in the making. Call any of ``force``, ``rearrange``, ``fill``, ``grow``, then ``plan``."""

    def __init__(self, view: View, preferences: Preferences) -> None:
        self.view, self.preferences = view, preferences
        self.jobs = view.jobs
        self.board = view.board()
        self.unplaced: list[int] = []
        """Rows that were tried and could not be placed, most wanted first."""
        self.reserved: list[Part] = []
        """What ``reserve`` keeps."""
        self.steps: list[PlanStep] = []
        """The starts decided so far."""
        self._placed = np.zeros(self.jobs.n, bool)
        self._resized: list[tuple[int, Allocation, Cause]] = []
        self._migrated: list[Migrate] = []
        self.moved: dict[int, bool] = {}
        """Running rows that this plan suspends, shrinks, resizes or migrates."""
        self._replan: dict[int, bool] = {}
        """Preempted rows that are entitled to devices: others may have to be preempted for them."""
        self._preemptor: Preemptor | None = None
        self._forcer: Preemptor | None = None
        """That of ``force``, from its first call until something else than starts changes the board."""
        self._requests: dict[int, Request] = {}
        self._unplaceable: dict[Shape, bool] = {}
        """Shapes that found no free devices, as long as none have been released since."""

    def request(self, row: int, count: int = 0) -> Request:
        """What a row may have; the packer looks for its floor, or for ``count`` devices."""
        if count:
            return self._request(row, count)
        found = self._requests.get(row)
        if found is None:
            found = self._requests[row] = self._request(row)
        return found

    def _request(self, row: int, count: int = 0) -> Request:
        view, job = self.view, self.jobs.id.item(row)
        locality = members(self._image_at(row)) if view.image_nodes else 0
        held = view.allocations.get(job, ())
        wanted = row_request(
            view.layout, view.specs[job], self.jobs, row, held, count, view.avoid.get(job, 0), locality
        )
        return fastest_first(view, row, wanted)

    def _image_at(self, row: int) -> tuple[int, ...]:
        """The nodes where the image lies that a waiting row comes back from, in rank order."""
        nodes = self.view.image_nodes.get(self.jobs.id.item(row), ())
        waiting = nodes and self.jobs.state.item(row) in (_QUEUED, _SUSPENDED) and self.jobs.pinned_node.item(row) < 0
        return nodes if waiting else ()

    def start(self, row: int, within: int = ALL_NODES) -> bool:
        """Place a row on free devices of the nodes ``within``."""
        return self._start(row, self.request(row), within)

    def _start(self, row: int, request: Request, within: int = ALL_NODES) -> bool:
        allocation = place(self.board, request, within)
        if allocation is None:
            return False
        self.board.acquire(allocation)
        for preemptor in (self._preemptor, self._forcer):
            if preemptor is not None:
                preemptor.touch(allocation)
        self._note(PlanStep(row, allocation))
        return True

    # -- filling ----------------------------------------------------------------------------------------------------

    def fill(self, rows: Column | None = None, within: int = ALL_NODES) -> None:
        """Place waiting rows on free devices in order; ``strict`` preferences stop at the first that does not fit."""
        preferences, jobs = self.preferences, self.jobs
        if not self.room_left() and not preferences.strict:
            return
        rows = self._still_waiting().nonzero()[0] if rows is None else rows
        if not len(rows):
            return
        shapes: dict[Shape, bool] = {}
        if preferences.strict:
            if not self._start_head(rows, within):
                return
            rows = rows[~self._placed[rows]]
        else:
            rows, shapes = self._small_enough(rows), dict(self._unplaceable)
            if len(rows) <= _SHORT:
                self._fill_few(rows, within, shapes)
                return
            rows = self._untried(rows, shapes)
        while len(rows) and self.room_left():
            batch = first_rows(rows, preferences.key, jobs.id, _CHUNK)
            if not self._fill_batch(batch, within, shapes):
                return
            rows = rows[~self._placed[rows]] if preferences.strict else self._untried(rows, shapes)

    def _still_waiting(self) -> Column:
        return self.preferences.waiting & ~self._placed if self.steps else self.preferences.waiting

    def _small_enough(self, rows: Column) -> Column:
        """Rows that ask for no more than what is free in all; of the others the most wanted is noted as unplaced."""
        fits = self.jobs.floor[rows] <= sum(self.board.free_total)
        if np.count_nonzero(fits) < len(rows):
            fits |= self.jobs.shares[rows]
            large = rows[~fits]
            if len(large) and not self.unplaced:
                self.unplaced.append(least(large, self.preferences.key, self.jobs.id))
            rows = rows[fits]
        return rows

    def _start_head(self, rows: Column, within: int) -> bool:
        """Try the most wanted row alone: most strict plans end here, without sorting anything."""
        head = least(rows, self.preferences.key, self.jobs.id)
        if self.start(head, within):
            return True
        self.unplaced.append(head)
        return False

    def _fill_few(self, rows: Column, within: int, shapes: dict[Shape, bool]) -> None:
        """Try each row once, in order, while anything is free."""
        if not len(rows):
            return
        rows = first_rows(rows, self.preferences.key, self.jobs.id, len(rows))
        room = True
        for row, shape in zip(rows.tolist(), self.shapes(rows), strict=True):
            if not room:
                self.unplaced.append(row)
                return
            if shape in shapes:
                continue
            if self.start(row, within):
                room = self.room_left()
            else:
                self.unplaced.append(row)
                shapes[shape] = True

    def _fill_batch(self, batch: Column, within: int, shapes: dict[Shape, bool]) -> bool:
        for row, shape in zip(batch.tolist(), self.shapes(batch), strict=True):
            if shape in shapes or self.start(row, within):
                continue
            self.unplaced.append(row)
            if self.preferences.strict:
                return False
            shapes[shape] = True
        return True

    def room_left(self) -> bool:
        """Whether anything at all is free."""
        return any(self.board.free_total) or bool(self.board.partial)

    def shapes(self, rows: Column) -> Iterator[Shape]:
        """The shape of each of ``rows``."""
        return shapes_of(self.view, rows)

    def _untried(self, rows: Column, shapes: dict[Shape, bool]) -> Column:
        """Rows not placed whose shape has not failed: devices only get fewer while filling."""
        return rows[~self._placed[rows] & ~of_shapes(self.view, rows, shapes)]

    # -- preempting -------------------------------------------------------------------------------------------------

    def rearrange(self) -> None:
        """Walk the rows that are entitled to devices; place each on free ones, else preempt less wanted rows for it."""
        preferences, waiting, self._forcer = self.preferences, self._still_waiting(), None
        if preferences.victims is None:
            return
        # Asked first because it is cheap: in a full pool most plans end here.
        if not np.count_nonzero(waiting if preferences.may_preempt is None else waiting & preferences.may_preempt):
            return
        movable = self._movable(preferences.victims)
        running = movable.nonzero()[0]
        if not len(running):
            return
        # Rows less wanted than every row that could be preempted are left to ``fill``.
        waiting = waiting & (preferences.key < np.maximum.reduce(preferences.key[running]))
        may_preempt = waiting if preferences.may_preempt is None else waiting & preferences.may_preempt
        if not np.count_nonzero(may_preempt):
            return
        order, selected = entitled(self.view, self.board, preferences.key, waiting, may_preempt, movable)
        self._preemptor = Preemptor(self.view, self.board, preferences, movable, selected)
        order = order[waiting[order]]
        self._walk(order.tolist(), self.shapes(order), may_preempt[order].tolist())
        self._preemptor = None

    def _walk(self, rows: list[int], shapes: Iterable[Shape], may_preempt: list[bool]) -> None:
        """Serve rows in order. Later rows may preempt fewer, so what failed for one row fails for every later row
        of its shape, unless devices have been freed since."""
        failed: dict[tuple[Shape, bool], bool] = {}
        for row, shape, may in zip(rows, shapes, may_preempt, strict=True):
            if (shape, may) in failed:
                self.unplaced.append(row)
                continue
            request = self.request(row)
            if self._start(row, request):
                continue
            before = sum(self.board.free_total)
            if may and self._preempt(row, request):
                self._unplaceable.clear()
                if sum(self.board.free_total) > before:
                    failed.clear()
                continue
            failed[shape, may] = self._unplaceable[shape] = True
            self.unplaced.append(row)

    def _movable(self, victims: Column | Callable[[], Column]) -> Column:
        movable = victims() if callable(victims) else victims.copy()
        if self.moved:
            movable[list(self.moved)] = False
        if self.board.up.bit_count() < len(self.board.free):
            for row in np.flatnonzero(movable).tolist():
                parts = self.view.allocations[int(self.jobs.id[row])]
                movable[row] = all(self.board.up >> part.node & 1 for part in parts)
        return movable

    def _preempt(self, row: int, request: Request) -> bool:
        """Preempt less wanted rows for this one."""
        assert self._preemptor is not None
        room = self._preemptor.room(row, request)
        if room is None:
            return False
        self._replan.update({other: True for other in room.suspended if self._preemptor.selected[other]})
        self._note(PlanStep(row, *room))
        return True

    def candidate(self, row: int, cost: float) -> PreemptionCandidate:
        """A running row as a candidate for preemption."""
        return candidate_of(self.view, self.board, row, cost)

    def force(self, row: int, victims: Column, cost: Callable[[], Column], within_us: int = 0) -> bool:
        """Place a row ahead of all others, preempting any of ``victims``, whatever their keys; always at one ``cost``.
        ``within_us``: see ``Suspend``."""
        request = self.request(row)
        if self._start(row, request):
            return True
        movable = victims & ~self.touched
        if self._forcer is None:
            preferences, none = structs.replace(self.preferences, cost=cost), np.zeros(self.jobs.n, bool)
            self._forcer = Preemptor(self.view, self.board, preferences, movable, none, any_key=True)
        else:
            self._forcer.restrict(movable)
        room = self._forcer.room_ahead(row, request)
        if room is None:
            return False
        self._replan.update(dict.fromkeys(room.suspended, True))
        self._note(PlanStep(row, *room, within_us=within_us))
        return True

    def reserve(self, row: int) -> None:
        """Keep what is free where this row could next start from less wanted ones: small jobs would starve it."""
        request, self._forcer = self.request(row), None
        kinds = request.groups[0] if request.groups else 0
        left = request.count
        nodes = self.board.up & request.nodes(self.board.layout)
        for size in range(max(self.board.layout.node_size, default=0), 0, -1):
            node = best_fit(self.board, kinds, size, nodes)
            while node >= 0 and left > 0:
                left -= self.board.layout.node_size[node]
                self.reserved.append(whole(node, self.board.free[node]))
                self.board.acquire((self.reserved[-1],))
                node = best_fit(self.board, kinds, size, nodes)

    def _note(self, step: PlanStep) -> None:
        self.steps.append(step)
        self._placed[step.row] = True
        for row in step.others:
            self.moved[row] = True

    def start_after(self, row: int, room: Defragmentation) -> None:
        """Place a row on devices that migrations free; both are taken on the board already."""
        self._note(PlanStep(row, room.allocation, migrated=room.migrated))
        self.unplaced = [other for other in self.unplaced if other != row]

    # -- growing ----------------------------------------------------------------------------------------------------

    def grow(self) -> None:
        """Give elastic rows placed by this plan more of the devices that no other row could use, the most wanted first."""
        grown: dict[int, PlanStep] = {}
        self._forcer = None
        for step in self.steps if any(self.board.free_total) else ():
            most = int(self.jobs.demand[step.row])
            if step.displaces or device_count(step.allocation) >= most or not any(self.board.free_total):
                continue
            self.board.release(step.allocation)
            larger = self._larger(step.row, step.allocation, most)
            self.board.acquire(larger or step.allocation)
            if larger is not None:
                step.allocation = larger
                grown[step.row] = step
        # What they grew onto may be left over by a later step's victims, so they are applied after all others.
        if grown:
            self.steps = [*(step for step in self.steps if step.row not in grown), *grown.values()]

    def grow_running(self, rows: list[int], why: Callable[[int, int], Cause]) -> None:
        """Resize running elastic rows, in this order, onto more devices while some are free."""
        self._forcer = None
        for row in rows:
            if row in self.moved or not any(self.board.free_total):
                continue
            mine = self.view.allocations[int(self.jobs.id[row])]
            self.board.release(mine)
            larger = self._larger(row, mine, int(self.jobs.demand[row]))
            self.board.acquire(larger or mine)
            if larger is not None:
                self.moved[row] = True
                self._resized.append((row, larger, why(row, device_count(larger))))

    def migrate(self, row: int, allocation: Allocation, why: Cause) -> None:
        """Move a running row to devices that are free once it has left its own."""
        self.board.release(self.view.allocations[self.jobs.id.item(row)])
        self.board.acquire(allocation)
        self.moved[row] = True
        self._migrated.append(Migrate(self.jobs.id.item(row), allocation, why))

    def _larger(self, row: int, mine: Allocation, most: int) -> Allocation | None:
        """The most devices it can have now, more than it has. Its own are free on the board while this looks."""
        now, ranks, demand = device_count(mine), self.jobs.ranks.item(row), self.jobs.demand.item(row)
        most = min(most, now + sum(self.board.free_total))
        for count in range(most, now, -max(1, (most - now) // 16)):
            fewest = useful(count, ranks, demand)
            found = place(self.board, self.request(row, fewest)) if fewest > now else None
            if found is not None:
                return found
        return None

    # -- the plan ---------------------------------------------------------------------------------------------------

    @property
    def touched(self) -> Column:
        """Rows that this plan already moves. Shape (n,), bool."""
        flags = self._placed.copy()
        if self.moved:
            flags[list(self.moved)] = True
        return flags

    @property
    def started(self) -> list[int]:
        """Rows placed so far."""
        return [step.row for step in self.steps]

    def plan(self, wake: Wake) -> Plan:
        """Everything decided so far, as moves."""
        moves: list[Move] = []
        gangs: list[tuple[int, int]] = []
        for step in self.steps:
            first = len(moves)
            nodes = self._image_at(step.row)
            wanted = self.request(step.row) if nodes else None
            moves += step_moves(self.view, step, nodes, self.preferences.why(step.row), self._replan, wanted)
            if len(moves) - first > 1:
                gangs.append((first, len(moves)))
        moves.extend(Resize(int(self.jobs.id[row]), allocation, why) for row, allocation, why in self._resized)
        moves.extend(self._migrated)
        return Plan(self.view.revision, tuple(moves), tuple(gangs), wake, self._blocked())

    def _blocked(self) -> tuple[Blocked, ...]:
        if not self.view.explained:
            return ()
        rows = islice((row for row in dict.fromkeys(self.unplaced) if not self._placed[row]), _EXPLAINED)
        return tuple(limit(self.view, self.board, int(self.jobs.id[row]), self.request(row)) for row in rows)
