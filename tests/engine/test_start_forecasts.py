"""Forecasts of starts against what became of them: what is counted, what is not, and that the counts outlive everything."""

from __future__ import annotations

import msgspec
import pytest

from tidewright.base.units import MINUTE, SECOND
from tidewright.drive.record import decode
from tidewright.drive.replay import replay
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.calibration import EARLIER, INSIDE, KEPT, LATER, StartCalibration, StartOutcome
from tidewright.engine.engine import Engine
from tidewright.model.job import State
from tidewright.model.node import Part
from tidewright.plan.moves import Start, Suspend
from tidewright.policy.registry import make
from tidewright.testing.swarm import Swarm
from tidewright.testing.swarm_images import Memory
from tidewright.testing.worldlet import Worldlet

ONE = (Part(0, 1),)


def pool(**more: object) -> Worldlet:
    return Worldlet(1, 4, **more)  # type: ignore[arg-type]


def said(world: Worldlet, job: int, low: int = 10, middle: int = 20, high: int = 30) -> None:
    """A forecast asked and answered now; seconds from now."""
    ends = [at if at < 0 else world.now + at * SECOND for at in (low, middle, high)]
    world.tell(ev.ForecastMade(job, world.now, *ends))


def start(world: Worldlet, job: int, device: int = 1) -> None:
    world.plan(Start(job, (Part(0, device),), "test"))
    assert world.state(job) is State.RUNNING


def counts(world: Worldlet | Engine) -> tuple[int, int, int]:
    engine = world.engine if isinstance(world, Worldlet) else world
    found = engine.book.start_calibration
    assert len(found.recent) == found.earlier + found.inside + found.later
    return found.earlier, found.inside, found.later


@pytest.mark.parametrize(
    ("after_s", "counted", "error_s"),
    [(9, (1, 0, 0), -11), (10, (0, 1, 0), -10), (30, (0, 1, 0), 10), (31, (0, 0, 1), 11)],
)
def test_a_start_is_before_inside_or_after_its_interval(
    after_s: int, counted: tuple[int, int, int], error_s: int
) -> None:
    world = pool()
    job = world.submit()
    said(world, job)
    world.later(after_s * SECOND)
    start(world, job)
    assert counts(world) == counted
    assert world.engine.book.start_calibration.median_error_us() == error_s * SECOND


def test_no_start_is_after_an_interval_without_end() -> None:
    world = pool()
    job = world.submit()
    said(world, job, high=-1)
    world.later(100 * MINUTE)
    start(world, job)
    assert counts(world) == (0, 1, 0)


def test_a_start_is_when_the_ranks_run_and_the_first_of_a_job_alone_counts() -> None:
    world = pool()
    job = world.submit(preempt="freeze")
    said(world, job, 0, 1, 30)
    world.answers[co.Launch] = lambda command: None
    world.plan(Start(job, ONE, "test"))
    world.later(40 * SECOND)
    assert counts(world) == (0, 0, 0)
    world.tell(ev.Started(job, 1))
    assert counts(world) == (0, 0, 1)
    world.tell(ev.Exited(job, 1, 137, lost=True))
    world.answers[co.Launch] = lambda command: ev.Started(command.job, command.attempt)
    said(world, job)
    start(world, job)
    world.plan(Suspend(job, "x"))
    assert counts(world) == (0, 0, 1)


def test_a_launch_that_fails_is_no_start() -> None:
    world = pool()
    job = world.submit()
    said(world, job, 0, 0, 0)
    world.answers[co.Launch] = lambda command: ev.StartFailed(command.job, command.attempt, "no luck")
    world.plan(Start(job, ONE, "test"))
    world.answers[co.Launch] = lambda command: ev.Started(command.job, command.attempt)
    world.later(MINUTE)
    start(world, job)
    assert counts(world) == (0, 0, 1)


def test_a_job_that_ends_before_it_starts_is_not_counted() -> None:
    world = pool()
    job = world.submit()
    said(world, job)
    world.tell(ev.Cancel(job, "c"))
    said(world, job)  # the answer to a question that was asked before
    assert world.state(job) is State.CANCELLED and counts(world) == (0, 0, 0)


@pytest.mark.parametrize("first", ["forecast", "change"])
@pytest.mark.parametrize("change", ["hold", "scale"])
def test_a_job_that_its_user_changes_is_not_counted(first: str, change: str) -> None:
    """Whether the forecast or the change comes first: the question may have been asked before."""
    world = pool()
    job = world.submit(2, min_devices=1)
    if first == "forecast":
        said(world, job)
    if change == "hold":
        world.tell(ev.Hold(job, "h"))
        world.later(5 * SECOND, ev.Release(job, "r"))
    else:
        assert not world.reply(ev.Scale(job, 1, "s"), "s").error
    if first == "change":
        said(world, job)
    start(world, job)
    assert counts(world) == (0, 0, 0)


def test_a_change_that_is_refused_changes_nothing() -> None:
    world = pool()
    job = world.submit()
    said(world, job)
    assert world.reply(ev.Scale(job, 9, "s"), "s").error
    world.later(20 * SECOND)
    start(world, job)
    assert counts(world) == (0, 1, 0)


def test_a_job_that_starts_before_the_answer_comes_is_counted_by_when_it_started() -> None:
    world = pool()
    job, before = world.submit(), world.submit()
    start(world, before, 2)
    world.later(MINUTE)
    asked = world.now
    world.later(2 * SECOND)
    start(world, job)
    world.later(2 * SECOND)
    answer = asked, asked + 3 * SECOND, asked + 4 * SECOND, asked + 5 * SECOND
    world.tell(ev.ForecastMade(job, *answer), ev.ForecastMade(job, *answer), ev.ForecastMade(before, *answer))
    assert counts(world) == (1, 0, 0), "once, and not one that ran when the question was asked"
    assert world.engine.book.start_calibration.recent == [StartOutcome(EARLIER, -2 * SECOND)]


def test_counts_and_open_forecasts_outlive_a_snapshot_and_are_replayed() -> None:
    journal = Memory()
    world = pool(recorder=journal, planner=make("fifo"))
    blocker, first, second = (world.submit(4) for _ in range(3))
    said(world, first)
    said(world, second)
    world.later(20 * SECOND, ev.Exited(blocker, 1, 0))
    again, tail = Engine.restore(world.engine.snapshot()), len(journal.records)
    assert counts(again) == counts(world) == (0, 1, 0)
    assert again.book.jobs[second].start_forecast == world.engine.book.jobs[second].start_forecast is not None
    assert again.snapshot() == world.engine.snapshot()
    world.later(20 * SECOND, ev.Exited(first, 1, 0))
    assert counts(world) == (0, 1, 1)
    assert counts(replay(journal.records[tail:], engine=again)) == (0, 1, 1)
    assert replay(journal.records, world.engine.settings).snapshot() == world.engine.snapshot()


def test_a_snapshot_of_an_earlier_version_opens_with_nothing_counted() -> None:
    swarm = Swarm(7)
    swarm.run(60)
    data = msgspec.msgpack.decode(swarm.engine.snapshot())
    del data["start_calibration"]
    for record in data["jobs"].values():
        record.pop("start_forecast", None)
    engine = Engine.restore(msgspec.msgpack.encode(data))
    assert engine.book.start_calibration == StartCalibration()


@pytest.mark.parametrize("seed", range(4))
def test_in_a_hostile_world_forecasts_decide_nothing_and_are_replayed(seed: int) -> None:
    """The same journal with forecasts of every waiting job put into its steps gives the same commands."""
    swarm = Swarm(seed)
    swarm.run(150)
    settings = swarm.engine.settings
    engine, plain = Engine(settings), Engine(settings)
    for body in swarm.journal.records:
        record = decode(body)
        waiting = [job for job, one in engine.book.jobs.items() if one.state == State.QUEUED]
        made = [ev.ForecastMade(job, record.now, record.now, record.now, record.now + SECOND) for job in waiting]
        given = list(engine.step(record.now, [*made, *record.events]))
        assert given == plain.step(record.now, record.events)
    assert sum(counts(engine)) > 5
    assert Engine.restore(engine.snapshot()).snapshot() == engine.snapshot()


def test_the_latest_outcomes_are_kept_and_all_are_counted() -> None:
    found = StartCalibration()
    for at in range(KEPT + 50):
        found.note(10, 20, 30, at if at < 60 else 25)
    assert (len(found.recent), found.earlier, found.later) == (KEPT, 10, 29)
    assert found.earlier + found.inside + found.later == KEPT + 50
    assert sum(map(found.recently, (EARLIER, INSIDE, LATER))) == KEPT and found.recently(EARLIER) == 0
    assert found.median_error_us() == 5
