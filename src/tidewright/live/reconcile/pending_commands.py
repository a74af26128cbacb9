"""The command that a job waits for, rebuilt from the book, so that a restarted controller can send it again."""

from __future__ import annotations

from ...engine import images
from ...engine.book import Book
from ...engine.commands import CheckpointRanks, Command, ResumeRanks, StopRanks, SuspendRanks
from ...model.cause import Code
from ...model.job import Level, State


def pending_commands(book: Book, job: int) -> Command | None:
    """The command that a job in transit, or one being imaged, waits for; None when it waits for nothing."""
    record, state = book.jobs[job], book.state(job)
    attempt, allocation = record.attempt, record.allocation or ()
    level = level_of(book, job)
    if state is State.STARTING:
        return images.launch(book, job)
    if state is State.SUSPENDING:
        return SuspendRanks(job, attempt, level, allocation, serial(book, job))
    if state is State.RESUMING:
        return ResumeRanks(job, attempt, level, allocation, record.source)
    if state is State.STOPPING:
        return StopRanks(job, attempt, record.spec.grace_us, record.ending.why if record.ending else Code.CANCELLED())
    if state is State.RUNNING and serial(book, job):
        return CheckpointRanks(job, attempt, serial(book, job), allocation)
    return None


def level_of(book: Book, job: int) -> int:
    """The level by which the job is preempted at present: a gang held in place is frozen whatever its level."""
    record = book.jobs[job]
    if record.held_in_place:
        return int(Level.FREEZE)
    return int(Level.FULL) if record.suspended_as == "image" else book.true_level(job)


def serial(book: Book, job: int) -> int:
    """The image in the making; 0: none."""
    record = book.jobs.get(job)
    return record.saving.serial if record is not None and record.saving is not None else 0
