"""What a job's suspension and resume cost: as measured, else as others of its level took lately, else as the settings say."""

from __future__ import annotations

from ..model.job import Level, State
from .book import Book
from .settings import EngineSettings

_FULL = int(Level.FULL)
_ACTIVE = (int(State.STARTING), int(State.RUNNING), int(State.RESUMING))


def learn_save(book: Book, job: int, row: int, save_us: int, full: bool) -> None:
    """The job has released its devices after ``save_us``; ``full``: with an image."""
    if not save_us:
        return
    record = book.jobs[job]
    book.table.save_us[row] = save_us
    if full:
        record.save_measured = True
    else:
        record.stop_measured = True
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
    """Of a job whose own pauses are not known: what its next one will cost on the devices that it has."""
    record, table, settings = book.jobs[job], book.table, book.settings
    level = _level(book, job, row, False)
    bound = table.restore_kind.item(row) >= 0
    if not (record.save_measured if level == _FULL else record.stop_measured):
        usual = _image_us(settings, record.spec.ranks) if bound else settings.save_us
        table.save_us[row] = book.pauses.saves.usual_us(level) or usual
    if not record.restore_measured:
        usual = settings.full_restore_us if bound else settings.restore_us
        table.restore_us[row] = book.pauses.restores.usual_us(level) or usual


def _image_us(settings: EngineSettings, ranks: int) -> int:
    return settings.full_save_us + ranks * settings.image_bytes * 1_000_000 // settings.image_rate


def _level(book: Book, job: int, row: int, full: bool) -> int:
    """The level of the job where it is, also while it is not suspended for a while because that failed."""
    if full:
        return _FULL
    cooldown = book.jobs[job].suspend_cooldown
    return int(book.table.level.item(row) if cooldown is None else cooldown.level)


def _expect_all(book: Book) -> None:
    for job, record in book.jobs.items():
        if record.state in _ACTIVE and not (record.save_measured and record.restore_measured):
            expect(book, job, book.table.row[job])
