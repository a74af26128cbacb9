"""What belongs to a step of the lifecycle happens whatever takes it."""

from __future__ import annotations

import pytest

from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.engine.lifecycle import TRANSITIONS, transition
from tidewright.model.cause import Code
from tidewright.model.job import FINAL, HOLDING, Level, State
from tidewright.model.node import Part
from tidewright.plan.moves import Migrate, Resume, Start, Suspend
from tidewright.testing.worldlet import Worldlet

DEVICES, WHY = (Part(0, 0xF),), Code.FINISHED()
WITHOUT_DEVICES = [
    (before, after)
    for before, after in TRANSITIONS
    if before in HOLDING and after in FINAL | {State.HELD, State.QUEUED}
]


def in_state(state: State) -> tuple[Worldlet, int]:
    """A world and a job of four devices that has ten seconds of run behind it in this state, nothing answered since."""
    world = Worldlet(2, 8)
    job = world.submit(4, max_duration_us=60 * SECOND)
    world.obey = state is not State.STARTING
    world.plan(Start(job, DEVICES, "test"))
    world.later(10 * SECOND)
    if state is State.RESUMING:
        world.plan(Suspend(job, "test"))
    world.obey = False
    if state is State.SUSPENDING:
        world.plan(Suspend(job, "test"))
    elif state is State.RESUMING:
        world.plan(Resume(job, DEVICES, "test"))
    elif state is State.STOPPING:
        world.tell(ev.Cancel(job, "c"))
    assert world.state(job) is state
    return world, job


@pytest.mark.parametrize(("before", "after"), WITHOUT_DEVICES, ids=lambda state: state.name)
def test_a_step_to_where_a_job_has_no_devices_releases_them_and_ends_its_service(before: State, after: State) -> None:
    world, job = in_state(before)
    book, free = world.engine.book, [16 - 4 * (before not in (State.SUSPENDING, State.STOPPING)), 12]
    record, row = book.jobs[job], book.table.row[job]
    assert [sum(book.board.free_total), sum(book.phys.free_total)] == free
    book.table.level[row] = int(Level.FREEZE)  # it was not frozen, so its memory is nowhere
    transition(book, job, int(after), WHY)
    assert record.allocation is None and job not in book.allocations and book.table.pinned_node[row] == -1
    assert [sum(book.board.free_total), sum(book.phys.free_total)] == [16, 16]
    assert not book.table.rate[row] and book.table.run_since[row] < 0
    ran = 0 if before is State.STARTING else 10 * SECOND
    assert (record.run_time_used_us, book.table.ideal[row], book.table.attained[row]) == (ran, ran, 4000 * ran)


@pytest.mark.parametrize(
    "after", [after for before, after in TRANSITIONS if before is State.QUEUED], ids=lambda s: s.name
)
def test_a_step_from_the_queue_ends_a_reservation(after: State) -> None:
    world = Worldlet(2, 8)
    job = world.submit(4)
    book = world.engine.book
    book.reserve(job, DEVICES)
    transition(book, job, int(after), WHY)
    assert job not in book.reservations and not book.reservation_order and not book.table.reserved[book.table.row[job]]
    assert (book.jobs[job].allocation == DEVICES) == (after is State.STARTING)


@pytest.mark.parametrize("after", [State.STOPPING, State.HELD, State.QUEUED, State.CANCELLED], ids=lambda s: s.name)
def test_a_job_that_was_to_be_moved_and_is_not_has_nothing_reserved(after: State) -> None:
    world, job = in_state(State.RUNNING)
    world.plan(Migrate(job, (Part(1, 0xF),), "test"))
    book = world.engine.book
    assert book.state(job) is State.SUSPENDING and job in book.reservations
    transition(book, job, int(after), WHY)
    assert job not in book.reservations and sum(book.board.free_total) == 16


def test_a_frozen_job_is_bound_to_the_node_with_its_memory_until_it_runs() -> None:
    world, job = in_state(State.SUSPENDING)
    book, row = world.engine.book, world.engine.book.table.row[job]
    book.table.level[row], book.jobs[job].suspended_as = int(Level.FREEZE), "process"
    transition(book, job, int(State.SUSPENDED), WHY)
    assert book.table.pinned_node[row] == 0 and book.jobs[job].allocation is None
    book.reserve(job, DEVICES)
    transition(book, job, int(State.RESUMING), WHY)
    assert book.table.pinned_node[row] == 0 and book.jobs[job].allocation == DEVICES
    transition(book, job, int(State.RUNNING), WHY)
    assert book.table.pinned_node[row] == -1


@pytest.mark.parametrize(
    "before", [State.STARTING, State.RUNNING, State.SUSPENDING, State.RESUMING], ids=lambda s: s.name
)
def test_the_devices_of_a_job_that_is_being_stopped_can_be_reserved_for_others(before: State) -> None:
    world, job = in_state(before)
    book = world.engine.book
    transition(book, job, int(State.STOPPING), WHY)
    assert book.jobs[job].leaving and not book.table.rate[book.table.row[job]]
    assert [sum(book.board.free_total), sum(book.phys.free_total)] == [16, 12]


def test_every_step_to_running_begins_service() -> None:
    for before in (State.STARTING, State.SUSPENDING, State.RESUMING):
        world, job = in_state(before)
        transition(world.engine.book, job, int(State.RUNNING), WHY)
        assert world.engine.book.table.run_since[world.engine.book.table.row[job]] == world.now
