"""Applying a plan: each move is checked again against the book as it is now, and applied or refused with a reason."""

from __future__ import annotations

from ..model.cause import Cause, Code, given
from ..model.job import Level, State
from ..model.node import Allocation, without_memory
from ..plan.moves import Migrate, Move, Resize, Resume, Start, Stop, Suspend
from ..plan.plan import Plan
from . import images
from .book import QUEUED, RUNNING, SUSPENDED, Book
from .lifecycle import transition
from .termination import stop

_SUSPENDING = int(State.SUSPENDING)
_BEGINS, _RELEASES = (Start, Resume), (Suspend, Migrate, Resize)


def apply_plan(book: Book, plan: Plan, refused: dict[str, int]) -> list[int]:
    """Apply what still holds. Returns the jobs with a new reservation; counts refused moves in ``refused``, by code."""
    reserved: list[int] = []
    gangs = dict(plan.gangs)
    at = 0
    while at < len(plan.moves):
        after = gangs.get(at, at + 1)
        group = plan.moves[at:after]
        refusal = _refusal(book, group)
        if refusal is None:
            for move in group:
                apply_move(book, move, reserved)
        else:
            book.refused = True
            refused[refusal.code] = refused.get(refusal.code, 0) + len(group)
            if group[-1].job in book.specs:
                book.record(group[-1].job, "REFUSED", refusal)
        at = max(after, at + 1)
    return reserved


def _refusal(book: Book, group: tuple[Move, ...]) -> Cause | None:
    """Why this group cannot be applied whole; the board is left as it was."""
    if len(group) == 1:
        return illegal(book, group[0])
    board = book.board
    mark = board.mark()
    seen: dict[int, bool] = {}
    try:
        for move in group:
            if move.job in seen:
                return Code.NAMED_TWICE(move.job)
            seen[move.job] = True
            if isinstance(move, Stop):
                return Code.STOP_IN_GANG()
            reason = illegal(book, move)
            if reason is not None:
                return reason
            if isinstance(move, _RELEASES):
                board.release(_released(book, move))
            if not isinstance(move, Suspend):
                board.acquire(move.allocation)
        return None
    finally:
        board.undo(mark)


def _is_frozen_in_time(book: Book, move: Move) -> bool:
    """Whether a job of level FULL is frozen instead: its image would take longer than the plan has time for."""
    if not isinstance(move, Suspend) or not move.within_us:
        return False
    table, row = book.table, book.table.row[move.job]
    if table.level.item(row) != Level.FULL or table.save_us.item(row) <= move.within_us:
        return False
    return book.specs[move.job].may_be_frozen and images.why_unfrozen(book, book.allocations[move.job]) is None


def _released(book: Book, move: Move) -> Allocation:
    """What a move frees: of a job that is frozen by it all but the host memory."""
    allocation = book.allocations[move.job]
    frozen = isinstance(move, Suspend) and book.table.level.item(book.table.row[move.job]) == Level.FREEZE
    return without_memory(allocation) if frozen else allocation


def illegal(book: Book, move: Move) -> Cause | None:
    """Why a move does not hold against the book as it is, or None."""
    job = move.job
    row = book.table.row.get(job)
    if row is None:
        return Code.JOB_ENDED(job)
    state = book.table.state.item(row)
    if isinstance(move, _BEGINS):
        wanted = QUEUED if isinstance(move, Start) else SUSPENDED
        if state != wanted:
            return Code.JOB_IS(job, State(state).name)
        if job in book.reservations:
            return Code.HAS_RESERVATION(job)
        return rejected(book, job, move.allocation) or _taken(book, move.allocation)
    if isinstance(move, Stop):
        return None
    if state != RUNNING:
        return Code.JOB_IS(job, State(state).name)
    reason = unsuspendable(book, job, row)
    if reason is None and not isinstance(move, Suspend):
        reason = rejected(book, job, move.allocation) or _no_room_to_move(book, job, move.allocation)
    return reason


def _taken(book: Book, allocation: Allocation) -> Cause | None:
    return None if book.board.fits(allocation) else Code.DEVICES_TAKEN()


def _no_room_to_move(book: Book, job: int, allocation: Allocation) -> Cause | None:
    """Whether the new devices are free once the job has left its old ones."""
    mark = book.board.mark()
    book.board.release(book.allocations[job])
    reason = _taken(book, allocation)
    book.board.undo(mark)
    return reason


def rejected(book: Book, job: int, allocation: Allocation) -> Cause | None:
    """Why the job may not have these devices, free or not, or None."""
    return book.request(job).reject(allocation, book.board.layout)


def unsuspendable(book: Book, job: int, row: int) -> Cause | None:
    """Why a running job cannot be suspended, or None."""
    level = book.table.level.item(row)
    if book.jobs[job].suspend_cooldown is not None:
        return Code.SUSPENSION_JUST_FAILED()
    return _never(book, job) if level == Level.NONE else None


def _never(book: Book, job: int) -> Cause:
    """Why a job of level NONE has it."""
    spec, cap, runtime = book.specs[job], book.jobs[job].level_cap, book.jobs[job].runtime_job
    if runtime:
        return Code.FOLLOWS_RUNTIME(job, runtime)
    if spec.preempt == "none":
        return Code.PREEMPT_NONE()
    if cap is not None:
        return cap.why
    single = spec.ranks == 1
    useless = images.why_unfrozen(book, book.allocations[job]) if single or spec.preempt == "freeze" else None
    return useless or Code.GANG_TIMEOUT()


def apply_move(book: Book, move: Move, reserved: list[int]) -> None:
    """Make a legal move."""
    job, why = move.job, given(move.why)
    if isinstance(move, _BEGINS):
        book.reserve(job, move.allocation)
        book.record(job, "RESERVED", why)
        reserved.append(job)
    elif isinstance(move, Stop):
        stop(book, job, int(State.CANCELLED), why)
    else:
        if _is_frozen_in_time(book, move):
            images.lower_to_freeze(book, job)
        transition(book, job, _SUSPENDING, why)
        if not isinstance(move, Suspend) or move.replan:
            book.jobs[job].replan_on_release = True
        book.table.preemptions[book.table.row[job]] += 1
        if not isinstance(move, Suspend):
            book.reserve(job, move.allocation)
            book.record(job, "RESERVED", why)
