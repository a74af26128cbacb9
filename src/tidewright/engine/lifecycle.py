"""The life of a job as a table: from each state the next ones, with what a step resets and what it does in the book.

```
submitted ──> HELD <──> QUEUED ──> STARTING ──> RUNNING <──> SUSPENDING ──> SUSPENDED <──> HELD
                                                   ^                            │
                                                   └────────── RESUMING <───────┘
what has devices or processes ──> STOPPING ──> QUEUED, HELD, final      any but final ──> final
an attempt that is over, from any state ──> QUEUED, HELD                RESUMING that fails ──> HELD
```

The effects of a step are those that belong to it whatever its cause. What its cause adds is with the cause: that a job comes
back in a new attempt (``termination.restart``), for one, changes no state by itself. A step that is not in the table is a bug
and raises with the job's whole history.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from ..base.errors import Bug
from ..model.cause import Cause
from ..model.job import FINAL, Level, State
from ..model.job_record import FieldGroup, FieldValues, JobRecord, fresh
from ..plan.render import render
from . import frozen_memory, images, periodic, start_forecasts, waking
from .book import Book
from .commands import ResumeRanks, SuspendRanks
from .nodes import refusals

Effect = Callable[[Book, int, int, JobRecord], None]
"""(book, job, row of the job table, record)."""

S, G = State, FieldGroup
_FREEZE, _FULL = int(Level.FREEZE), int(Level.FULL)
_ENDS = (S.COMPLETED, S.FAILED, S.CANCELLED, S.TIMEOUT)


class Transition(Struct, frozen=True):
    """What a step does: the groups of facts that it resets, then the effects, in this order."""

    resets: tuple[FieldGroup, ...] = ()
    effects: tuple[Effect, ...] = ()


def transition(book: Book, job: int, state: int, why: Cause) -> None:
    """Take one step of the lifecycle. Raises Bug with the job's history on an illegal one."""
    table, record = book.table, book.jobs[job]
    row, before = table.row[job], record.state
    step = _STEPS[before][state]
    if step is None:
        steps = f"{State(before).word} -> {State(state).word} ({render(why)})"
        raise Bug(f"job {job}: {steps} is not a step of the lifecycle\n{book.format_history(job)}")
    resets, effects = step
    record.reset(resets)
    record.state = state
    table.state[row] = state
    table.since[row] = book.now
    book.counts[before] -= 1
    book.counts[state] += 1
    book.touched[job] = True
    book.record(job, _NAMES[state], why)
    for effect in effects:
        effect(book, job, row, record)


# -- effects ----------------------------------------------------------------------------------------------------------------


def _await_plan(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It waits for devices from now on."""
    book.table.wait_since[row] = book.now
    waking.began_to_wait(book, job)


def _occupy(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It gets the devices reserved for it."""
    book.occupy(job)


def _settle_level(book: Book, job: int, row: int, record: JobRecord) -> None:
    """How it can be made to yield depends on its devices."""
    images.settle_level(book, job, row)


def _launch(book: Book, job: int, row: int, record: JobRecord) -> None:
    """Command its launch."""
    book.out.append(images.launch(book, job))


def _resume(book: Book, job: int, row: int, record: JobRecord) -> None:
    """Command that it is resumed."""
    level = book.table.level.item(row)
    book.out.append(ResumeRanks(job, record.attempt, level, book.allocations[job], record.source))


def _thaw(book: Book, job: int, row: int, record: JobRecord) -> None:
    """Command that a gang is resumed on the devices that it kept."""
    allocation = book.allocations[job]
    book.table.pinned_node[row] = allocation[0].node  # should thawing fail: its memory is nowhere else
    book.out.append(ResumeRanks(job, record.attempt, _FREEZE, allocation))


def _came_up(book: Book, job: int, row: int, record: JobRecord) -> None:
    """All ranks run: neither it nor its nodes have a failed launch behind them."""
    record.launch_failures = record.restore_from = 0
    refusals.launched(book, job)


def _unpin(book: Book, job: int, row: int, record: JobRecord) -> None:
    """Its memory is on its devices again."""
    book.table.pinned_node[row] = -1


def _begin_service(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It makes progress from now on, and is imaged now and then."""
    book.begin_service(job)
    if record.start_forecast is not None:
        start_forecasts.settle(book, record)
    periodic.schedule(book, job)


def _end_service(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It makes no progress from now on. A report of its end has ended it already: what becomes of it depends on its run time."""
    if book.table.run_since.item(row) >= 0:
        book.end_service(job)


def _suspend(book: Book, job: int, row: int, record: JobRecord) -> None:
    """Command its suspension; its devices may be reserved for others, unless it is frozen on them."""
    in_place = record.held_in_place
    if not in_place:
        book.mark_leaving(job, book.table.level.item(row) == _FREEZE)
    level = _FREEZE if in_place else book.table.level.item(row)
    serial = images.order(book, job, row) if level == _FULL else 0
    book.out.append(SuspendRanks(job, record.attempt, level, book.allocations[job], serial))


def _suspended(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It has released its devices, or is frozen on them."""
    record.hold_retry = None
    book.table.wait_since[row] = book.now
    if record.held_in_place:
        return
    if book.table.level.item(row) == _FREEZE:
        book.table.pinned_node[row] = book.allocations[job][0].node
    book.vacate(job)


def _suspended_or_gone(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It is suspended for its user, or its attempt ended meanwhile: ``restart`` has reset how it was suspended."""
    if record.suspended_as:
        _suspended(book, job, row, record)
    else:
        book.vacate(job)


def _leave(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It is on its way out: its devices may be reserved for others."""
    book.mark_leaving(job)


def _leave_queue(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It does not wait for devices any more."""
    waking.left_queue(book)


def _may_be_preempted(book: Book, job: int, row: int, record: JobRecord) -> None:
    """From now on its devices may be taken for others."""
    waking.began_to_run(book)


def _vacate(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It occupies nothing any more."""
    book.vacate(job)


def _unreserve(book: Book, job: int, row: int, record: JobRecord) -> None:
    """Nothing is set aside for it any more."""
    if record.reservation is not None:
        book.cancel_reservation(job)


def _end(book: Book, job: int, row: int, record: JobRecord) -> None:
    """It needs no image, no process of it is frozen anywhere, and others may have its place."""
    frozen_memory.drop(book.board, book.phys, record)
    images.forget(book, job, record.attempt)
    book.freed = True


# -- the table --------------------------------------------------------------------------------------------------------------

_Next = dict[State, Transition]


def _to(*states: State, resets: tuple[FieldGroup, ...] = (), does: tuple[Effect, ...] = ()) -> _Next:
    return dict.fromkeys(states, Transition(resets, does))


def _gone(*states: State, resets: tuple[FieldGroup, ...] = (), first: tuple[Effect, ...] = ()) -> _Next:
    """To states in which a job has no devices."""
    return _to(*states, resets=resets, does=(*first, _unreserve, _vacate))


def _ended(resets: tuple[FieldGroup, ...] = (), first: tuple[Effect, ...] = ()) -> _Next:
    return _to(*_ENDS, resets=resets, does=(*first, _unreserve, _vacate, _end))


_STOP, _STOP_RUNNING = (_unreserve, _leave), (_end_service, _unreserve, _leave)
_RUNS = (_came_up, _begin_service, _may_be_preempted)
_RUNS_AGAIN = (_unpin, _settle_level, *_RUNS)
_RUN_OVER = (G.RUN, G.SAVING)

_NEXT: dict[State, _Next] = {
    S.HELD: _to(S.QUEUED, does=(_vacate, _await_plan))
    | _to(S.SUSPENDED, does=(_await_plan,))
    | _to(S.RESUMING, resets=(G.HELD_IN_PLACE,), does=(_thaw,))
    | _to(S.STOPPING, resets=(G.HELD_IN_PLACE,), does=_STOP)
    | _gone(S.HELD)
    | _ended(),
    S.QUEUED: _to(S.STARTING, does=(_occupy, _settle_level, _launch))
    | _gone(S.HELD, first=(_leave_queue,))
    | _ended(first=(_leave_queue,)),
    S.STARTING: _to(S.RUNNING, does=_RUNS) | _to(S.STOPPING, does=_STOP) | _gone(S.HELD, S.QUEUED) | _ended(),
    S.RUNNING: _to(S.SUSPENDING, resets=_RUN_OVER, does=(_end_service, _suspend))
    | _to(S.STOPPING, resets=(G.RUN,), does=_STOP_RUNNING)
    | _gone(S.HELD, S.QUEUED, resets=_RUN_OVER, first=(_end_service,))
    | _ended(resets=_RUN_OVER, first=(_end_service,)),
    S.SUSPENDING: _to(S.RUNNING, resets=(G.SAVING, G.HELD_IN_PLACE), does=(_settle_level, _begin_service))
    | _to(S.SUSPENDED, resets=(G.SAVING,), does=(_suspended,))
    | _to(S.HELD, resets=(G.SAVING,), does=(_suspended_or_gone, _unreserve))
    | _to(S.STOPPING, resets=(G.HELD_IN_PLACE,), does=_STOP)
    | _gone(S.QUEUED, resets=(G.SAVING,))
    | _ended(resets=(G.SAVING,)),
    S.SUSPENDED: _to(S.RESUMING, does=(_occupy, _resume))
    | _to(S.STOPPING, does=_STOP)
    | _gone(S.HELD, first=(_leave_queue,))
    | _gone(S.QUEUED)
    | _ended(first=(_leave_queue,)),
    S.RESUMING: _to(S.RUNNING, resets=(G.SUSPENDED,), does=_RUNS_AGAIN)
    | _to(S.STOPPING, does=_STOP)
    | _gone(S.HELD, S.QUEUED, S.SUSPENDED)
    | _ended(),
    S.STOPPING: _gone(S.HELD, S.QUEUED, resets=(G.SAVING,)) | _ended(resets=(G.SAVING,)),
    **{state: {} for state in FINAL},
}

TRANSITIONS: dict[tuple[State, State], Transition] = {
    (before, after): step for before, steps in _NEXT.items() for after, step in steps.items()
}
"""(from, to) to what this step does."""


def _step(before: State, after: State) -> tuple[FieldValues, tuple[Effect, ...]] | None:
    known = TRANSITIONS.get((before, after))
    return None if known is None else (fresh(*known.resets), known.effects)


_STEPS = tuple(tuple(_step(before, after) for after in State) for before in State)
"""The same by the states' numbers, field by field; None: no such step."""

_NAMES: tuple[str, ...] = tuple(state.name for state in State)
