"""Two small planners: plain first come, first served, and one that moves jobs about at random to test the world."""

from __future__ import annotations

import numpy as np

from tidewright.base.rng import stream
from tidewright.base.units import SECOND
from tidewright.model.board import Board, whole
from tidewright.model.job import State
from tidewright.model.node import Allocation
from tidewright.model.view import View
from tidewright.plan.moves import Migrate, Move, Resize, Resume, Start, Suspend
from tidewright.plan.plan import Plan, Wake


def gather(board: Board, count: int) -> Allocation | None:
    """The first free devices, wherever they are."""
    parts, left = [], count
    for node, free in enumerate(board.free):
        mask = 0
        while free and left and board.up >> node & 1:
            low = free & -free
            mask, free, left = mask | low, free ^ low, left - 1
        if mask:
            parts.append(whole(node, mask))
    return tuple(parts) if not left else None


class FirstCome:
    """Strict first come, first served."""

    name = "first-come"

    def plan(self, view: View) -> Plan:
        board, moves = view.board(), []
        for row in waiting(view):
            allocation = gather(board, int(view.jobs.demand[row]))
            if allocation is None:
                break
            board.acquire(allocation)
            moves.append(Start(int(view.jobs.id[row]), allocation, "first come"))
        return Plan(view.revision, tuple(moves))


class Churn:
    """Starts what fits; suspends, migrates and resizes at random. Wakes itself every few seconds."""

    name = "churn"

    def __init__(self, seed: int, busy: float) -> None:
        self.rng = stream(seed, "churn")
        self.busy = busy

    def plan(self, view: View) -> Plan:
        board, jobs, moves = view.board(), view.jobs, []
        moves.extend(
            move
            for row in np.flatnonzero(jobs.state == int(State.RUNNING))
            if (move := self._disturb(view, board, int(row)))
        )
        for row in waiting(view):
            floor, demand = int(jobs.floor[row]), int(jobs.demand[row])
            allocation = gather(board, demand) or gather(board, floor)
            if allocation is not None:
                board.acquire(allocation)
                kind = Start if jobs.state[row] == int(State.QUEUED) else Resume
                moves.append(kind(int(jobs.id[row]), allocation, "fits"))
        return Plan(view.revision, tuple(moves), wake=Wake(at=view.now + self.rng.randint(1, 40) * SECOND))

    def _disturb(self, view: View, board: Board, row: int) -> Move | None:
        job = int(view.jobs.id[row])
        if self.rng.random() > self.busy:
            return None
        choice = self.rng.random()
        if choice < 0.5:
            return Suspend(job, "churn")
        count = (
            int(view.jobs.held[row])
            if choice < 0.8
            else self.rng.randint(int(view.jobs.floor[row]), int(view.jobs.demand[row]))
        )
        allocation = gather(board, count)
        if allocation is None:
            return None
        board.acquire(allocation)
        return (Migrate if choice < 0.8 else Resize)(job, allocation, "churn")


def waiting(view: View) -> list[int]:
    """Rows that want devices, in order of arrival."""
    rows = np.flatnonzero(view.jobs.waiting)
    return [int(row) for row in rows[np.argsort(view.jobs.id[rows], kind="stable")]]
