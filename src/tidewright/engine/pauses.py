"""What a job's suspension and resume cost: as measured, else as others of its level took lately, else as the settings say."""

from __future__ import annotations

from ..model.job import Level
from .book import Book

_FULL = int(Level.FULL)


def learn_save(book: Book, job: int, row: int, save_us: int, full: bool) -> None:
    """The job has released its devices after ``save_us``; ``full``: with an image."""
    if not save_us:
        return
    record = book.jobs[job]
    if full or not record.save_measured:  # one that was imaged before is frozen this once, and imaged again
        book.table.save_us[row] = save_us
    if full:
        record.save_measured = True
    else:
        record.stop_measured = True
    if book.services.is_image(record.spec.service, job):
        return  # of a replica that has served nothing yet: it says nothing of jobs at work
    if book.pauses.saves.note(_level(book, job, row, full), save_us):
        _expect_all(book)


def learn_restore(book: Book, job: int, row: int, restore_us: int) -> None:
    """The job runs again after ``restore_us``."""
    if not restore_us:
        return
    record = book.jobs[job]
    book.table.restore_us[row] = restore_us
    record.restore_measured = True
    if book.pauses.restores.note(_level(book, job, row, record.suspended_as == "image"), restore_us):
        _expect_all(book)


def expect(book: Book, job: int, row: int) -> None:
    """Of a job whose own pauses are not known: what its next one will cost, on the devices that it has if it has any."""
    record, table = book.jobs[job], book.table
    level = _level(book, job, row, False)
    if not (record.save_measured if level == _FULL else record.stop_measured):
        table.save_us[row] = book.pauses.saves.usual_us(level) or _default_us(book, job, row)
    if not record.restore_measured:
        settings = book.settings
        default = settings.full_restore_us if table.restore_kind.item(row) >= 0 else settings.restore_us
        table.restore_us[row] = book.pauses.restores.usual_us(level) or default


def own_save_us(book: Book, job: int, row: int) -> int:
    """What saving the job took when it was last measured; before that, what the settings say of its size.

    Not what others took: the times at which jobs are imaged follow from it, and journals of earlier versions are to be replayed.
    """
    record, bound = book.jobs[job], book.table.restore_kind.item(row) >= 0
    known = record.save_measured or (record.stop_measured and not bound)
    return book.table.save_us.item(row) if known else _default_us(book, job, row)


def _default_us(book: Book, job: int, row: int) -> int:
    settings = book.settings
    if book.table.restore_kind.item(row) < 0:
        return settings.save_us
    size = book.jobs[job].spec.ranks * settings.image_bytes
    return settings.full_save_us + size * 1_000_000 // settings.image_rate


def _level(book: Book, job: int, row: int, full: bool) -> int:
    """The level of the job where it is, also while it is not suspended for a while because that failed."""
    if full:
        return _FULL
    cooldown = book.jobs[job].suspend_cooldown
    return int(book.table.level.item(row) if cooldown is None else cooldown.level)


def _expect_all(book: Book) -> None:
    for job, record in book.jobs.items():
        if not (record.save_measured and record.restore_measured):
            expect(book, job, book.table.row[job])
