"""Plans of policies that work out a whole allocation: for each row how many devices it is to have of which kind.

Rows that have what they are to have stay where they are. The others release their devices, and all that are to have some are
placed in the order of their keys; a running row then migrates, is resized, or is suspended where nothing is left for it. Gavel
(OSDI'20), Sia (SOSP'23) and Pollux (OSDI'21) decide like this.
"""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ..model.board import Board
from ..model.cause import given
from ..model.job import State
from ..model.node import Allocation, bits, device_count
from ..model.view import View
from ..placement.find import place
from ..placement.kind_order import fastest_first
from ..plan.moves import Migrate, Move, Resize, Resume, Start, Suspend
from ..plan.plan import Plan, Wake
from ..plan.request import row_request
from .preferences import Preferences, suspendable

_RUNNING, _SUSPENDED = int(State.RUNNING), int(State.SUSPENDED)


def plan_targets(view: View, preferences: Preferences, wake: Wake) -> Plan:
    """The moves that bring every row of ``preferences.counts`` to what it is to have, as far as it fits. ``victims`` are the
    running rows that may be moved (None: all that can be suspended).
    """
    assert preferences.counts is not None
    return _Targets(view, preferences).plan(wake)


class _Targets:
    def __init__(self, view: View, preferences: Preferences) -> None:
        assert preferences.counts is not None
        self.view, self.preferences, self.counts = view, preferences, preferences.counts
        self.jobs, self.board = view.jobs, view.board()
        self.placed: dict[int, Allocation] = {}

    def plan(self, wake: Wake) -> Plan:
        jobs = self.jobs
        able = suspendable(self.view)
        movable = able if self.preferences.victims is None else able & self.preferences.victims
        leaving = [row for row in np.flatnonzero(movable).tolist() if not self._content(row)]
        for row in leaving:
            self.board.release(self.view.allocations[jobs.id.item(row)])
        pending = np.zeros(jobs.n, bool)
        pending[leaving] = True
        pending |= self.preferences.waiting
        rows = np.flatnonzero(pending & (self.counts > 0).any(axis=1))
        for row in rows[np.lexsort((jobs.id[rows], self.preferences.key[rows]))].tolist():
            self._place(row)
        return Plan(self.view.revision, tuple(self._moves(leaving)), (), wake)

    def _kind(self, row: int) -> int:
        return self.view.layout.node_kind[self.view.allocations[self.jobs.id.item(row)][0].node]

    def _content(self, row: int) -> bool:
        """Whether a running row has just what it is to have."""
        return bool(self.counts[row, self._kind(row)] == self.jobs.held[row])

    def _place(self, row: int) -> None:
        """Devices of the fastest kind of which it is to have some, for a row on its way; where it is, if it may stay there."""
        view, jobs, job = self.view, self.jobs, self.jobs.id.item(row)
        held = view.allocations.get(job, ())
        wanted = row_request(view.layout, view.specs[job], jobs, row, held, refused=view.avoid.get(job, 0))
        kinds = (
            kind for group in fastest_first(view, row, wanted).groups for kind in bits(group) if self.counts[row, kind]
        )
        for kind in kinds:
            count = int(self.counts[row, kind])
            request = row_request(view.layout, view.specs[job], jobs, row, held, count, view.avoid.get(job, 0))
            found = place(self.board, replace(request, groups=(1 << kind,)))
            if found is not None:
                self.board.acquire(found)
                self.placed[row] = found
                return

    def _moves(self, leaving: list[int]) -> list[Move]:
        """Suspensions, then everything in an order in which each move finds its devices free; who would wait for a ring of
        others is suspended, and comes back with the next plan."""
        ids, allocations = self.jobs.id, self.view.allocations
        moves: list[Move] = []
        board = self.view.board()
        pending = list(self.placed)
        for row in leaving:
            if row not in self.placed:
                moves.append(Suspend(ids.item(row), given(self.preferences.why(row))))
                board.release(allocations[ids.item(row)])
        while pending:
            ready = [row for row in pending if self._lands(board, row)]
            moves += [move for row in ready if (move := self._move(row)) is not None]
            pending = [row for row in pending if row not in ready]
            if pending and not ready:
                row = next(row for row in pending if ids.item(row) in allocations)
                moves.append(Suspend(ids.item(row), given(self.preferences.why(row)), replan=True))
                board.release(allocations[ids.item(row)])
                pending.remove(row)
        return moves

    def _lands(self, board: Board, row: int) -> bool:
        """Move a row on the board if its devices are free there once it has left its own."""
        mine = self.view.allocations.get(self.jobs.id.item(row))
        mark = board.mark()
        if mine is not None:
            board.release(mine)
        if board.fits(self.placed[row]):
            board.acquire(self.placed[row])
            return True
        board.undo(mark)
        return False

    def _move(self, row: int) -> Move | None:
        job, why, allocation = self.jobs.id.item(row), given(self.preferences.why(row)), self.placed[row]
        if self.jobs.state.item(row) == _RUNNING:
            mine = self.view.allocations[job]
            if mine == allocation:
                return None
            same = device_count(mine) == device_count(allocation)
            return Migrate(job, allocation, why) if same else Resize(job, allocation, why)
        if self.jobs.state.item(row) == _SUSPENDED:
            return Resume(job, allocation, why)
        return Start(job, allocation, why)
