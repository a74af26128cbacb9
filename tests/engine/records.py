"""What tests read of the records of a book's jobs."""

from __future__ import annotations

from typing import Any

from tidewright.engine.book import Book
from tidewright.model.job import JobSpec
from tidewright.model.job_record import JobRecord

_FRESH = JobRecord(JobSpec())


def each(book: Book, field: str) -> dict[int, Any]:
    """By job, a field of its record, of those in which it is not as in a fresh one."""
    found = {job: getattr(record, field) for job, record in book.jobs.items()}
    return {job: value for job, value in found.items() if value != getattr(_FRESH, field)}
