"""What users ask for besides submitting: cancel, hold, release, drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ..model.job import State
from . import events as ev
from . import hold as holds
from . import periodic, refusals, reshape
from .admit import answer
from .book import HELD, Book
from .commands import Reply
from .leave import stop, unshield
from .react import try_launch

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
    record = book.jobs[job]
    again = record.hold_retry is not None
    if record.held_in_place or state in (State.RUNNING, State.STARTING, State.RESUMING):
        unshield(book, job)  # a failed suspension keeps planners away for a while, not its user
        refusal = None if again else holds.refusal(book, job, event.until)
        if refusal is not None:
            answer(
                book, Reply(event.op_id, job, f"job {job} cannot be suspended: {refusal}", _remedy(book), "conflict")
            )
            return
    record.user_hold = event.until
    if event.until:
        holds.arm(book, job)
    warning = _carry_out(book, job, state)
    answer(book, Reply(event.op_id, job, warning=warning))


def _carry_out(book: Book, job: int, state: State) -> str:
    """Begin an accepted hold, by where the job is; returns what its user should know."""
    if state is State.RUNNING:
        reason = holds.begin(book, job)
        return f"it runs on until it can be suspended: {reason}" if reason else ""
    if state in (State.QUEUED, State.SUSPENDED):
        if job in book.promises:
            book.revoke(job)
        book.move(job, HELD, "suspended by its user")
    return ""


def _remedy(book: Book) -> str:
    seconds = book.settings.gang_freeze_bound_us // 1_000_000
    return f"freeze it for a moment with --for (at most {seconds}s), cancel it, or submit it with --preempt cooperative"


def unhold(book: Book, event: ev.Release) -> None:
    """End a user's hold."""
    job = event.job
    if not _known(book, event.op_id, job):
        return
    if book.jobs[job].user_hold is None:
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
    holds.end(book, job, "released by its user")
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
        refusals.lift(book, index)
    book.set_node_up(index)
    answer(book, Reply(event.op_id))
