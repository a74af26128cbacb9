"""Facts of one suspension, one run or one attempt end with it."""

from __future__ import annotations

import pytest

from tests.engine.records import each
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code, reported
from tidewright.model.job import State
from tidewright.model.node import Part
from tidewright.plan.moves import Migrate, Resume, Start, Suspend
from tidewright.testing.causes import history
from tidewright.testing.worldlet import Worldlet

ONE, ELSEWHERE = (Part(0, 1),), (Part(1, 1),)


def world(**settings) -> Worldlet:
    made = Worldlet(2, 4, settings=live_settings(check_every=1, **settings), kind="cpu", full=True)
    made.answers[co.CheckpointRanks] = lambda command: None
    return made


def running(pool: Worldlet, **fields) -> int:
    job = pool.submit(**{"checkpoint_us": -1, **fields})
    pool.plan(Start(job, ONE, "test"))
    assert pool.state(job) is State.RUNNING
    return job


def attempt(pool: Worldlet, job: int) -> int:
    return int(pool.engine.book.table.attempt[pool.engine.book.table.row[job]])


@pytest.mark.parametrize("end", ["failed", "lost"])
def test_an_eager_suspension_is_forgotten_when_it_fails(end: str) -> None:
    pool = world()
    job = running(pool)
    pool.obey = False
    pool.plan(Suspend(job, "x", replan=True))
    assert each(pool.engine.book, "replan_on_release")
    pool.tell(ev.SuspendFailed(job, 1, "torn") if end == "failed" else ev.Exited(job, 1, 137, lost=True))
    assert not each(pool.engine.book, "replan_on_release")


def test_a_shield_lasts_its_time_whatever_an_earlier_one_left_behind() -> None:
    pool = world()
    job = running(pool)
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "torn")
    pool.plan(Suspend(job, "x"))
    pool.later(20 * SECOND, ev.Exited(job, 1, 137, lost=True))
    pool.later(SECOND)
    pool.plan(Start(job, ONE, "again"))
    pool.plan(Suspend(job, "x"))
    assert pool.engine.book.jobs[job].suspend_cooldown
    pool.later(15 * SECOND)  # the first shield's time is over, the second's is not
    assert pool.engine.book.jobs[job].suspend_cooldown
    pool.later(20 * SECOND)
    assert not each(pool.engine.book, "suspend_cooldown")


def test_falls_are_halved_by_each_hour_of_run() -> None:
    pool = world(launch_attempts=100)
    job = running(pool, preempt="freeze")
    for _ in range(6):
        pool.tell(ev.Exited(job, attempt(pool, job), 137, lost=True))
        pool.later(10 * MINUTE)
        pool.plan(Start(job, ONE, "again"))
    assert pool.engine.book.jobs[job].rollback_count == 6
    for _ in range(3):  # suspended time does not count, the runs add up
        pool.later(50 * MINUTE)
        pool.plan(Suspend(job, "x"))
        pool.later(HOUR)
        pool.plan(Resume(job, ONE, "x"))
    assert pool.engine.book.jobs[job].rollback_count == 6 >> 2
    pool.later(20 * MINUTE)
    pool.plan(Suspend(job, "x"))
    again = Engine.restore(pool.engine.snapshot())
    assert each(again.book, "rollback_free_us") == each(pool.engine.book, "rollback_free_us") == {job: 50 * MINUTE}
    pool.plan(Resume(job, ONE, "x"))
    pool.later(2 * HOUR, ev.Exited(job, attempt(pool, job), 137, lost=True))
    assert pool.engine.book.jobs[job].rollback_count == 1


def test_what_starts_over_after_failed_resumptions_has_all_its_launches() -> None:
    pool = world(launch_attempts=3)
    job = running(pool)
    pool.plan(Suspend(job, "x"))
    pool.answers[co.ResumeRanks] = lambda command: ev.ResumeFailed(command.job, command.attempt, "torn")
    for _ in range(3):
        pool.later(HOUR)
        pool.plan(Resume(job, ONE, "x"))
    assert pool.state(job) is State.QUEUED
    pool.answers[co.Launch] = lambda command: ev.StartFailed(command.job, command.attempt, "no luck")
    pool.plan(Start(job, ONE, "again"))
    assert pool.state(job) is State.HELD, "its first launch failed, and it has two more"


@pytest.mark.parametrize("end", ["suspended", "restarted"])
def test_failed_images_are_forgotten_with_a_good_one_or_a_new_attempt(end: str) -> None:
    pool = world()
    job = running(pool)
    pool.tell(ev.TakeImage(job, "i"))
    pool.tell(ev.CheckpointFailed(job, 1, 1, "disk full"))
    assert each(pool.engine.book, "checkpoint_failures")
    if end == "suspended":
        pool.plan(Suspend(job, "x"))
    else:
        pool.tell(ev.Exited(job, 1, 137, lost=True))
    assert not each(pool.engine.book, "checkpoint_failures")


def test_a_move_that_fails_says_what_became_of_it() -> None:
    pool = world()
    job = running(pool)
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "torn")
    pool.plan(Migrate(job, ELSEWHERE, "x"))
    assert pool.state(job) is State.RUNNING
    assert Code.STAYS(reported("torn")) in history(pool, job)


def test_a_scaling_that_fails_says_what_became_of_it() -> None:
    pool = world()
    job = pool.submit(4, checkpoint_us=-1)
    pool.plan(Start(job, (Part(0, 15),), "test"))
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "torn")
    assert not pool.reply(ev.Scale(job, 2, "s"), "s").error
    assert Code.NOT_SCALED(2, 4) in history(pool, job)
