"""Conformance kit for policies: run ``check_policy(factory)`` in a test of yours. Every built-in policy passes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from ..model.board import Board
from ..model.cause import Cause
from ..model.job import Level, State
from ..model.node import Allocation
from ..model.table import COLUMNS
from ..model.view import View
from ..plan.moves import Migrate, Move, Resize, Resume, Start, Stop, Suspend
from ..plan.plan import Plan, Planner
from ..plan.render import misused, render
from ..plan.request import row_request
from .views import ViewBuilder, pool, random_view


def check_policy(factory: Callable[..., Planner], views: int = 40, **settings: Any) -> None:
    """Raises AssertionError when plans of ``factory(**settings)`` break the contract of docs/policies.md.

    Checked on random views, an empty one and one of 10,000 jobs: same view, same plan (from a fresh planner too); the view
    is not written; every move is legal where it stands and the board never over-committed; gangs are whole; jobs that
    cannot be suspended are left alone; wakes lie in the future.
    """
    assert factory(**settings).name, "a planner has a name"
    check_view(factory, ViewBuilder(pool(1)).view(), settings)
    for seed in range(views):
        check_view(
            factory, random_view(seed, 3 + seed % 12, 8 * (seed % 9), 7 * (seed % 7), mixed=seed % 2 == 0), settings
        )
    check_view(factory, random_view(1, 250, 3_000, 7_000, mixed=False), settings)


def check_view(factory: Callable[..., Planner], view: View, settings: dict[str, Any]) -> Plan:
    """The contract on one view. Returns the plan."""
    before = _image(view)
    plan = factory(**settings).plan(view)
    assert _image(view) == before, "the view was written"
    view.jobs.memo.clear()  # what the first planner has worked out is not to help the second
    assert msgspec.json.encode(factory(**settings).plan(view)) == msgspec.json.encode(plan), "same view, another plan"
    check_plan(view, plan)
    return plan


def check_plan(view: View, plan: Plan) -> None:
    """Whether a plan could land whole on the view it was made of."""
    assert plan.basis == view.revision, "basis is the revision of the view"
    assert plan.wake.at == 0 or plan.wake.at > view.now, "a wake lies in the future"
    moved = [move.job for move in plan.moves]
    assert len(moved) == len(set(moved)), "one move per job"
    last = 0
    for start, stop in plan.gangs:
        assert last <= start < stop <= len(plan.moves), "gangs are runs of moves, in order, that do not overlap"
        last = stop
    board = view.board()
    for move in plan.moves:
        assert move.why, f"job {move.job} is moved without a why"
        _well_formed(move.why)
        check_move(view, board, move)
    for blocked in plan.blocked:
        assert blocked.job in view.specs, "blocked jobs are jobs of the view"
        assert blocked.why, f"job {blocked.job} is blocked without a why"
        _well_formed(blocked.why)


def _well_formed(why: Cause | str) -> None:
    wrong = misused(why) if isinstance(why, Cause) else ""
    assert not wrong, wrong


def check_move(view: View, board: Board, move: Move) -> None:
    """Whether a move is legal on the board as the moves before it left it; makes it."""
    jobs, row = view.jobs, view.jobs.row[move.job]
    state = State(int(jobs.state[row]))
    if isinstance(move, Start | Resume):
        wanted = State.QUEUED if isinstance(move, Start) else State.SUSPENDED
        assert state is wanted, f"{type(move).__name__} of job {move.job}, which is {state.name}"
        assert not jobs.reserved[row], f"job {move.job} already has devices reserved"
        _take(view, board, row, move.allocation)
    elif not isinstance(move, Stop):
        _leave(view, board, row, move)


def _leave(view: View, board: Board, row: int, move: Suspend | Migrate | Resize) -> None:
    jobs = view.jobs
    assert State(int(jobs.state[row])) is State.RUNNING, f"job {move.job} does not run"
    level, mine = int(jobs.level[row]), view.allocations[move.job]
    assert level > int(Level.NONE), f"job {move.job} cannot be suspended"
    assert level != int(Level.FREEZE) or len(mine) == 1, f"job {move.job} spans nodes and cannot be frozen"
    board.release(mine)
    if not isinstance(move, Suspend):
        _take(view, board, row, move.allocation)


def _take(view: View, board: Board, row: int, allocation: Allocation) -> None:
    jobs, layout = view.jobs, view.layout
    job = int(jobs.id[row])
    wrong = row_request(layout, view.specs[job], jobs, row, view.allocations.get(job, ())).reject(allocation, layout)
    assert wrong is None, f"job {job}: {render(wrong)}"
    assert board.fits(allocation), f"devices of job {job} are not free"
    board.acquire(allocation)


def _image(view: View) -> tuple[Any, ...]:
    board = view.board()
    columns = tuple(np.asarray(getattr(view.jobs, name)).tobytes() for name in COLUMNS)
    return (
        columns,
        tuple(board.free),
        tuple(sorted(board.partial.items())),
        dict(view.allocations),
        dict(view.reservations),
    )
