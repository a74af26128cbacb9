"""The limit of run time: what is charged to it, and the timer that ends a run at it.

A limit may change while the job runs (``requests.update``): a timer of an earlier one that comes too early does nothing, and the
change sets another.
"""

from __future__ import annotations

from typing import Protocol

from ..model.job_record import JobRecord
from ..model.table import JobTable


class LimitedBook(Protocol):
    """What of the book is read and written here."""

    now: int
    table: JobTable
    jobs: dict[int, JobRecord]

    def set_timer(self, at: int, kind: str, job: int = -1, token: int = 0) -> None:
        """Ask to be stepped at a time."""


def used_us(book: LimitedBook, job: int) -> int:
    """Run time charged to a job so far, the present run included, microseconds."""
    since = book.table.run_since.item(book.table.row[job])
    return book.jobs[job].run_time_used_us + (book.now - since if since >= 0 else 0)


def over(book: LimitedBook, job: int) -> bool:
    """Whether a job has run for as long as it may."""
    limit = book.table.limit.item(book.table.row[job])
    return bool(0 < limit <= used_us(book, job))


def arm(book: LimitedBook, job: int) -> None:
    """Set the timer for the end of the run of a job that has a limit."""
    row = book.table.row[job]
    limit, since = book.table.limit.item(row), book.table.run_since.item(row)
    if limit and since >= 0:
        book.set_timer(book.now + max(0, limit - used_us(book, job)), "limit", job, since)
