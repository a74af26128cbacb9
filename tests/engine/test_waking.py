"""What makes the engine ask for another plan, as the last one says it (``plan.Wake``)."""

import msgspec
import pytest

from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.model.job import JobSpec, State, Tier
from tidewright.model.node import Part
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.plan import Patience, Wake
from tidewright.testing.worldlet import Worldlet

PATIENCE = Patience(int(Tier.STANDARD), 1, MINUTE, ((0.1, 0), (0.5, 20 * SECOND)))
"""One device of the free ones is kept from others."""


def asks(commands: list[co.Command]) -> bool:
    return any(isinstance(command, co.PlanRequest) for command in commands)


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
    world, *_ = busy(Wake(patience=PATIENCE))
    assert not asks(world.tell(coming()))
    due = world.now + 30 * SECOND  # a tenth of five minutes
    for engine in (Engine.restore(world.engine.snapshot()), world.engine):
        assert engine.due() <= due
        assert not asks(engine.step(due - 1, [ev.Tick()]))
        assert asks(engine.step(due, [ev.Tick()]))


@pytest.mark.parametrize(
    ("expected_us", "within_us"), [(5 * MINUTE, 30 * SECOND), (60 * SECOND, 6 * SECOND), (50 * SECOND, 5 * SECOND),
                                   (44 * SECOND, 2 * SECOND), (60 * MINUTE, MINUTE)],
)  # fmt: skip
def test_the_plan_is_due_by_the_estimate_and_within_the_limit(expected_us: int, within_us: int) -> None:
    world, *_ = busy(Wake(patience=PATIENCE))
    assert not asks(world.tell(coming(expected_us=expected_us)))
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
    world, *_ = busy(Wake(patience=PATIENCE))
    assert asks(world.tell(coming(**fields)))


def test_an_arrival_while_a_plan_is_made_has_another_one_made() -> None:
    world, *_ = busy(Wake(patience=PATIENCE))
    world.engine.book.planning = True
    world.tell(coming())
    assert world.engine.book.arrived


def test_devices_that_come_free_are_enough_for_a_job_that_has_come_meanwhile() -> None:
    world, _, small = busy(Wake(min_free=8, patience=PATIENCE))
    world.tell(coming())
    assert world.engine.book.wake.min_free == 3
    assert asks(world.tell(ev.Exited(small, 1, 0)))


def test_the_end_of_an_awaited_job_counts_however_few_devices_it_frees() -> None:
    for awaited in (False, True):
        world, _, small = busy(Wake(min_free=8))
        world.tell(coming(devices=8, ranks=8))
        world.engine.book.planning = False
        wake = msgspec.structs.replace(world.engine.book.wake, min_free=8, awaited=(small,) if awaited else ())
        world.engine.book.wake, world.engine.book.forced = wake, False
        assert asks(world.tell(ev.Exited(small, 1, 0))) is awaited


@pytest.mark.parametrize(("min_free", "asked"), [(0, True), (2, True), (3, False)])
def test_a_suspended_job_is_planned_for_where_enough_is_free(min_free: int, asked: bool) -> None:
    """It needs four devices and has released them to another one; two are free."""
    world, large, _ = busy(Wake())
    other = world.submit(4)
    world.obey = False
    moves = Suspend(large, "x", replan=False), Start(other, (Part(0, 15),), "x")
    world.plan(*moves, gangs=((0, 2),), wake=Wake(min_free=min_free))
    world.engine.book.planning = False
    assert asks(world.tell(ev.Suspended(large, 1, SECOND, world.engine.book.jobs[large].saving.serial))) is asked
