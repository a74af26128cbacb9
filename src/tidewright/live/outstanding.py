"""What a job waits for, as it was commanded: rebuilt from the book, so that a controller which has forgotten asks again."""

from __future__ import annotations

from ..engine.book import Book
from ..engine.commands import CheckpointRanks, Command, Launch, ResumeRanks, StopRanks, SuspendRanks
from ..model.job import Level, State


def outstanding(book: Book, job: int) -> Command | None:
    """The command that a job in transit, or one being imaged, waits for; None when it waits for nothing."""
    row, state = book.table.row[job], book.state(job)
    attempt, allocation = int(book.table.attempt[row]), book.allocations.get(job, ())
    level = level_of(book, job)
    if state is State.STARTING:
        return Launch(job, attempt, allocation, book.from_image.get(job, 0))
    if state is State.SUSPENDING:
        return SuspendRanks(job, attempt, level, allocation, serial(book, job))
    if state is State.RESUMING:
        return ResumeRanks(job, attempt, level, allocation, book.source(job))
    if state is State.STOPPING:
        return StopRanks(job, attempt, book.specs[job].grace_us, book.ending[job][1])
    if state is State.RUNNING and serial(book, job):
        return CheckpointRanks(job, attempt, serial(book, job), allocation)
    return None


def level_of(book: Book, job: int) -> int:
    """How the job is made to yield now: shields hide it from planners, a pinned gang is frozen whatever it is."""
    if job in book.pins:
        return int(Level.FREEZE)
    if book.imaged.get(job) is False:
        return int(Level.FULL)
    return book.shields.get(job, int(book.table.level[book.table.row[job]]))


def serial(book: Book, job: int) -> int:
    """The image in the making; 0: none."""
    saving = book.saving.get(job)
    return saving.serial if saving is not None else 0
