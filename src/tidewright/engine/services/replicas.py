"""Services: as many replicas as are wanted, replaced when they end, updated one after the other.

Once a step's events are taken, the services that were touched are settled: replicas are made, as jobs like any other, or stopped.
What is stopped first when there are too many: what waits before what runs, the newest before the oldest (as ReplicaSets of
Kubernetes do).
"""

from __future__ import annotations

from ...base.units import MINUTE, SECOND
from ...model.cause import Cause, Code
from ...model.job import State
from ...model.service import ServiceSpec, problems, problems_of_number, replica_spec
from .. import events as ev
from ..book import QUEUED, RUNNING, Book
from ..commands import Ended, Reply
from ..requests import runtime_attach
from ..requests.admission import enter, refuse
from ..requests.answers import answer, answered
from ..termination import pause, stop
from . import start_image
from .calls import known
from .records import ReplicaEnd, ServiceRecord, alive, is_ready

RUNTIME_TRIES = 5
"""Failed tries whose pause (``termination.pause``) is kept between two looks for a runtime that is not there."""
SURGE = 1
"""Replicas beyond those that are wanted while a service is updated."""
UPDATE_PATIENCE_US = 30 * SECOND
"""How long an updated replica may wait for devices until one of the version before it is stopped for it."""
LASTING_US = 10 * MINUTE
"""Ends of replicas that lie further apart are not counted together; nor are those of replicas that have run for so long."""
PROVEN_US = 5 * SECOND
"""How long an updated replica runs until one of the version before it is stopped for it."""
HALT_US = MINUTE
"""Once an updated replica has ended by itself, how long the next must last until an update goes on."""


def deploy(book: Book, event: ev.DeployService) -> None:
    """A new service, or another version of one."""
    if answered(book, event.op_id):
        return
    spec, record = event.service, book.services.records.get(event.service.name)
    refusal = _refuse(book, spec, record)
    if refusal is not None:
        answer(book, Reply(event.op_id, error=refusal[0], kind=refusal[1]))
        return
    if record is None:
        record = ServiceRecord(spec, max(1, spec.min_replicas), book.now)
        book.services.records[spec.name] = record
    else:
        if spec.replica != record.spec.replica:
            record.version, record.ends, record.pause_until = record.version + 1, 0, 0
            record.restarts, record.last_restart = 0, None
            record.image_tries, record.image_error = 0, None
        book.forced = book.forced or bool(
            record.spec.reclaim_us or spec.reclaim_us
        )  # others may use what it claims no more
        record.spec = spec
        record.wanted = min(max(record.wanted, spec.min_replicas), spec.max_replicas)
    book.services.changed[spec.name] = True
    answer(book, Reply(event.op_id))


def scale(book: Book, event: ev.ScaleService) -> None:
    """So many replicas from now on, within the service's bounds."""
    record = known(book, event.name, event.op_id)
    if record is None:
        return
    spec = record.spec
    wrong = problems_of_number(event.replicas)
    if wrong:
        answer(book, Reply(event.op_id, error=Code.SPEC_WRONG(tuple(wrong)), kind="usage"))
        return
    if not spec.min_replicas <= event.replicas <= spec.max_replicas:
        error = Code.REPLICAS_OUT_OF_BOUNDS(event.replicas, spec.min_replicas, spec.max_replicas)
        answer(book, Reply(event.op_id, error=error, kind="usage"))
        return
    record.wanted = event.replicas
    book.services.changed[event.name] = True
    answer(book, Reply(event.op_id))


def delete(book: Book, event: ev.DeleteService) -> None:
    """Stop all replicas; the service is gone once they have ended."""
    record = known(book, event.name, event.op_id)
    if record is not None:
        record.deleted = True
        book.forced = book.forced or bool(record.spec.reclaim_us)
        book.services.changed[event.name] = True
        answer(book, Reply(event.op_id))


def ready(book: Book, event: ev.ReplicaReady) -> None:
    """A replica answers requests."""
    record = known(book, event.name, event.op_id)
    if record is None:
        return
    if event.job not in record.replicas:
        answer(book, Reply(event.op_id, event.job, Code.NO_SUCH_JOB(event.job), "notfound"))
        return
    record.ready[event.job] = event.attempt
    book.services.changed[event.name] = True
    answer(book, Reply(event.op_id, event.job))


def settle(book: Book) -> None:
    """After the events of a step: as many replicas as are wanted."""
    services = book.services
    if not services.records:  # every step passes here, and most pools have none
        return
    for job in book.touched:
        if service := book.specs[job].service:
            services.changed[service] = True
    while services.changed:  # a replica that is stopped while it waits has ended at once
        name = next(iter(services.changed))
        del services.changed[name]
        record = services.records.get(name)
        if record is not None:
            _settle(book, name, record)


def _settle(book: Book, name: str, record: ServiceRecord) -> None:
    _forget_ended(book, record)
    if record.deleted:
        record.image_job = 0
        for job in alive(record):
            _retire(book, record, job, Code.SERVICE_DELETED(name))
        if not record.replicas:
            del book.services.records[name]
        return
    start_image.settle(book, record)
    _make(book, name, record)
    living = alive(record)
    current = [job for job in living if record.replicas[job] == record.version]
    for job in _least_needed(book, current)[: max(0, len(current) - record.wanted)]:
        _retire(book, record, job, Code.SCALED_IN(name, record.wanted))
    current = [job for job in current if job not in record.retired]  # what waited has ended
    old = [job for job in living if record.replicas[job] != record.version]
    spare = len(old) - _old_needed(book, record, current)
    for job in _least_needed(book, old)[: max(0, spare)]:
        _retire(book, record, job, Code.SERVICE_UPDATED(name, record.version))


def _make(book: Book, name: str, record: ServiceRecord) -> None:
    """Replicas of the present version, while some are missing."""
    if book.now < record.pause_until or _without_runtime(book, record):
        return
    living = alive(record)
    current = sum(record.replicas[job] == record.version for job in living) + start_image.being_taken(book, record)
    most = record.wanted + (SURGE if current < len(living) else 0)
    for _ in range(min(record.wanted - current, most - len(living))):
        record.made += 1
        record.replicas[enter(book, replica_spec(record.spec, record.made))] = record.version
        if current < len(living):
            book.set_timer(book.now + UPDATE_PATIENCE_US, "service")


def _without_runtime(book: Book, record: ServiceRecord) -> bool:
    """Whether replicas are clients of a runtime that is not there; another look is taken after the pause."""
    spec = record.spec.replica
    if not spec.runtime or runtime_attach.refuse(book, spec) is None:
        return False
    record.pause_until = book.now + pause(book, RUNTIME_TRIES)
    book.set_timer(record.pause_until, "service")
    return True


def _old_needed(book: Book, record: ServiceRecord, current: list[int]) -> int:
    """Replicas of former versions that are still needed: those for which no updated one runs; all of them while updated ones
    end by themselves."""
    if record.ends and book.now < record.pause_until + HALT_US:
        return record.wanted
    proven, stuck = 0, False
    for job in current:
        row, state = book.table.row[job], book.jobs[job].state
        if state == RUNNING and record.spec.reports_ready:
            proven += is_ready(record, job, book.jobs[job].attempt)
        elif state == RUNNING:
            at = book.table.since.item(row) + PROVEN_US
            proven += at <= book.now
            if job in book.touched and at > book.now:
                book.set_timer(at, "service")
        elif state in (QUEUED, State.SUSPENDED):
            stuck = stuck or book.now - book.table.submit.item(row) >= UPDATE_PATIENCE_US
    return max(0, record.wanted - proven - stuck)


def _least_needed(book: Book, jobs: list[int]) -> list[int]:
    """What waits before what runs, the newest before the oldest."""
    return sorted(jobs, key=lambda job: (book.jobs[job].state == RUNNING, book.jobs[job].allocation is not None, -job))


def _retire(book: Book, record: ServiceRecord, job: int, why: Cause) -> None:
    record.retired[job] = True
    stop(book, job, int(State.CANCELLED), why)


def _forget_ended(book: Book, record: ServiceRecord) -> None:
    """Replicas that ended by themselves are made anew, after a pause that grows while they do so soon after one another."""
    gone = [job for job in record.replicas if job not in book.jobs]
    if not gone:
        return
    ends = {command.job: command for command in book.out if type(command) is Ended}
    for job in gone:
        version, retired = record.replicas.pop(job), record.retired.pop(job, False)
        if job == record.image_job:
            record.image_job, retired = 0, True
        record.ready.pop(job, None)
        if not retired and version == record.version:
            record.restarts += 1
            record.last_restart = ReplicaEnd(job, ends[job].end, ends[job].why)
        # Of those that end together the first counts; another program than the present one says nothing of it.
        if retired or version != record.version or book.now < record.pause_until:
            continue
        start_image.ended(book, record, ends[job])
        lasted = 0 <= ends[job].first_start <= book.now - LASTING_US
        if not lasted:
            record.ends = record.ends + 1 if book.now - record.last_end < LASTING_US else 1
            record.last_end = book.now
        record.pause_until = book.now + pause(book, 1 if lasted else record.ends)
        book.set_timer(record.pause_until, "service")
        if any(one != record.version for one in record.replicas.values()):
            book.set_timer(record.pause_until + HALT_US, "service")


def _refuse(book: Book, spec: ServiceSpec, record: ServiceRecord | None) -> tuple[Cause, str] | None:
    wrong = problems(spec)
    if wrong:
        return Code.SPEC_WRONG(tuple(wrong)), "usage"
    if record is not None and record.deleted:
        return Code.BEING_DELETED(spec.name), "conflict"
    return refuse(book, spec.replica)
