"""Reports of agents and nodes: starts, exits, suspensions, nodes. Reports of an attempt that is over are ignored."""

from __future__ import annotations

from ..model.cause import Cause, Code, reported
from ..model.job import Level, State
from ..model.job_record import Cooldown
from . import events as ev
from . import images, pauses, periodic, rates, waking
from .book import HELD, QUEUED, RUNNING, SUSPENDED, Book
from .ledger import over_limit
from .lifecycle import transition
from .nodes import refusals
from .nodes.evacuate import move_away
from .requests import hold, user_moves
from .services import start_image
from .termination import EX_TEMPFAIL, end, end_cooldown, failed, pause, release, restart, stop

_STARTING, _SUSPENDING, _RESUMING = int(State.STARTING), int(State.SUSPENDING), int(State.RESUMING)
_KILLED = 137
_KILLED_FOR_US = (143, 137)
"""128 + SIGTERM and 128 + SIGKILL: what a program ends with that ignores the request to release its devices."""
_ALL_RANKS_RUN, _DEVICES_FREE, _FINISHED = Code.ALL_RANKS_RUN(), Code.DEVICES_FREE(), Code.FINISHED()


def _current(book: Book, job: int, attempt: int) -> int | None:
    """The job's row if this attempt is the one that runs."""
    row = book.table.row.get(job)
    return row if row is not None and book.table.attempt.item(row) == attempt else None


def started(book: Book, event: ev.Started) -> None:
    """All ranks run."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state.item(row) != _STARTING:
        return
    transition(book, event.job, RUNNING, _how_it_started(book, event.job))
    _hold_if_asked(book, event.job)
    move_away(book, event.job)


def _how_it_started(book: Book, job: int) -> Cause:
    source, serial = images.launch_source(book, job, book.allocations[job])
    if source == job:
        return Code.RUNS_FROM_IMAGE(serial)
    return Code.RUNS_FROM_IMAGE_OF(source) if source else _ALL_RANKS_RUN


def start_failed(book: Book, event: ev.StartFailed) -> None:
    """Nothing was started."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state[row] not in (State.STARTING, State.STOPPING):
        return
    job, record = event.job, book.jobs[event.job]
    stopping, record.ending = record.ending, None
    error = reported(event.error)
    start_image.start_failed(book, job, error, lost=event.image_lost)
    serve(book, book.vacate(job))
    record.launch_failures += 1
    tries = record.launch_failures
    too_often = tries >= book.settings.launch_attempts
    elsewhere = (
        bool(event.node) and not record.runtime_job and refusals.refused(book, job, event.node, error, event.fault)
    )
    unusable = event.fault == "user" or (too_often and not event.node and not record.restore_from)
    if stopping is not None and stopping.state != QUEUED:
        end(book, job, stopping.state, 1, stopping.why)
    elif unusable and not elsewhere:
        end(book, job, int(State.FAILED), 127, error)
    else:
        if event.image_lost or too_often:  # then an older image, or the beginning, has as many tries again
            images.spoil(book, job)
            record.launch_failures = tries = 1
        record.ending = stopping  # says whether it is to start from its beginning
        why = Code.LAUNCH_FAILED_ON(event.node, error) if event.node else Code.LAUNCH_FAILED(error)
        kept = not record.restore_from  # else the work is in an image, or lost
        rest = 0 if elsewhere and tries == 1 else pause(book, tries)
        restart(book, job, why, keeps_work=kept, pause_us=rest, from_image=True)


def exited(book: Book, event: ev.Exited) -> None:
    """Every rank of the attempt is gone: the job is done, retried, or back in the queue."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state.item(row) == QUEUED:
        return
    job, record = event.job, book.jobs[event.job]
    state = State(record.state)
    if record.image_only or (state is State.HELD and not record.suspended_as):
        return
    level = book.true_level(job)
    book.end_service(job)  # what becomes of it depends on how long it ran
    nodes = [part.node for part in record.allocation or ()]
    _outcome(book, job, state, level, event)
    serve(book, nodes)


def _outcome(book: Book, job: int, state: State, level: int, event: ev.Exited) -> None:
    code, said = event.code, reported(event.why) if event.why else Code.EXIT_CODE(event.code)
    leaving = state is State.SUSPENDING and level <= Level.COOPERATIVE
    if state is State.STOPPING:
        ending = book.jobs[job].ending
        assert ending is not None
        if ending.state == QUEUED and code == 0 and not event.lost and book.jobs[job].runtime_job:
            end(book, job, int(State.COMPLETED), 0, _FINISHED)  # a client had finished when its runtime went away
        elif ending.state == QUEUED:
            rest = 0 if ending.anew else _pause_if_fallen_again(book, job)
            restart(book, job, ending.why, keeps_work=False, pause_us=rest, from_image=True)
        else:
            end(book, job, ending.state, code, ending.why)
    elif event.own:
        failed(book, job, code, said)
    elif event.lost:
        why = said if event.why else Code.RANKS_LOST()
        rest = max(_pause_if_lost_again(book, job, state), _pause_if_fallen_again(book, job))
        restart(book, job, why, keeps_work=False, pause_us=rest, from_image=True)
    elif code == _KILLED and not leaving and not _passed_its_limit(event) and _may_fall(book, job):
        book.world_failures.count += 1
        why = Code.KILLED_OUTSIDE(said)
        restart(book, job, why, keeps_work=False, pause_us=_pause_if_fallen_again(book, job), from_image=True)
    elif code == 0:
        end(book, job, int(State.COMPLETED), 0, _FINISHED)
    elif leaving and code in (EX_TEMPFAIL, *_KILLED_FOR_US):
        saved = code == EX_TEMPFAIL
        restart(book, job, Code.YIELDED(said), keeps_work=saved, from_image=not saved)
    elif code == EX_TEMPFAIL:
        restart(book, job, Code.ASKED_RERUN(), keeps_work=True, pause_us=book.settings.backoff_us)
    else:
        failed(book, job, code, said, event.failure)


def _passed_its_limit(event: ev.Exited) -> bool:
    """Whether it was killed for the memory it asked for: its own failure, which an image would only repeat."""
    return event.failure is not None and event.failure.memory_limit > 0


def _may_fall(book: Book, job: int) -> bool:
    """Whether a killed job goes back to an image: not if that has been tried often and no newer image came of it."""
    record = book.jobs[job]
    return record.image is not None and record.rollback_count < book.settings.launch_attempts


def _pause_if_fallen_again(book: Book, job: int) -> int:
    """Going back to the same image again and again happens ever more rarely; the first time costs nothing."""
    record = book.jobs[job]
    record.rollback_count += 1
    record.rollback_free_us = 0
    again = record.rollback_count > 1 and record.image is not None
    return pause(book, record.rollback_count - 1) if again else 0


def _pause_if_lost_again(book: Book, job: int, state: State) -> int:
    """Attempts lost one after the other before they ran are launched ever more rarely; the first loss costs nothing."""
    if state is not State.STARTING:
        return 0
    record = book.jobs[job]
    record.launch_failures += 1
    return pause(book, record.launch_failures - 1) if record.launch_failures > 1 else 0


def noticed(book: Book, event: ev.Noticed) -> None:
    """A line for the history of a job, once."""
    if _current(book, event.job, event.attempt) is None:
        return
    said = (event.text,)  # in a history that an earlier version began it has another code
    if all(why.args != said for _, _, why in book.jobs[event.job].history):
        book.record(event.job, "NOTICE", Code.REPORTED(event.text))


def suspended(book: Book, event: ev.Suspended) -> None:
    """The job has released its devices, or holds them frozen for a bounded time."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state.item(row) != _SUSPENDING:
        return
    job, record = event.job, book.jobs[event.job]
    full = record.saving is not None
    if record.saving is not None and event.serial and event.serial != record.saving.serial:
        return  # report of an earlier suspension, received twice
    pauses.learn_save(book, job, row, event.save_us, full)
    if full:
        images.record(book, job, row, event.save_us, event.size_bytes)
    record.suspended_as = "image" if full else "process"
    if record.held_in_place:
        transition(book, job, HELD, Code.FROZEN_IN_PLACE())
        if record.user_hold is None:
            transition(book, job, _RESUMING, Code.RELEASED_MEANWHILE())
        return
    nodes = [part.node for part in book.allocations[job]]
    held, replan = record.user_hold is not None, record.replan_on_release
    because = book.hold_reason(job) if held else None
    transition(book, job, HELD if held else SUSPENDED, because[1] if because else Code.RELEASED_DEVICES())
    if (replan or waking.enough_free(book, job)) and not held:
        book.note_arrival(job)
    serve(book, nodes)
    if record.reservation is not None:
        try_launch(book, job)


def suspend_failed(book: Book, event: ev.SuspendFailed) -> None:
    """It keeps running where it was; reservations made on its devices are cancelled. What its user asked for still holds."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state.item(row) != _SUSPENDING:
        return
    job, record, error = event.job, book.jobs[event.job], reported(event.error)
    moving = record.reservation is not None
    if moving:
        book.cancel_reservation(job)
    if record.leaving:
        for loser in book.retract_leave(job):
            book.record(loser, "UNRESERVED", Code.JOB_NOT_SUSPENDED(job, error))
    transition(book, job, RUNNING, Code.SUSPEND_FAILED(error))
    if moving:
        book.record(job, "UNRESERVED", Code.STAYS(error))
    user_moves.drop_size_override(book, job, row)
    _start_cooldown(book, job, row)
    book.forced = True
    if record.user_hold is not None and not (event.no_room and hold.freeze_instead(book, job, error)):
        hold.failed(book, job, error)
    move_away(book, job)


def _start_cooldown(book: Book, job: int, row: int) -> None:
    """A job whose suspension failed is not suspended by planners for a while."""
    until = book.now + book.settings.suspend_cooldown_us
    book.jobs[job].suspend_cooldown = Cooldown(book.table.level.item(row), until)
    book.table.level[row] = int(Level.NONE)
    book.set_timer(until, "shield", job, until)


def resumed(book: Book, event: ev.Resumed) -> None:
    """The job runs again."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state.item(row) != _RESUMING:
        return
    pauses.learn_restore(book, event.job, row, event.restore_us)
    transition(book, event.job, RUNNING, Code.RUNS_AGAIN())
    _hold_if_asked(book, event.job)
    move_away(book, event.job)


def resume_failed(book: Book, event: ev.ResumeFailed) -> None:
    """It could not be brought back there: wait and try again; if its image is gone, an older one, or the beginning."""
    row = _current(book, event.job, event.attempt)
    if row is None or book.table.state.item(row) != _RESUMING:
        return
    job, record, error = event.job, book.jobs[event.job], reported(event.error)
    nodes = book.vacate(job)
    record.launch_failures += 1
    tries = record.launch_failures
    too_often = tries >= book.settings.launch_attempts
    alone = record.image_only
    gone = alone and (record.image is None or record.image.serial != record.last_image)  # with the nodes that had it
    lost = event.image_lost or gone
    if event.node and alone:
        refusals.refused(book, job, event.node, error, "world")
    if too_often or lost:  # what it comes back from next has as many tries again
        record.launch_failures = 0
    if too_often and not lost and not alone:
        stop(book, job, QUEUED, Code.RESUME_ABANDONED(tries, error))
    elif lost or too_often:
        if alone and not gone:
            images.spoil(book, job)
        why = Code.NOT_RESUMABLE_AFTER(tries, error) if too_often else Code.NOT_RESUMABLE(error)
        restart(book, job, why, keeps_work=False, from_image=True)
    else:
        until = book.now + pause(book, tries)
        record.backoff_until = until
        book.set_timer(until, "backoff", job, until)
        transition(book, job, HELD, Code.RESUME_FAILED(error))
    serve(book, nodes)


def _hold_if_asked(book: Book, job: int) -> None:
    """A user asked to suspend it while it was still coming up."""
    if book.jobs[job].user_hold is not None:
        hold.begin(book, job)


def serve(book: Book, nodes: list[int]) -> None:
    """Devices of these nodes became physically free: launch the jobs that they are reserved for."""
    for node in nodes:
        for job in list(book.reservation_order.get(node, ())):
            if job in book.reservations:
                try_launch(book, job)


def try_launch(book: Book, job: int) -> None:
    """Launch or resume a job with a reservation if its devices are physically free."""
    allocation = book.reservations[job]
    state = book.jobs[job].state
    if state in (QUEUED, SUSPENDED) and book.phys.fits(allocation):
        transition(book, job, _STARTING if state == QUEUED else _RESUMING, _DEVICES_FREE)


def timer(book: Book, kind: str, job: int, token: int) -> None:
    """A timer is due. Timers of a moment that has passed carry a stale token and do nothing."""
    if kind == "think":
        book.planning = False
        book.forced = True
    elif kind == "cordon":
        refusals.expired(book, token)
    elif kind == "service":
        book.services.changed.update(dict.fromkeys(book.services.records, True))
    elif job in book.jobs:
        _job_timer(book, kind, job, token)


def _job_timer(book: Book, kind: str, job: int, token: int) -> None:
    record, row = book.jobs[job], book.table.row[job]
    if kind == "limit" and book.table.run_since[row] == token and record.state == RUNNING and over_limit(book, job):
        stop(book, job, int(State.TIMEOUT), Code.TIME_LIMIT())
    elif kind == "backoff" and record.backoff_until == token:
        record.backoff_until = 0
        if record.state == HELD:
            release(book, job, Code.BACKOFF_OVER())
    elif kind == "hold" and record.user_hold == token:
        hold.due(book, job)
    elif kind == "checkpoint" and record.checkpoint_at == token:
        periodic.due(book, job, row)
    elif kind == "phase" and record.phase_at == token and book.table.run_since[row] >= 0:
        rates.next_phase(book, job, row)
    elif kind == "suspend" and record.hold_retry is not None and record.hold_retry.at == token:
        hold.retry(book, job)
    elif kind == "shield" and (record.suspend_cooldown.until if record.suspend_cooldown else 0) == token:
        end_cooldown(book, job)  # a token of 0 was set by an earlier version
        book.forced = True
        move_away(book, job)
    elif kind == "avoid":
        refusals.forgive(book, job)
