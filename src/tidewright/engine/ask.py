"""What users ask for besides submitting: cancel, hold, release, drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..model.job import Level, State
from . import events as ev
from . import periodic, reshape
from .admit import answer
from .book import HELD, Book
from .commands import Reply
from .land import suspend_for_user, unsuspendable
from .leave import stop
from .react import end_hold, try_launch

Wish = TypeVar("Wish", ev.Move, ev.Scale)


def _known(book: Book, op_id: str, job: int) -> bool:
    """Whether to go on: the job is in the book and the call is new. Otherwise the answer has been given."""
    earlier = book.answers.get(op_id) if op_id else None
    if earlier is not None:
        book.out.append(earlier)
        return False
    if job in book.specs:
        return True
    outcome = book.outcomes.get(job)
    if outcome is None:
        answer(book, Reply(op_id, job, f"no job {job}", "list jobs with tide ps --all", "notfound"))
    else:
        answer(
            book,
            Reply(
                op_id, job, f"job {job} has already ended ({State(outcome).name})", "nothing is left to do", "conflict"
            ),
        )
    return False


def cancel(book: Book, event: ev.Cancel) -> None:
    """End a job, whatever it is doing."""
    if _known(book, event.op_id, event.job):
        stop(book, event.job, int(State.CANCELLED), "cancelled by its user")
        answer(book, Reply(event.op_id, event.job))


def hold(book: Book, event: ev.Hold) -> None:
    """Suspend a job until its user releases it, or until a time."""
    job = event.job
    if not _known(book, event.op_id, job):
        return
    state = book.state(job)
    if state is State.STOPPING:
        answer(book, Reply(event.op_id, job, f"job {job} is being stopped", "nothing is left to suspend", "conflict"))
        return
    if job in book.pins or state in (State.RUNNING, State.STARTING, State.RESUMING):
        refusal = _cannot_hold(book, job, event)
        if refusal is not None:
            answer(
                book, Reply(event.op_id, job, f"job {job} cannot be suspended: {refusal}", _remedy(book), "conflict")
            )
            return
    book.user_holds[job] = event.until
    if event.until:
        book.set_timer(event.until, "hold", job, event.until)
    if state is State.RUNNING:
        suspend_for_user(book, job)
    elif state in (State.QUEUED, State.SUSPENDED):
        if job in book.promises:
            book.revoke(job)
        book.move(job, HELD, "suspended by its user")
    answer(book, Reply(event.op_id, job))


def _remedy(book: Book) -> str:
    seconds = book.settings.gang_freeze_bound_us // 1_000_000
    return f"freeze it for a moment with --for (at most {seconds}s), cancel it, or submit it with --preempt cooperative"


def _cannot_hold(book: Book, job: int, event: ev.Hold) -> str | None:
    """Why a job that has its devices cannot be held; a gang that may be frozen for a bounded time is pinned to its devices."""
    row = book.table.row[job]
    if job in book.pins:
        thaw_by = int(book.table.since[row]) + book.settings.gang_freeze_bound_us
        return None if 0 < event.until <= thaw_by else "its gang is frozen for a moment and has to be thawed in time"
    if book.state(job) is not State.RUNNING and book.table.level[row] == Level.NONE and book.specs[job].ranks > 1:
        return "it is still coming up and cannot be frozen afterwards"
    reason = unsuspendable(book, job, row)
    if book.state(job) is not State.RUNNING:
        return reason
    gang = book.specs[job].ranks > 1 and book.specs[job].preempt in ("auto", "freeze") and job not in book.shields
    one_node = len(book.allocations[job]) == 1
    bounded = event.until and event.until - book.now <= book.settings.gang_freeze_bound_us
    if reason is not None and gang and one_node and bounded:
        book.pins[job] = True
        return None
    return reason


def unhold(book: Book, event: ev.Release) -> None:
    """End a user's hold."""
    job = event.job
    if not _known(book, event.op_id, job):
        return
    if job not in book.user_holds:
        state = book.state(job).name
        answer(
            book,
            Reply(
                event.op_id,
                job,
                f"job {job} is not held by its user; it is {state}",
                f"ask why: tide why {job}",
                "conflict",
            ),
        )
        return
    end_hold(book, job, "released by its user")
    answer(book, Reply(event.op_id, job))


def move(book: Book, event: ev.Move) -> None:
    """Bring a job to other nodes."""
    _reshape(book, event, reshape.move)


def scale(book: Book, event: ev.Scale) -> None:
    """Change on how many devices a job runs."""
    _reshape(book, event, reshape.scale)


def _reshape(book: Book, event: Wish, do: Callable[[Book, Wish], list[int]]) -> None:
    if not _known(book, event.op_id, event.job):
        return
    try:
        promised = do(book, event)
    except reshape.Refusal as refusal:
        error, remedy, kind = refusal.said
        answer(book, Reply(event.op_id, event.job, error, remedy, kind))
        return
    answer(book, Reply(event.op_id, event.job))
    for job in promised:
        if job in book.promises:
            try_launch(book, job)


def take_image(book: Book, event: ev.TakeImage) -> None:
    """Image a running job at once."""
    job = event.job
    if not _known(book, event.op_id, job):
        return
    refusal = periodic.take_now(book, job)
    if refusal is None:
        answer(book, Reply(event.op_id, job))
    else:
        remedy = f"see how it is with tide show {job}"
        answer(book, Reply(event.op_id, job, f"no image of job {job} can be taken: {refusal}", remedy, "conflict"))


def drain(book: Book, event: ev.NodeDrain) -> None:
    """Keep new work off a node, or let it back."""
    index = book.nodes.get(event.name)
    if index is None:
        answer(
            book,
            Reply(event.op_id, error=f"no node {event.name!r}", remedy="list nodes with tide nodes", kind="notfound"),
        )
        return
    if event.on:
        book.drained[index] = event.why or "drained by an operator"
        for job in list(book.promise_order.get(index, ())):
            book.revoke(job)
    else:
        book.drained.pop(index, None)
    book.set_node_up(index)
    answer(book, Reply(event.op_id))
