"""The image that further replicas of a service start from: the first one that is warmed up is suspended into it, and stays so.

The replica stays a job, held: where its image lies, its copies, and what becomes of them when nodes die is as for any image. It
counts as no replica. A service whose images fail goes on with replicas that start from the beginning.
"""

from __future__ import annotations

from ...base.units import MINUTE
from ...model.cause import Cause, Code
from ...model.job import State
from .. import events as ev
from .. import images
from ..book import HELD, RUNNING, Book
from ..commands import Ended, Reply
from ..requests import hold
from ..requests.answers import answer
from ..termination import end_cooldown, stop
from .calls import known
from .records import ServiceRecord, alive

TRIES = 3
"""Images of one version that fail until its replicas start from the beginning for good."""
FAILURES = 2
"""Replicas that cannot be started from an image, or end soon, until it is dropped."""
SOON_US = MINUTE


def take(book: Book, event: ev.TakeServiceImage) -> None:
    """Suspend a warmed-up replica into the image of its service."""
    record, job = known(book, event.name, event.op_id), event.job
    if record is None:
        return
    why = refusal(book, record, job, event.attempt)
    if why is not None:
        answer(book, Reply(event.op_id, job, Code.NO_SERVICE_IMAGE(job, event.name, why), "conflict"))
        return
    record.image_job, record.image_failures = job, 0
    record.ready.pop(job, None)
    book.jobs[job].user_hold = 0
    end_cooldown(book, job)
    images.settle_level(book, job, book.table.row[job])
    hold.suspend_for_user(book, job, Code.BECOMES_SERVICE_IMAGE(event.name))
    answer(book, Reply(event.op_id, job))


def refusal(book: Book, record: ServiceRecord, job: int, attempt: int) -> Cause | None:
    """Why no image is taken of a replica, or None."""
    why = unwanted(record)
    if why is not None:
        return why
    known_job = book.jobs.get(job) if job in alive(record) else None  # it may have ended in this very step
    if known_job is None or record.replicas[job] != record.version or known_job.attempt != attempt:
        return Code.NOT_A_REPLICA()
    if known_job.state != RUNNING or known_job.saving is not None:
        return Code.STATE_IS(State(known_job.state).word)
    return None if images.takes_images(book, book.allocations[job]) else Code.NO_IMAGES_THERE()


def unwanted(record: ServiceRecord) -> Cause | None:
    """Why a service wants no image, or none any more; None: it does."""
    if not record.spec.from_image:
        return Code.REPLICAS_START_ANEW()
    if record.image_job:
        return Code.HAS_SERVICE_IMAGE(record.image_job)
    return record.image_error if record.image_tries >= TRIES else None


def being_taken(book: Book, record: ServiceRecord) -> bool:
    """Whether the image will soon be there: replicas wait for it."""
    return bool(record.image_job) and book.jobs[record.image_job].state == State.SUSPENDING


def settle(book: Book, record: ServiceRecord) -> None:
    """An image that could not be taken leaves a replica like any other. One that is of no use any more is dropped."""
    job = record.image_job
    if not job or job not in book.jobs:
        return
    known_job = book.jobs[job]
    if known_job.state == RUNNING and known_job.hold_retry is not None:
        _give_up(book, record, known_job.hold_retry.error)
    elif record.replicas[job] != record.version:
        _drop(book, record, Code.SERVICE_UPDATED(record.spec.name, record.version))
    elif not record.spec.from_image:
        _drop(book, record, Code.REPLICAS_START_ANEW())
    elif known_job.state != State.SUSPENDING and not (known_job.state == HELD and known_job.image_only):
        _failed(book, record, Code.SERVICE_IMAGE_GONE())


def _give_up(book: Book, record: ServiceRecord, error: Cause) -> None:
    """The replica runs on, as such."""
    job, record.image_job = record.image_job, 0
    record.image_tries, record.image_error = record.image_tries + 1, error
    known_job = book.jobs[job]
    known_job.user_hold = known_job.hold_retry = None
    end_cooldown(book, job)
    images.settle_level(book, job, book.table.row[job])


def start_failed(book: Book, job: int, error: Cause, *, lost: bool) -> None:
    """A replica could not be started where it was to be; perhaps for its image."""
    record = book.services.of_replica(book.specs[job].service)
    if record is None or images.launch_source(book, job, book.allocations[job])[0] in (0, job):
        return
    record.image_failures += 1
    if lost or record.image_failures >= FAILURES:
        _failed(book, record, Code.STARTED_FROM_IT(error))


def ended(book: Book, record: ServiceRecord, how: Ended) -> None:
    """A replica of the present version ended by itself; soon after its start that may be for its image."""
    soon = how.first_start >= 0 and how.end - how.first_start < SOON_US
    if not soon or how.state == State.CANCELLED or record.image_job not in book.jobs:
        return
    record.image_failures += 1
    if record.image_failures >= FAILURES:
        _failed(book, record, Code.ENDED_SOON())


def _failed(book: Book, record: ServiceRecord, why: Cause) -> None:
    record.image_tries, record.image_error = record.image_tries + 1, why
    _drop(book, record, why)


def _drop(book: Book, record: ServiceRecord, why: Cause) -> None:
    job, record.image_job = record.image_job, 0
    record.retired[job] = True
    book.services.changed[record.spec.name] = True
    stop(book, job, int(State.CANCELLED), Code.SERVICE_IMAGE_DROPPED(record.spec.name, why))
