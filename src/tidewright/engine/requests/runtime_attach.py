"""Admission of clients of device runtimes: which runtime a spec means, and whether its user may attach to it."""

from __future__ import annotations

from ...model.cause import Cause, Code
from ...model.job import JobSpec
from ...model.job_record import JobRecord
from ..book import QUEUED, Book


def find(book: Book, name: str, user: str) -> int:
    """The latest job of a runtime with this name (or job id), one of ``user``'s if there is one; 0 where there is none."""
    named = [job for job in book.runtimes if name in (book.specs[job].name, str(job))]
    found = [job for job in named if not _ends(book.jobs[job])]
    return max(found, key=lambda job: (book.specs[job].user == user, job), default=0)


def _ends(runtime: JobRecord) -> bool:
    return runtime.ending is not None and runtime.ending.state != QUEUED


def refuse(book: Book, spec: JobSpec) -> tuple[Cause, str] | None:
    """(error, kind) of a Reply when the runtime that a spec names is not there, or is another user's."""
    job = find(book, spec.runtime, spec.user)
    if not job:
        return Code.NO_SUCH_RUNTIME(spec.runtime), "notfound"
    if book.specs[job].user != spec.user:
        return Code.NOT_YOUR_RUNTIME(spec.runtime, job, book.specs[job].user), "usage"
    return None


def runtime_devices(book: Book, spec: JobSpec) -> int:
    """Devices of the runtime that a spec names; 0 where there is none."""
    job = find(book, spec.runtime, spec.user)
    return book.specs[job].devices if job else 0


def enter(book: Book, job: int, spec: JobSpec) -> None:
    """Make a job that has just been admitted a client of the runtime that it names."""
    record = book.jobs[job]
    record.runtime_job = find(book, spec.runtime, spec.user)
    runtime = book.jobs[record.runtime_job]
    runtime.runtime_clients = runtime.runtime_clients or {}
    runtime.runtime_clients[job] = True
