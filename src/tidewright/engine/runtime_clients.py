"""Clients of device runtimes: jobs without devices that run where, and only while, the runtime's job runs.

They take no part in planning. Once a step's events are taken, those whose runtime or who themselves were touched follow it:
they start beside it when it runs, are stopped and wait when it is suspended, moved or started again, and end when it ends.
"""

from __future__ import annotations

from ..model.cause import Code
from ..model.job import State
from ..model.job_record import JobRecord
from ..model.node import Part
from .book import HELD, QUEUED, RUNNING, Book
from .lifecycle import transition
from .termination import release, stop

_WAITING = frozenset({HELD, QUEUED})


def settle(book: Book) -> None:
    """After the events of a step: clients follow what became of their runtimes."""
    if not book.runtimes:  # every step passes here, and most pools have none
        return
    concerned: dict[int, bool] = {}
    for job in book.touched:
        record = book.jobs[job]
        if record.runtime_clients:
            concerned.update(dict.fromkeys(record.runtime_clients, True))
        elif record.runtime_job:
            concerned[job] = True
    for job in concerned:
        if job in book.jobs:
            _follow(book, job, book.jobs[job])


def _follow(book: Book, job: int, record: JobRecord) -> None:
    runtime = book.jobs.get(record.runtime_job)
    if runtime is None:  # it has ended, and this client is being stopped for that
        return
    if runtime.state == RUNNING and runtime.allocation is not None:
        if record.state == HELD:
            release(book, job, Code.RUNTIME_RUNS(record.runtime_job))
        if record.state == QUEUED:
            book.reserve(job, (Part(runtime.allocation[0].node, 0),))
            transition(book, job, int(State.STARTING), Code.RUNTIME_RUNS(record.runtime_job))
    elif record.state == QUEUED:
        transition(book, job, HELD, Code.WAITS_FOR_RUNTIME(record.spec.runtime, record.runtime_job))
    elif record.state not in _WAITING and record.state != State.STOPPING:
        state = State(runtime.state).word
        stop(book, job, QUEUED, Code.RUNTIME_STOPPED(record.runtime_job, state))
