"""How jobs leave their devices and how they end: releases, restarts, retries, the final record."""

from __future__ import annotations

from collections.abc import Iterable

from ..estimate.tolerance import noted
from ..model.array_record import ArrayRecord, array_key
from ..model.cause import Cause, Code
from ..model.failure import RankFailure
from ..model.job import ArrayMember, JobSpec, State
from ..model.job_record import Ending
from ..model.node import bits
from . import frozen_memory, images
from .book import HELD, QUEUED, Book, forget_oldest
from .commands import CheckpointRanks, Ended, Launch, ResumeRanks, StopRanks, SuspendRanks
from .ledger import promised_us
from .lifecycle import transition

_ORDERS = (Launch, ResumeRanks, SuspendRanks, CheckpointRanks, StopRanks)
"""Commands about the ranks of an attempt."""
EX_TEMPFAIL = 75
"""sysexits(3): the program asks to be run again later."""


def release(book: Book, job: int, why: Cause) -> None:
    """Let a held job queue if nothing holds it any more."""
    record = book.jobs[job]
    if record.ending is not None or book.hold_reason(job) is not None:
        return
    transition(book, job, int(State.SUSPENDED) if record.suspended_as else QUEUED, why)


def end(book: Book, job: int, state: int, code: int, why: Cause, failure: RankFailure | None = None) -> None:
    """The job's last step, and that of every job that can no longer run because of it."""
    left = _end_one(book, job, state, code, why, failure)
    # No recursion: chains of dependent jobs are as long as their users make them. Two jobs may doom the same third.
    while left:
        doomed, why = left.pop()
        record = book.jobs.get(doomed)
        if record is not None and record.allocation is not None:  # a client of a runtime, with ranks
            stop(book, doomed, int(State.CANCELLED), why)
        elif record is not None:
            left.extend(_end_one(book, doomed, int(State.CANCELLED), 1, why))


def _end_one(
    book: Book, job: int, state: int, code: int, why: Cause, failure: RankFailure | None = None
) -> list[tuple[int, Cause]]:
    """Record an ended job, settle what depended on it, forget it. Returns the jobs that it leaves without hope, and why, the
    first one last."""
    table, record = book.table, book.jobs[job]
    row, spec = table.row[job], record.spec
    transition(book, job, state, why)
    if (
        table.ideal.item(row) and state != State.CANCELLED and not spec.service
    ):  # replicas end when they are to, or fail
        _learn(book, spec, table.ideal.item(row), table.predicted.item(row), table.submit.item(row))
        kinds = [book.board.layout.kinds[kind] for kind in bits(table.kinds.item(row))]
        book.tolerances = noted(book.tolerances, kinds, spec.tier_rank, table.ideal.item(row), book.now)
    book.out.append(
        Ended(
            job, state, spec, int(table.submit[row]), int(table.first_start[row]), book.now, int(table.ideal[row]),
            int(table.attained[row]), book.ledger.retire(record), int(table.preemptions[row]), record.attempt, code, why,
            tuple(record.history), record.lost_us, failure,
            promised_us(record, int(table.submit[row]), book.now) if record.tier_since else 0,
        )
    )  # fmt: skip
    book.forget(job, state)
    if spec.service:
        book.services.changed[spec.service] = True
    runtime = book.jobs.get(record.runtime_job)
    if runtime is not None and runtime.runtime_clients:
        runtime.runtime_clients.pop(job, None)
    clients = [(client, Code.RUNTIME_ENDED(job)) for client in record.runtime_clients or ()]
    unmeetable = _settle_dependents(book, job, False, record.dependents or (), state, Code.JOB_HAS_ENDED(job))
    doomed = [(waiting, Code.DEPENDENCY_FAILED(job)) for waiting in unmeetable]
    if spec.array is not None:
        doomed += leave_array(book, job, spec.array, state)
    return [*reversed(clients), *reversed(doomed)]


def _learn(book: Book, spec: JobSpec, ran_us: int, predicted_us: int, submit: int) -> None:
    """What the run time says of similar jobs, and of the estimate that there was."""
    if book.settings.predict:
        book.run_times.add(spec, ran_us, predicted_us)
        book.run_times.note(spec, submit, ran_us, book.now)
    if spec.expected_us:
        book.run_times.add_estimate(ran_us, spec.expected_us)


def satisfied(kind: str, outcome: int) -> bool:
    """Whether an ended job meets a dependency of this kind."""
    done = outcome == State.COMPLETED
    return kind == "afterany" or (kind == "afterok") == done


def _settle_dependents(
    book: Book, ended: int, of_array: bool, dependents: Iterable[int], outcome: int, why: Cause
) -> list[int]:
    """A job, or an array's last member, has ended: release those that waited for it. Returns the jobs, none of which has run,
    whose dependency can no longer be met."""
    unmeetable = []
    for waiting in dependents:
        record = book.jobs.get(waiting)
        if record is None or ended not in (record.array_dependencies if of_array else record.dependencies):
            continue
        kinds = [one.kind for one in record.spec.after if one.job == ended and one.array == of_array]
        if not all(satisfied(kind, outcome) for kind in kinds):
            unmeetable.append(waiting)
            continue
        if of_array:
            record.array_dependencies = tuple(other for other in record.array_dependencies if other != ended)
        else:
            record.dependencies = tuple(other for other in record.dependencies if other != ended)
        if record.awaited is None and record.state == HELD:
            release(book, waiting, why)
    return unmeetable


def leave_array(book: Book, job: int, member: ArrayMember, state: int) -> list[tuple[int, Cause]]:
    """A member of an array has ended: the next one may queue. Returns the jobs whose dependency on the whole array can no longer
    be met, and why."""
    key = array_key(member)
    array = book.arrays.get(key)
    if array is None or array.members.pop(job, None) is None:
        return []
    held_back = array.waiting.pop(job, None) is not None
    array.failed = array.failed or state != State.COMPLETED
    if member.job:
        admit_members(book, array, Code.ARRAY_MEMBER_ENDED(f"array {key}"))
    elif array.waiting and not held_back:  # as earlier versions did, whatever the limits of the arrays of this name
        _admit_first(book, array, Code.ARRAY_MEMBER_ENDED(key))
    if array.members:
        return []
    del book.arrays[key]
    if not member.job:
        return []
    outcome = int(State.FAILED if array.failed else State.COMPLETED)
    book.array_outcomes[member.job] = outcome
    forget_oldest(book.array_outcomes, book.settings.remembered_outcomes)
    failed, ended = Code.ARRAY_DEPENDENCY_FAILED(member.job), Code.ARRAY_HAS_ENDED(member.job)
    unmeetable = _settle_dependents(book, member.job, True, array.dependents, outcome, ended)
    return [(waiting, failed) for waiting in unmeetable]


def admit_members(book: Book, array: ArrayRecord, why: Cause) -> None:
    """Let as many waiting members of an array queue as its limit allows now."""
    while array.waiting and (not array.limit or array.active < array.limit):
        _admit_first(book, array, why)


def _admit_first(book: Book, array: ArrayRecord, why: Cause) -> None:
    job = next(iter(array.waiting))
    del array.waiting[job]
    record = book.jobs[job]
    record.waiting_array = None
    if record.state == HELD:
        release(book, job, why)


def stop(book: Book, job: int, final: int, why: Cause, grace_us: int = -1, anew: bool = False) -> None:
    """Bring a job to ``final`` from wherever it is; QUEUED as ``final`` means it starts over afterwards, from its latest
    image if it has one and not ``anew``. ``grace_us`` as in StopRanks; -1: the job's own."""
    record = book.jobs[job]
    if record.state == State.STOPPING:
        if record.ending is None or record.ending.state == QUEUED:
            record.ending = Ending(final, why, anew or (record.ending is not None and record.ending.anew))
        return
    record.ending = Ending(final, why, anew)
    if record.allocation is None and record.suspended_as != "process":
        if final == QUEUED:
            record.ending = None
        else:
            end(book, job, final, 1, why)
        return
    transition(book, job, int(State.STOPPING), why)
    book.out.append(StopRanks(job, record.attempt, record.spec.grace_us if grace_us < 0 else grace_us, why))


def restart(book: Book, job: int, why: Cause, keeps_work: bool, pause_us: int = 0, from_image: bool = False) -> None:
    """Nothing of the attempt is left: queue a fresh one, after a pause if asked for. From its beginning if its user said so.

    ``from_image``: it goes on from the job's latest image, if there is one. ``keeps_work``: the program has saved its own
    work elsewhere.
    """
    record = book.jobs[job]
    anew = record.ending is not None and record.ending.anew
    book.renew(job)
    book.withdrawn[job] = len(book.out)
    row = book.table.row[job]
    table = book.table
    table.pinned_node[row] = -1
    frozen_memory.drop(book.board, book.phys, record)
    if anew:
        start_over(book, job, row, keeps_work=False)
    elif from_image and record.image is not None:
        why = Code.WITH(why, images.roll_back(book, job, row))
    else:
        work = table.ideal.item(row)
        if from_image and work and not keeps_work:
            why = Code.WITH(why, Code.NO_IMAGE(work))
        start_over(book, job, row, keeps_work)
    record.attempt += 1
    table.attempt[row] = record.attempt
    table.level[row] = book.usual_level(record.spec)
    if pause_us:
        record.backoff_until = book.now + pause_us
        book.set_timer(book.now + pause_us, "backoff", job, book.now + pause_us)
    wait_behind_limit(book, job)
    held = book.hold_reason(job)
    table.wait_since[row] = book.now
    transition(book, job, HELD if held else QUEUED, why)
    book.note_arrival(job)


def wait_behind_limit(book: Book, job: int) -> None:
    """An attempt of an array's member is over: more of them than a limit allows that was lowered meanwhile do not start again."""
    record = book.jobs[job]
    member = record.spec.array
    key = array_key(member) if member is not None and member.job else ""
    array = book.arrays.get(key)
    if array is not None and array.limit and array.active > array.limit:
        record.waiting_array = key
        array.waiting = dict.fromkeys(sorted((*array.waiting, job)), True)


def start_over(book: Book, job: int, row: int, keeps_work: bool) -> None:
    """Images of the attempts so far are of no use to the next."""
    images.forget(book, job, book.jobs[job].attempt)
    book.table.restore_kind[row] = -1
    if not keeps_work:
        images.lose(book, job, row, book.table.ideal.item(row))
        book.table.ideal[row] = 0
        book.jobs[job].run_time_used_us = 0


def withdraw_orders(book: Book) -> None:
    """At the end of a step: no orders for attempts that were over in it (a node died and came back within it), nor for jobs that
    ended in it, such as to stop ranks that had ended. Once for all of them, for thousands may end or restart in one step."""
    ended = {command.job: True for command in book.out if type(command) is Ended}
    withdrawn = book.withdrawn
    if withdrawn or (ended and len(book.out) > len(ended)):
        book.out[:] = [
            command
            for at, command in enumerate(book.out)
            if not isinstance(command, _ORDERS) or (command.job not in ended and at >= withdrawn.get(command.job, 0))
        ]


def end_cooldown(book: Book, job: int) -> None:
    """Planners may suspend the job again."""
    record = book.jobs[job]
    if record.suspend_cooldown is not None:
        book.table.level[book.table.row[job]] = record.suspend_cooldown.level
        record.suspend_cooldown = None


def pause(book: Book, tries: int) -> int:
    """Back-off after the n-th failure (n >= 1), microseconds."""
    settings = book.settings
    return int(min(settings.backoff_us << min(tries - 1, 30), settings.backoff_max_us))


def failed(book: Book, job: int, code: int, why: Cause, failure: RankFailure | None = None) -> None:
    """An attempt ended badly by its own fault: retry as the spec says, or end as FAILED."""
    record = book.jobs[job]
    spec = record.spec
    record.failures += 1
    tries = record.failures
    worth = not spec.retry_exit_codes or code in spec.retry_exit_codes
    if worth and tries <= spec.retries:
        restart(book, job, Code.RETRY(why, tries, spec.retries), keeps_work=False, pause_us=pause(book, tries))
    else:
        end(book, job, int(State.FAILED), code, why, failure)
