"""What users ask for besides submitting: cancel, hold, release, drain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from ...model.cause import Cause, Code
from ...model.job import State
from ...model.job_record import JobRecord
from .. import events as ev
from .. import periodic, rates, start_forecasts
from ..book import HELD, Book
from ..commands import Reply
from ..lifecycle import transition
from ..nodes import drains
from ..reports import try_launch
from ..termination import end_cooldown, stop
from . import hold as hold_requests
from . import user_moves
from .admission import answer

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
        answer(book, Reply(op_id, job, Code.NO_SUCH_JOB(job), "notfound"))
    else:
        answer(book, Reply(op_id, job, Code.ENDED_ALREADY(job, State(outcome).name), "conflict"))
    return False


def cancel(book: Book, event: ev.Cancel) -> None:
    """End a job, whatever it is doing."""
    if _known(book, event.op_id, event.job):
        stop(book, event.job, int(State.CANCELLED), Code.CANCELLED())
        answer(book, Reply(event.op_id, event.job))


def hold(book: Book, event: ev.Hold) -> None:
    """Suspend a job until its user releases it, or until a time."""
    job = event.job
    if not _known(book, event.op_id, job):
        return
    state, record = book.state(job), book.jobs[job]
    if state is State.STOPPING and record.ending is not None and record.ending.state == State.QUEUED:
        _hold_after_stop(book, event, record)
        return
    if state is State.STOPPING:
        answer(book, Reply(event.op_id, job, Code.BEING_STOPPED(job), "conflict"))
        return
    again = record.hold_retry is not None
    if record.held_in_place or state in (State.RUNNING, State.STARTING, State.RESUMING):
        end_cooldown(book, job)  # the cooldown after a failed suspension binds planners, not its user
        refusal = None if again else hold_requests.refusal(book, job, event.until)
        if refusal is not None:
            error = Code.NOT_SUSPENDABLE(job, refusal, book.settings.gang_freeze_bound_us)
            answer(book, Reply(event.op_id, job, error, "conflict"))
            return
    record.user_hold = event.until
    start_forecasts.withdraw(book, job)
    if event.until:
        hold_requests.arm(book, job)
    warning = _carry_out(book, job, state)
    answer(book, Reply(event.op_id, job, warning=warning))


def _hold_after_stop(book: Book, event: ev.Hold, record: JobRecord) -> None:
    """A job that is being stopped, and was to start again, is held instead."""
    record.user_hold = event.until
    start_forecasts.withdraw(book, event.job)
    if event.until:
        hold_requests.arm(book, event.job)
    answer(book, Reply(event.op_id, event.job))


def _carry_out(book: Book, job: int, state: State) -> Cause | None:
    """Begin an accepted hold, by where the job is; returns what its user should know."""
    if state is State.RUNNING:
        reason = hold_requests.begin(book, job)
        return Code.RUNS_UNTIL_SUSPENDABLE(reason) if reason else None
    if state in (State.QUEUED, State.SUSPENDED):
        transition(book, job, HELD, Code.HELD_BY_USER())
    return None


def unhold(book: Book, event: ev.Release) -> None:
    """End a user's hold."""
    job = event.job
    if not _known(book, event.op_id, job):
        return
    if book.jobs[job].user_hold is None:
        state = book.state(job).name
        answer(book, Reply(event.op_id, job, Code.NOT_HELD(job, state), "conflict"))
        return
    hold_requests.end(book, job, Code.HOLD_RELEASED())
    answer(book, Reply(event.op_id, job))


def move(book: Book, event: ev.Move) -> None:
    """Bring a job to other nodes."""
    _carry_out_move(book, event, user_moves.move)


def scale(book: Book, event: ev.Scale) -> None:
    """Change on how many devices a job runs."""
    _carry_out_move(book, event, user_moves.scale)


def _carry_out_move(book: Book, event: Wish, do: Callable[[Book, Wish], list[int]]) -> None:
    if not _known(book, event.op_id, event.job):
        return
    try:
        reserved = do(book, event)
    except user_moves.Refusal as refusal:
        answer(book, Reply(event.op_id, event.job, refusal.why, refusal.kind))
        return
    start_forecasts.withdraw(book, event.job)
    answer(book, Reply(event.op_id, event.job))
    for job in reserved:
        if job in book.reservations:
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
        answer(book, Reply(event.op_id, job, Code.NO_IMAGE_NOW(job, refusal), "conflict"))


def drain(book: Book, event: ev.NodeDrain) -> None:
    """Keep new work off a node, or let it back."""
    index = book.nodes.get(event.name)
    if index is None:
        answer(book, Reply(event.op_id, error=Code.NO_SUCH_NODE(event.name), kind="notfound"))
        return
    staying: list[int] = []
    if event.on:
        staying = drains.begin(book, index, event)
    else:
        drains.end(book, index)
    book.set_node_up(index)
    warning = Code.STAY_ON_DRAINED(event.name, tuple(staying)) if staying else None
    answer(book, Reply(event.op_id, warning=warning))


def forget_rates(book: Book, event: ev.ForgetRates) -> None:
    """What jobs have shown of a workload holds no longer."""
    known = rates.forget(book, event.workload)
    answer(
        book,
        Reply(event.op_id) if known else Reply(event.op_id, error=Code.NOTHING_LEARNT(event.workload), kind="notfound"),
    )
