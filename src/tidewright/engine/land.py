"""Landing a plan: each move is checked again against the book as it is now, and applied or refused with a reason."""

from __future__ import annotations

from ..base.units import WHOLE_DEVICE
from ..model.job import Level, State
from ..model.node import Allocation, device_count
from ..plan.moves import Migrate, Move, Resize, Resume, Start, Stop, Suspend
from ..plan.plan import Plan
from . import images
from .book import QUEUED, RUNNING, SUSPENDED, Book
from .commands import SuspendRanks
from .leave import stop

_SUSPENDING = int(State.SUSPENDING)
_BEGINS, _LETS_GO = (Start, Resume), (Suspend, Migrate, Resize)


def land(book: Book, plan: Plan) -> list[int]:
    """Apply what still holds. Returns the jobs that were promised devices."""
    promised: list[int] = []
    gangs = dict(plan.gangs)
    at = 0
    while at < len(plan.moves):
        after = gangs.get(at, at + 1)
        group = plan.moves[at:after]
        refusal = _refusal(book, group)
        if refusal is None:
            for move in group:
                apply(book, move, promised)
        else:
            book.refused = True
            if group[-1].job in book.specs:
                book.tell(group[-1].job, "REFUSED", refusal)
        at = max(after, at + 1)
    return promised


def _refusal(book: Book, group: tuple[Move, ...]) -> str | None:
    """Why this group cannot land whole; the board is left as it was."""
    if len(group) == 1:
        return illegal(book, group[0])
    board = book.board
    mark = board.mark()
    seen: dict[int, bool] = {}
    try:
        for move in group:
            if move.job in seen:
                return f"job {move.job} is named twice in one gang"
            seen[move.job] = True
            if isinstance(move, Stop):
                return "a stop can end other jobs and is no part of a gang"
            reason = illegal(book, move)
            if reason is not None:
                return reason
            if isinstance(move, _LETS_GO):
                board.give(book.allocations[move.job])
            if not isinstance(move, Suspend):
                board.take(move.allocation)
        return None
    finally:
        board.undo(mark)


def illegal(book: Book, move: Move) -> str | None:
    """Why a move does not hold against the book as it is, or None."""
    job = move.job
    row = book.table.row.get(job)
    if row is None:
        return f"job {job} has ended"
    state = book.table.state.item(row)
    if isinstance(move, _BEGINS):
        wanted = QUEUED if isinstance(move, Start) else SUSPENDED
        if state != wanted:
            return f"job {job} is {State(state).name}"
        if job in book.promises:
            return f"job {job} already has devices promised"
        return misshapen(book, job, row, move.allocation) or _taken(book, move.allocation)
    if isinstance(move, Stop):
        return None
    if state != RUNNING:
        return f"job {job} is {State(state).name}"
    reason = unsuspendable(book, job, row)
    if reason is None and not isinstance(move, Suspend):
        reason = misshapen(book, job, row, move.allocation) or _no_room_to_move(book, job, move.allocation)
    return reason


def _taken(book: Book, allocation: Allocation) -> str | None:
    return None if book.board.fits(allocation) else "its devices are no longer free"


def _no_room_to_move(book: Book, job: int, allocation: Allocation) -> str | None:
    """Whether the new devices are free once the job has left its old ones; a frozen job cannot leave its node."""
    if book.table.level[book.table.row[job]] == Level.FREEZE and allocation[0].node != book.allocations[job][0].node:
        return "its memory is frozen in place; it cannot leave its node"
    mark = book.board.mark()
    book.board.give(book.allocations[job])
    reason = _taken(book, allocation)
    book.board.undo(mark)
    return reason


def misshapen(book: Book, job: int, row: int, allocation: Allocation) -> str | None:
    """Whether an allocation is one this job could ask for."""
    table, layout = book.table, book.board.layout
    kinds, memory, home = table.kinds.item(row), table.memory.item(row), table.home.item(row)
    origin = table.origin.item(row)
    seen = 0
    for node, mask, milli in allocation:
        if not 0 <= node < len(layout.nodes) or mask <= 0 or mask >> layout.node_size[node] or seen >> node & 1:
            return "the allocation names devices that do not exist, or a node twice"
        seen |= 1 << node
        if not kinds >> layout.node_kind[node] & 1:
            return f"devices of kind {layout.nodes[node].kind} were not asked for"
        if milli != (layout.share_milli(node, memory) if memory else WHOLE_DEVICE) or milli > WHOLE_DEVICE:
            return "the share of a device is not the one asked for"
        if home >= 0 and node != home:
            return f"its memory is frozen on {layout.nodes[home].name}"
        if origin >= 0 and not (layout.nodes[node].full and layout.node_kind[node] == origin):
            return f"its image needs nodes that take full images and have devices of kind {layout.kinds[origin]}"
    count = device_count(allocation)
    if not table.floor.item(row) <= count <= table.demand.item(row):
        return f"{count} devices where {table.floor[row]} to {table.demand[row]} were asked for"
    if book.specs[job].placement == "one-node" and len(allocation) > 1:
        return "asked for one node"
    return None


def unsuspendable(book: Book, job: int, row: int) -> str | None:
    """Why a running job cannot be made to give its devices back, or None."""
    level = book.table.level.item(row)
    if book.jobs[job].suspend_cooldown is not None:
        return "its last suspension failed a moment ago"
    return _never(book, job) if level == Level.NONE else None


def _never(book: Book, job: int) -> str:
    """Why a job of level NONE has it."""
    spec, cap = book.specs[job], book.jobs[job].level_cap
    if spec.preempt == "none":
        return "its user asked for preempt: none"
    if cap is not None:
        return cap.why
    single = spec.ranks == 1
    useless = images.why_unfrozen(book, book.allocations[job]) if single or spec.preempt == "freeze" else None
    return useless or (
        "ranks frozen longer than their process-group timeout die; give it preempt: cooperative to make it yield"
    )


def apply(book: Book, move: Move, promised: list[int]) -> None:
    """Make a legal move."""
    job = move.job
    if isinstance(move, _BEGINS):
        book.commit(job, move.allocation)
        book.tell(job, "PROMISED", move.why)
        promised.append(job)
    elif isinstance(move, Stop):
        stop(book, job, int(State.CANCELLED), move.why)
    else:
        begin_suspension(book, job, move.why)
        if not isinstance(move, Suspend) or move.eager:
            book.jobs[job].replan_on_release = True
        book.table.preemptions[book.table.row[job]] += 1
        if not isinstance(move, Suspend):
            book.commit(job, move.allocation)
            book.tell(job, "PROMISED", move.why)


def begin_suspension(book: Book, job: int, why: str) -> None:
    """Ask the world to take the devices from a running job."""
    book.end_service(job)
    row, record = book.move(job, _SUSPENDING, why), book.jobs[job]
    if not record.held_in_place:
        book.uncommit(job)
    level = int(Level.FREEZE) if record.held_in_place else book.table.level.item(row)
    serial = images.order(book, job, row) if level == Level.FULL else 0
    book.out.append(SuspendRanks(job, record.attempt, level, book.allocations[job], serial))
