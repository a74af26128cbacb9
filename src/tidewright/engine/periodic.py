"""Periodic images of running jobs: when the next one is due, and what becomes of it."""

from __future__ import annotations

import math

from ..model.cause import Cause, Code, reported
from ..model.job import Level, State
from ..model.job_record import LevelCap
from ..model.rate import progress_us
from . import events as ev
from . import images
from .book import RUNNING, Book
from .commands import CheckpointRanks
from .pauses import own_save_us

_DOUBLINGS = 5
"""An image that fails again and again is tried ever more rarely, down to this power of two."""
_LEAST_COST_SHARE = 10
"""An interval is at least so many times what one image costs."""
_NEVER = -1


def interval_us(book: Book, job: int, row: int) -> int:
    """Run time between two images: sqrt(2 * C * M), C the cost of an image and M the mean time between failures on as many
    nodes (Young, CACM 17 (1974); Daly, FGCS 22 (2006), to first order). The job's own interval comes before it; 0: never.
    """
    own, settings = book.specs[job].checkpoint_us, book.settings
    if own == _NEVER:
        return 0
    if own:
        return own
    cost = max(own_save_us(book, job, row), 1)
    mtbf = book.world_failures.mtbf_us(book.now, len(book.allocations[job]), settings.node_mtbf_us)
    return max(math.isqrt(2 * cost * mtbf), _LEAST_COST_SHARE * cost, settings.checkpoint_min_us)


def schedule(book: Book, job: int) -> None:
    """A job begins to run, or was imaged: set the time of its next image."""
    record = book.jobs[job]
    record.checkpoint_at = 0
    if not book.settings.checkpoints:
        return
    row = book.table.row[job]
    if book.true_level(job) != Level.FULL:
        return
    pause = interval_us(book, job, row) << min(record.checkpoint_failures, _DOUBLINGS)
    if pause:
        _set(book, job, pause)


def due(book: Book, job: int, row: int) -> None:
    """The time has come to image a running job, or to give up on an image that was ordered."""
    record = book.jobs[job]
    record.checkpoint_at = 0
    if record.saving is not None:
        _failed(book, job, row, Code.NO_ANSWER())
    elif book.table.level.item(row) != Level.FULL:
        schedule(book, job)
    else:
        _order(book, job, row)


def take_now(book: Book, job: int) -> Cause | None:
    """Image a running job whatever its next image's time; why not, or None."""
    record, state = book.jobs[job], book.state(job)
    if state is not State.RUNNING:
        return Code.STATE_IS(state.word)
    if record.runtime_job:
        return Code.FOLLOWS_RUNTIME(job, record.runtime_job)
    if record.saving is not None:
        return Code.IMAGE_UNDER_WAY()
    level = book.true_level(job)
    if level != Level.FULL:
        name, cap = Level(level).name.lower(), record.level_cap
        return Code.LEVEL_TOO_LOW(name) if cap is None else Code.LEVEL_TOO_LOW_SINCE(name, cap.why)
    _order(book, job, book.table.row[job])
    return None


def _order(book: Book, job: int, row: int) -> None:
    book.accrue(row)
    serial = images.order(book, job, row)
    book.out.append(CheckpointRanks(job, book.jobs[job].attempt, serial, book.allocations[job]))
    _set(book, job, book.settings.checkpoint_patience_us)


def _set(book: Book, job: int, pause_us: int) -> None:
    book.jobs[job].checkpoint_at = book.now + pause_us
    book.set_timer(book.now + pause_us, "checkpoint", job, book.now + pause_us)


def checkpointed(book: Book, event: ev.Checkpointed) -> None:
    """An image is there. The job stood still meanwhile, which counts as no progress."""
    row = _ours(book, event.job, event.attempt, event.serial)
    if row is None:
        return
    job, saving = event.job, book.jobs[event.job].saving
    assert saving is not None
    book.accrue(row)
    stood = progress_us(min(event.save_us, book.now - saving.at), book.table.rate.item(row))
    book.table.ideal[row] = max(saving.ideal_us, book.table.ideal.item(row) - stood)
    learn(book, job, row, event.save_us)
    images.record(book, job, row, event.save_us, event.size_bytes)
    book.touched[job] = True
    schedule(book, job)


def checkpoint_failed(book: Book, event: ev.CheckpointFailed) -> None:
    """No image; the next attempt is later."""
    row = _ours(book, event.job, event.attempt, event.serial)
    if row is None:
        return
    _failed(book, event.job, row, reported(event.error))


def _failed(book: Book, job: int, row: int, error: Cause) -> None:
    record = book.jobs[job]
    saving, record.saving = record.saving, None
    record.checkpoint_failures += 1
    assert saving is not None
    book.record(job, "IMAGE", Code.IMAGE_FAILED(saving.serial, error))
    schedule(book, job)


def learn(book: Book, job: int, row: int, save_us: int) -> None:
    """What an image of the job costs, as last measured."""
    if save_us:
        book.table.save_us[row] = save_us
        book.jobs[job].save_measured = True


def image_copied(book: Book, event: ev.ImageCopied) -> None:
    """An image lies in one more place."""
    if event.job in book.specs:
        images.copied(book, event.job, event.serial, event.node)


def level_lowered(book: Book, event: ev.LevelLowered) -> None:
    """The program rules out what its nodes could do."""
    job, record = event.job, book.jobs.get(event.job)
    if record is None or record.attempt != event.attempt or record.image_only:
        return
    if record.level_cap is not None and record.level_cap.level <= event.level:
        return
    record.level_cap = LevelCap(event.level, reported(event.why))
    book.record(job, "LEVEL", Code.LEVEL_CAPPED(Level(event.level).name.lower(), record.level_cap.why))
    if record.state in (State.STARTING, State.RUNNING):
        images.settle_level(book, job, book.table.row[job])
        book.touched[job] = book.forced = True


def _ours(book: Book, job: int, attempt: int, serial: int) -> int | None:
    """The job's row if this is about the image that it is making while it runs."""
    record = book.jobs.get(job)
    if record is None or record.saving is None or record.saving.serial != serial or record.attempt != attempt:
        return None
    return book.table.row[job] if record.state == RUNNING else None
