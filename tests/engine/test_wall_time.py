"""The wall clock beside the engine's time: what is shown, and deadlines that are times of day."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidewright.base.units import DAY, HOUR, MINUTE, SECOND
from tidewright.drive.replay import replay
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.wall_time import SLEW, Offsets, corrected, engine_time, wall_time
from tidewright.model.job import State
from tidewright.model.node import Part
from tidewright.plan.moves import Start
from tidewright.testing.swarm import Memory
from tidewright.testing.worldlet import Worldlet

ONE = (Part(0, 1),)
YEARS = 4 * 365 * DAY


def test_a_correction_holds_for_the_whole_span_and_for_no_earlier_one() -> None:
    offsets = corrected((), 100 * DAY, -YEARS, 101 * DAY)
    assert wall_time(offsets, 100 * DAY, 101 * DAY) == 100 * DAY - YEARS
    assert wall_time(offsets, 99 * DAY, 101 * DAY) == 99 * DAY
    later = corrected(offsets, 200 * DAY, 0, 200 * DAY)
    assert wall_time(later, 150 * DAY, 201 * DAY) == 150 * DAY - YEARS
    assert wall_time(later, 201 * DAY, 201 * DAY) == 201 * DAY
    back = corrected(offsets, 100 * DAY, 0, 102 * DAY)
    assert wall_time(back, 101 * DAY, 102 * DAY) == 101 * DAY, "the clock is right again, and so is what was before"


def test_a_small_correction_is_made_gradually() -> None:
    offsets = corrected(corrected((), 0, 0, 0), 0, -30 * SECOND, HOUR)
    assert wall_time(offsets, HOUR, HOUR) == HOUR
    half = HOUR + 15 * SECOND * SLEW
    assert wall_time(offsets, half, half) == half - 15 * SECOND
    done = HOUR + 30 * SECOND * SLEW
    assert wall_time(offsets, done + HOUR, done + HOUR) == done + HOUR - 30 * SECOND


corrections = st.lists(st.tuples(st.integers(-MINUTE, MINUTE), st.integers(0, 20 * MINUTE)), max_size=10)


@given(corrections)
def test_shown_times_of_one_span_never_run_backwards_for_small_corrections(steps: list[tuple[int, int]]) -> None:
    offsets: Offsets = corrected((), 0, 0, 0)
    now = shown = 0
    target = 0
    for amount, pause in steps:
        before = offsets[-1].now_us(now)
        target = before + amount
        offsets = corrected(offsets, 0, target, now)
        assert wall_time(offsets, now, now) >= shown
        now += pause
        assert wall_time(offsets, now, now) >= shown
        shown = wall_time(offsets, now, now)
    assert abs(offsets[-1].now_us(now + DAY) - target) == 0
    assert engine_time(offsets, wall_time(offsets, now, now), now) == now


def held(until: int) -> tuple[Worldlet, int]:
    world = Worldlet(1)
    job = world.submit(checkpoint_us=-1)
    world.plan(Start(job, ONE, "test"))
    world.tell(ev.Hold(job, "h", until))
    assert world.state(job) is State.HELD
    return world, job


def test_a_hold_ends_when_the_wall_clock_shows_its_time() -> None:
    for offset, ends in ((-30 * MINUTE, 90 * MINUTE), (30 * MINUTE, 30 * MINUTE)):
        world = Worldlet(1)
        world.tell(ev.ClockOffset(0, 0))
        job = world.submit(checkpoint_us=-1)
        world.plan(Start(job, ONE, "test"))
        world.tell(ev.Hold(job, "h", world.now + HOUR))
        world.tell(ev.ClockOffset(0, offset))
        world.later(ends - SECOND)
        assert world.state(job) is State.HELD
        world.later(2 * SECOND)
        assert world.state(job) is State.SUSPENDED


def test_a_hold_of_before_there_were_offsets_lasts_as_long_as_it_was_to() -> None:
    world, job = held(HOUR)
    world.tell(ev.ClockOffset(0, -YEARS))
    world.later(HOUR - SECOND)
    assert world.state(job) is State.HELD
    world.later(2 * SECOND)
    assert world.state(job) is State.SUSPENDED


def test_offsets_are_replayed_and_survive_a_snapshot() -> None:
    memory = Memory()
    world = Worldlet(1, recorder=memory)
    world.tell(ev.ClockOffset(0, -YEARS))
    world.later(HOUR, ev.ClockOffset(0, -YEARS + SECOND))
    again = replay(memory.records, world.engine.settings)
    assert again.book.wall_offsets == world.engine.book.wall_offsets
    assert Engine.restore(world.engine.snapshot()).book.wall_offsets == world.engine.book.wall_offsets
