"""Requeues: an attempt ends on its user's word, and its job goes back into the queue, with the time of its submission.

As ``scontrol requeue`` it starts from its beginning, unless its user wants it to go on from its latest image.
"""

from __future__ import annotations

from ...model.cause import Cause, Code
from ...model.job import State
from ...model.job_record import JobRecord
from .. import events as ev
from .. import start_forecasts
from ..book import HELD, QUEUED, Book
from ..commands import Reply
from ..lifecycle import transition
from ..termination import release, restart, start_over, stop, wait_behind_limit
from .admission import UNNAMED
from .answers import answer, known
from .hold import because


def requeue(book: Book, event: ev.Requeue) -> None:
    """End a job's attempt and queue the job again, and answer."""
    job = event.job
    if job in book.outcomes and event.op_id not in book.answers:
        error = Code.ENDED_FOR_GOOD(job, State(book.outcomes[job]).name)
        answer(book, Reply(event.op_id, job, error, "conflict"))
        return
    if not known(book, event.op_id, job):
        return
    refused = _refused(book, event)
    if refused is not None:
        answer(book, Reply(event.op_id, job, refused, "conflict"))
        return
    record = book.jobs[job]
    warning = Code.HOLD_REQUEUED(job) if record.user_hold is not None and not event.hold else None
    record.user_hold, record.held_by = (0, event.by or UNNAMED) if event.hold else (None, "")
    record.hold_retry = None
    record.backoff_until = 0
    start_forecasts.withdraw(book, job)
    _begin(book, event, Code.REQUEUED_BY(event.by or UNNAMED))
    answer(book, Reply(event.op_id, job, warning=warning))


def _refused(book: Book, event: ev.Requeue) -> Cause | None:
    """Why a job cannot be requeued."""
    job, record, state = event.job, book.jobs[event.job], book.state(event.job)
    if record.spec.service:
        return Code.IS_REPLICA(job, record.spec.service)
    if record.ends:
        return Code.ENDING(job)
    if not has_begun(record):
        return Code.WAITS_ALREADY(job, state.name)
    return Code.NO_IMAGE_OF(job) if event.from_image and record.image is None else None


def has_begun(record: JobRecord) -> bool:
    """Whether there is an attempt to end, or an image that the next one would start from."""
    return bool(record.allocation is not None or record.suspended_as or record.restore_from)


def _begin(book: Book, event: ev.Requeue, why: Cause) -> None:
    job, record = event.job, book.jobs[event.job]
    if record.allocation is not None or record.suspended_as == "process":
        stop(book, job, QUEUED, why, anew=not event.from_image)
    elif record.suspended_as:
        restart(book, job, why, keeps_work=False, from_image=event.from_image)
    else:
        _queue_anew(book, event, why)


def _queue_anew(book: Book, event: ev.Requeue, why: Cause) -> None:
    """A job without an attempt, which was to start from an image."""
    job = event.job
    if job in book.reservations:
        book.cancel_reservation(job)
    if not event.from_image:
        start_over(book, job, book.table.row[job], keeps_work=False)
    wait_behind_limit(book, job)
    book.record(job, "REQUEUED", why)
    book.touched[job] = book.forced = True
    held = book.hold_reason(job)
    if held is not None and book.state(job) is State.QUEUED:
        transition(book, job, HELD, because(book.jobs[job]) if event.hold else held[1])
    elif book.state(job) is State.HELD:
        release(book, job, why)
