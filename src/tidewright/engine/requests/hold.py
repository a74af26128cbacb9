"""Suspensions that users ask for: what rules them out, what becomes of one that fails, how they end.

An accepted hold is carried out as soon as the job can be suspended; until then it is tried again and says so.
"""

from __future__ import annotations

from ...model.cause import Cause, Code
from ...model.job import Level, State
from ...model.job_record import HoldRetry, JobRecord
from ...plan.reasons import Reason
from .. import events as ev
from .. import images
from ..apply_plan import unsuspendable
from ..book import Book
from ..lifecycle import transition
from ..termination import end_cooldown, pause, release, stop
from ..wall_time import corrected, engine_time

_HELD_BY_USER = Code.HELD_BY_USER()
WITH_DEVICES = frozenset({State.STARTING, State.RUNNING, State.SUSPENDING, State.RESUMING})
"""States of jobs that are suspended, not kept from starting."""


def because(record: JobRecord) -> Cause:
    """Why a job is held that its user holds."""
    return Code.HELD_BY(record.held_by) if record.held_by else _HELD_BY_USER


def limit(book: Book, job: int, now: int) -> tuple[Reason, Cause] | None:
    """Why a job that is HELD is held, at the reader's time: a user's hold is named beside the jobs that it waits for."""
    found, record = book.hold_reason(job, now), book.jobs[job]
    if found is None or found[0] is not Reason.DEPENDENCY or record.user_hold is None:
        return found
    return Reason.DEPENDENCY, Code.ALSO_HELD(found[1], because(record))


def refusal(book: Book, job: int, until: int) -> Cause | None:
    """Why a job that has its devices cannot be held; a gang that may be frozen for a bounded time is pinned to its devices."""
    row, record = book.table.row[job], book.jobs[job]
    if record.runtime_job:
        return None
    until = engine_time(book.wall_offsets, until, book.now) if until else 0
    if record.held_in_place:
        thaw_by = int(book.table.since[row]) + book.settings.gang_freeze_bound_us
        return None if 0 < until <= thaw_by else Code.THAW_DUE()
    running, spec = record.state == State.RUNNING, record.spec
    if not running and book.table.level[row] == Level.NONE and spec.ranks > 1:
        return Code.STILL_STARTING()
    reason = unsuspendable(book, job, row)
    if not running:
        return reason
    gang = spec.ranks > 1 and spec.preempt in ("auto", "freeze") and record.suspend_cooldown is None
    one_node = len(book.allocations[job]) == 1
    bounded = until and until - book.now <= book.settings.gang_freeze_bound_us
    if reason is not None and gang and one_node and bounded:
        record.held_in_place = True
        return None
    return reason


def begin(book: Book, job: int) -> Cause | None:
    """Suspend a running job that its user holds, at once if it can be; otherwise it is tried again later. Returns why."""
    if book.jobs[job].runtime_job:  # it has no devices to release: it ends, and starts again when it is released
        stop(book, job, int(State.QUEUED), _HELD_BY_USER)
        return None
    end_cooldown(book, job)  # the cooldown binds planners, not its user
    reason = refusal(book, job, book.jobs[job].user_hold or 0)
    if reason is None:
        suspend_for_user(book, job)
    else:
        failed(book, job, reason)
    return reason


def freeze_instead(book: Book, job: int, error: Cause) -> bool:
    """Stop a job whose image has no room: it keeps its memory and gives its devices back. False where that is impossible, or
    its user wants images and nothing else."""
    row = book.table.row[job]
    wanted = book.true_level(job) == Level.FULL and book.specs[job].preempt == "auto"
    if not wanted or images.why_unfrozen(book, book.allocations[job]) is not None:
        return False
    end_cooldown(book, job)
    book.table.level[row], book.table.restore_kind[row] = int(Level.FREEZE), -1
    suspend_for_user(book, job, Code.FROZEN_NO_ROOM(error))
    return True


def suspend_for_user(book: Book, job: int, why: Cause = _HELD_BY_USER) -> None:
    """Begin a suspension that no plan has asked for: what it frees wakes the planner."""
    transition(book, job, int(State.SUSPENDING), why)
    book.freed = book.freed or not book.jobs[job].held_in_place


def failed(book: Book, job: int, error: Cause) -> None:
    """A held job could not be suspended: it runs on, and the suspension is tried again after a pause that grows."""
    known = book.jobs[job].hold_retry
    tries = known.tries + 1 if known else 1
    at = book.now + pause(book, tries)
    book.jobs[job].hold_retry = HoldRetry(tries, at, error)
    book.set_timer(at, "suspend", job, at)
    if known is None or known.error != error:
        book.record(job, "HOLD", Code.HOLD_FAILED(error))


def retry(book: Book, job: int) -> None:
    """The pause is over."""
    if book.state(job) is State.RUNNING:
        begin(book, job)


def outlook(book: Book, job: int, now: int) -> Cause | None:
    """What is to be said of a running job that its user wants suspended; None for any other."""
    known = book.jobs[job].hold_retry
    if known is None or book.state(job) is not State.RUNNING:
        return None
    return Code.HOLD_PENDING(known.error, max(0, known.at - now))


def arm(book: Book, job: int) -> None:
    """Set the timer for the end of a hold."""
    until = book.jobs[job].user_hold
    if until:
        book.set_timer(engine_time(book.wall_offsets, until, book.now), "hold", job, until)


def due(book: Book, job: int) -> None:
    """The time at which a hold was to end; the wall clock may have been corrected since it was set."""
    if engine_time(book.wall_offsets, book.jobs[job].user_hold or 0, book.now) > book.now:
        arm(book, job)
    else:
        end(book, job, Code.HOLD_OVER())


def clock_offset(book: Book, event: ev.ClockOffset) -> None:
    """The wall clock was read anew: holds end when it shows the time that was asked for."""
    first = not book.wall_offsets
    book.wall_offsets = corrected(book.wall_offsets, event.since, event.offset_us, book.now)
    for job, record in book.jobs.items():
        if record.user_hold and first:  # given while the engine's time was what users were shown
            record.user_hold += event.offset_us
        if record.user_hold:
            arm(book, job)


def end(book: Book, job: int, why: Cause) -> None:
    """A user's hold ends: the job goes back to where it would be without it."""
    record, state = book.jobs[job], book.state(job)
    record.user_hold, record.held_by = None, ""
    if record.held_in_place and state is State.HELD:
        transition(book, job, int(State.RESUMING), why)
    elif state is State.HELD:
        release(book, job, why)
    elif record.hold_retry is not None:
        record.hold_retry = None
        book.record(job, "HOLD", Code.NEVER_SUSPENDED(why))
