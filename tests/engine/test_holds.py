"""A suspension that a user asked for and that was accepted: it is carried out as soon as it can be, and says so until then."""

from __future__ import annotations

import pytest

from tests.engine.records import each
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.requests.hold import outlook
from tidewright.engine.settings import live_settings
from tidewright.live.api.views import live_job
from tidewright.model.cause import Cause, Code, reported
from tidewright.model.job import Level, State
from tidewright.model.node import Part
from tidewright.plan.moves import Resume, Start, Suspend
from tidewright.policy.registry import make
from tidewright.testing.causes import history, within
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet

ONE = (Part(0, 1),)


def world(full: bool = True, **settings) -> Worldlet:
    return Worldlet(1, 4, settings=live_settings(check_every=1, **settings), kind="cpu", full=full)


def running(pool: Worldlet, devices: int = 1, **fields) -> int:
    job = pool.submit(devices, **{"checkpoint_us": -1, **fields})
    pool.plan(Start(job, (Part(0, (1 << devices) - 1),), "test"))
    assert pool.state(job) is State.RUNNING
    return job


def refuse(pool: Worldlet, error: str = "no memory") -> None:
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, error)


def allow(pool: Worldlet) -> None:
    pool.answers[co.SuspendRanks] = lambda command: ev.Suspended(command.job, command.attempt, 1000, command.serial)


def asked(given: list[co.Command]) -> int:
    return sum(isinstance(command, co.SuspendRanks) for command in given)


def why(pool: Worldlet, job: int) -> Cause | None:
    return outlook(pool.engine.book, job, pool.now)


def test_a_hold_whose_suspension_fails_is_kept_and_carried_out_as_soon_as_it_can_be() -> None:
    pool = world()
    job = running(pool)
    refuse(pool)
    assert not pool.reply(ev.Hold(job, "h"), "h").error
    assert pool.state(job) is State.RUNNING
    assert why(pool, job) == Code.HOLD_PENDING(reported("no memory"), SECOND)
    assert live_job(pool.engine.book, job, pool.now).cause.code == "HoldPending"
    assert explain(pool.engine, make("fifo"), job).why == why(pool, job)
    later = explain(pool.engine, make("fifo"), job, pool.now + SECOND).why
    assert later == Code.HOLD_PENDING(reported("no memory"), 0)
    assert Code.HOLD_FAILED(reported("no memory")) in history(pool, job)
    allow(pool)
    pool.later(10 * SECOND)
    assert pool.state(job) is State.HELD and pool.engine.book.jobs[job].user_hold is not None
    pool.tell(ev.Release(job, "r"))
    assert pool.state(job) is State.SUSPENDED and not each(pool.engine.book, "hold_retry")


def no_room(pool: Worldlet) -> None:
    """Images do not fit on the disk; all else works."""

    def answer(command: co.SuspendRanks) -> ev.Event:
        if command.level == Level.FULL:
            return ev.SuspendFailed(command.job, command.attempt, "no room on /var", no_room=True)
        return ev.Suspended(command.job, command.attempt, 1000, command.serial)

    pool.answers[co.SuspendRanks] = answer


def test_a_frozen_job_is_not_scaled_to_what_its_node_does_not_have() -> None:
    """Its memory is on that node, and no other could run it."""
    pool = Worldlet(2, 4, settings=live_settings(check_every=1), kind="cpu", full=True)
    job = pool.submit(8, placement="any", checkpoint_us=-1)
    pool.tell(ev.Scale(job, 4, "s4"))
    pool.plan(Start(job, (Part(0, 0b1111),), "test"))
    no_room(pool)
    pool.tell(ev.Hold(job, "h"))
    assert pool.state(job) is State.HELD and pool.engine.book.jobs[job].suspended_as == "process"
    assert pool.reply(ev.Scale(job, 0, "s0"), "s0").error == Code.NODES_TOO_SMALL(job, 8, ("n0",), 4)
    assert not pool.reply(ev.Scale(job, 2, "s2"), "s2").error


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_job_whose_image_has_no_room_is_frozen_for_its_user(ranks: int) -> None:
    pool = world()
    job, other = running(pool, ranks), pool.submit(4)
    no_room(pool)
    given = pool.tell(ev.Hold(job, "h"))
    assert [command.level for command in given if isinstance(command, co.SuspendRanks)] == [Level.FULL, Level.FREEZE]
    assert pool.state(job) is State.HELD and not each(pool.engine.book, "hold_retry")
    assert Code.FROZEN_NO_ROOM(reported("no room on /var")) in history(pool, job)
    pool.plan(Start(other, (Part(0, 0b1111),), "its devices are free"))
    assert pool.state(other) is State.RUNNING
    pool.tell(ev.Cancel(other, "c"))
    allow(pool)
    pool.tell(ev.Release(job, "r"))
    pool.plan(Resume(job, (Part(0, (1 << ranks) - 1),), "there is room"))
    assert pool.state(job) is State.RUNNING
    given = pool.tell(ev.Hold(job, "h2"))
    assert [command.level for command in given if isinstance(command, co.SuspendRanks)] == [Level.FULL]


@pytest.mark.parametrize(("kind", "fields"), [("cpu", {"preempt": "full"}), ("h100", {})])
def test_a_job_that_cannot_be_frozen_waits_for_room(kind: str, fields: dict) -> None:
    """Its user wants images and nothing else; a frozen process keeps a GPU's memory."""
    pool = Worldlet(1, 4, settings=live_settings(check_every=1), kind=kind, full=True)
    job = running(pool, **fields)
    no_room(pool)
    pool.tell(ev.Hold(job, "h"))
    assert pool.state(job) is State.RUNNING and reported("no room on /var") in within(why(pool, job))


def test_a_preemption_without_room_freezes_nothing() -> None:
    """The job that it is preempted for may need the memory."""
    pool = world()
    job = running(pool)
    no_room(pool)
    pool.plan(Suspend(job, "for another"))
    assert pool.state(job) is State.RUNNING


def test_a_hold_that_fails_again_and_again_is_tried_ever_more_rarely() -> None:
    pool = world()
    job = running(pool)
    refuse(pool)
    pool.tell(ev.Hold(job, "h"))
    pool.later(HOUR)
    tries = asked(pool.said)
    assert 10 < tries < 25 and pool.state(job) is State.RUNNING
    again = Engine.restore(pool.engine.snapshot())
    assert each(again.book, "hold_retry") == each(pool.engine.book, "hold_retry")


def test_planners_leave_a_job_alone_whose_hold_is_tried_again() -> None:
    pool = world()
    job = running(pool)
    refuse(pool)
    pool.tell(ev.Hold(job, "h"))
    pool.later(2 * SECOND)
    pool.plan(Suspend(job, "room"))
    assert pool.state(job) is State.RUNNING


def test_a_hold_that_waits_ends_with_its_release_or_its_time() -> None:
    pool = world()
    released, timed = running(pool), pool.submit(checkpoint_us=-1)
    pool.plan(Start(timed, (Part(0, 2),), "test"))
    refuse(pool)
    pool.tell(ev.Hold(released, "h1"), ev.Hold(timed, "h2", pool.now + 20 * SECOND))
    assert not pool.reply(ev.Release(released, "r"), "r").error
    allow(pool)
    pool.later(19 * SECOND)
    assert pool.state(released) is State.RUNNING and pool.state(timed) is State.HELD
    pool.later(MINUTE)
    assert not each(pool.engine.book, "user_hold") and not each(pool.engine.book, "hold_retry")


def test_asking_again_tries_again_at_once() -> None:
    pool = world()
    job = running(pool)
    refuse(pool)
    pool.tell(ev.Hold(job, "h"))
    reply = pool.reply(ev.Hold(job, "again"), "again")
    assert not reply.error and asked(pool.said) == 2
    allow(pool)
    pool.tell(ev.Hold(job, "third"))
    assert pool.state(job) is State.HELD


def test_a_failed_preemption_does_not_refuse_the_user() -> None:
    pool = world()
    job = running(pool)
    refuse(pool)
    pool.plan(Suspend(job, "room"))
    allow(pool)
    assert not pool.reply(ev.Hold(job, "h"), "h").error
    assert pool.state(job) is State.HELD


def test_a_program_that_rules_out_every_level_is_held_when_it_starts_over() -> None:
    pool = world()
    job = running(pool)
    pool.obey = False
    pool.tell(ev.Hold(job, "h"))
    pool.tell(
        ev.LevelLowered(job, 1, int(Level.NONE), "it holds a device"), ev.SuspendFailed(job, 1, "it holds a device")
    )
    pool.later(HOUR)
    assert asked(pool.said) == 1, "nothing is asked that cannot be"
    assert reported("it holds a device") in within(why(pool, job))
    pool.tell(ev.Exited(job, 1, 137, lost=True))
    assert pool.state(job) is State.HELD and not each(pool.engine.book, "hold_retry")


def test_a_hold_of_a_job_that_comes_up_without_a_level_waits_too() -> None:
    pool = world()
    job = pool.submit(checkpoint_us=-1)
    pool.obey = False
    pool.plan(Start(job, ONE, "test"))
    pool.tell(ev.Hold(job, "h"))
    pool.tell(ev.LevelLowered(job, 1, int(Level.NONE), "it holds a device"))
    given = pool.tell(ev.Started(job, 1))
    assert not asked(given) and pool.state(job) is State.RUNNING
    assert reported("it holds a device") in within(why(pool, job))


def test_a_gang_that_could_not_be_frozen_for_a_moment_is_frozen_in_time_or_not_at_all() -> None:
    pool = world(full=False)
    job = pool.submit(2, checkpoint_us=-1)
    pool.plan(Start(job, (Part(0, 3),), "test"))
    refuse(pool)
    assert not pool.reply(ev.Hold(job, "h", pool.now + 30 * SECOND), "h").error
    assert pool.state(job) is State.RUNNING
    pool.answers[co.SuspendRanks] = lambda command: ev.Suspended(command.job, command.attempt, 1000)
    pool.later(5 * SECOND)
    assert pool.state(job) is State.HELD and pool.engine.book.jobs[job].held_in_place
    pool.later(MINUTE)
    assert pool.state(job) is State.RUNNING
