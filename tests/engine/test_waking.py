"""What makes the engine ask for another plan, as the last one says it (``plan.Wake``)."""

import msgspec
import pytest

from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.model.job import JobSpec, State, Tier
from tidewright.model.node import Part
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.plan import ArrivalDelay, Plan, Wake
from tidewright.testing.worldlet import Worldlet

from .test_engine import asked

DELAY = ArrivalDelay(int(Tier.STANDARD), 1, MINUTE, ((0.1, 0), (0.5, 20 * SECOND)))
"""One device of the free ones is kept from others."""


def busy(wake: Wake) -> tuple[Worldlet, int, int]:
    """Eight devices: two jobs hold four and two, two are free, and the last plan waits like this."""
    world = Worldlet(1, 8)
    large, small = world.submit(4), world.submit(2)
    world.plan(Start(large, (Part(0, 15),), "x"), Start(small, (Part(0, 48),), "x"), wake=wake)
    world.engine.book.planning = False
    assert world.state(large) is world.state(small) is State.RUNNING
    return world, large, small


def coming(**fields: object) -> ev.Submit:
    usual = {"command": ("true",), "devices": 2, "ranks": 2, "expected_us": 5 * MINUTE}
    return ev.Submit(JobSpec(**{**usual, **fields}))


def test_an_arrival_that_needs_more_than_is_free_may_wait_for_its_plan() -> None:
    world, *_ = busy(Wake(arrival_delay=DELAY))
    assert not asked(world.tell(coming()))
    due = world.now + 30 * SECOND  # a tenth of five minutes
    for engine in (Engine.restore(world.engine.snapshot()), world.engine):
        assert engine.due() <= due
        assert not asked(engine.step(due - 1, [ev.Tick()]))
        assert asked(engine.step(due, [ev.Tick()]))


@pytest.mark.parametrize(
    ("expected_us", "within_us"), [(5 * MINUTE, 30 * SECOND), (60 * SECOND, 6 * SECOND), (50 * SECOND, 5 * SECOND),
                                   (44 * SECOND, 2 * SECOND), (60 * MINUTE, MINUTE)],
)  # fmt: skip
def test_the_plan_is_due_by_the_estimate_and_within_the_limit(expected_us: int, within_us: int) -> None:
    world, *_ = busy(Wake(arrival_delay=DELAY))
    assert not asked(world.tell(coming(expected_us=expected_us)))
    assert world.engine.book.wake.at == world.now + within_us


@pytest.mark.parametrize(
    "fields",
    [
        {"devices": 1, "ranks": 1}, {"tier": "premium"}, {"tier": "basic"}, {"expected_us": 0}, {"deadline_us": 60 * MINUTE},
        {"expected_us": 40 * SECOND}, {"gpu_memory": 1 << 30, "devices": 1, "ranks": 1}, {"min_devices": 1, "ranks": 2},
    ],
    ids=str,
)  # fmt: skip
def test_other_arrivals_are_planned_for_at_once(fields: dict[str, object]) -> None:
    world, *_ = busy(Wake(arrival_delay=DELAY))
    assert asked(world.tell(coming(**fields)))


def test_an_arrival_while_a_plan_is_made_has_another_one_made() -> None:
    world, *_ = busy(Wake(arrival_delay=DELAY))
    world.engine.book.planning = True
    world.tell(coming())
    assert world.engine.book.arrived


def test_devices_that_come_free_are_enough_for_a_job_that_has_come_meanwhile() -> None:
    world, _, small = busy(Wake(min_free=8, arrival_delay=DELAY))
    world.tell(coming())
    assert world.engine.book.wake.min_free == 3
    assert asked(world.tell(ev.Exited(small, 1, 0)))


def test_the_end_of_a_job_that_is_waited_for_counts_however_few_devices_it_frees() -> None:
    for counts in (False, True):
        world, _, small = busy(Wake(min_free=8))
        world.tell(coming(devices=8, ranks=8))
        world.engine.book.planning = False
        wake = msgspec.structs.replace(world.engine.book.wake, min_free=8, on_end=(small,) if counts else ())
        world.engine.book.wake, world.engine.book.forced = wake, False
        assert asked(world.tell(ev.Exited(small, 1, 0))) is counts


@pytest.mark.parametrize(("min_free", "planned"), [(0, True), (2, True), (3, False)])
def test_a_suspended_job_is_planned_for_where_enough_is_free(min_free: int, planned: bool) -> None:
    """It needs four devices and has released them to another one; two are free."""
    world, large, _ = busy(Wake())
    other = world.submit(4)
    world.obey = False
    moves = Suspend(large, "x", replan=False), Start(other, (Part(0, 15),), "x")
    world.plan(*moves, gangs=((0, 2),), wake=Wake(min_free=min_free))
    world.engine.book.planning = False
    assert asked(world.tell(ev.Suspended(large, 1, SECOND, world.engine.book.jobs[large].saving.serial))) is planned


def test_a_job_whose_end_is_waited_for_may_end_while_the_plan_is_made() -> None:
    world, _, small = busy(Wake(min_free=8))
    world.tell(coming(devices=8, ranks=8))
    world.obey, world.engine.book.planning, world.engine.book.freed = False, True, False
    made = Plan(world.engine.revision, wake=Wake(min_free=8, on_end=(small,)))
    assert not asked(world.tell(ev.Exited(small, 1, 0)))
    world.engine.book.freed = False
    assert asked(world.tell(ev.PlanReady(made)))


def test_without_shares_of_the_estimate_an_arrival_waits_for_the_whole_time() -> None:
    world, *_ = busy(Wake(arrival_delay=ArrivalDelay(int(Tier.STANDARD), 0, MINUTE)))
    assert not asked(world.tell(coming(devices=4, ranks=4)))
    assert world.engine.book.wake.at == world.now + MINUTE


def test_where_arrivals_do_not_wake_none_is_put_off() -> None:
    world, *_ = busy(Wake(on_arrival=False, arrival_delay=DELAY))
    assert not asked(world.tell(coming()))
    assert world.engine.book.wake.at == 0


def test_a_wake_of_an_older_journal_is_read() -> None:
    found = msgspec.json.decode(b'{"min_free": 3, "at": 7}', type=Wake)
    assert found == Wake(min_free=3, at=7) and found.on_end == () and found.arrival_delay is None
    stored = Wake(min_free=3, on_end=(1, 2), arrival_delay=DELAY)
    assert msgspec.json.decode(msgspec.json.encode(stored), type=Wake) == stored
