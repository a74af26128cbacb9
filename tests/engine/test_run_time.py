"""The limit of run time: after any way back to the queue a job is charged for no more than the work that it still has."""

from __future__ import annotations

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.model.job import State
from tidewright.model.node import Part
from tidewright.plan.moves import Start, Suspend
from tidewright.testing.worldlet import Worldlet

ONE, ELSEWHERE, HALF = (Part(0, 1),), (Part(1, 1),), (Part(0, 3),)
LIMIT = 2 * HOUR


def world(full: bool = True) -> Worldlet:
    made = Worldlet(2, 4, settings=live_settings(check_every=1), kind="cpu", full=full)
    made.answers[co.CheckpointRanks] = lambda command: None
    return made


def running(pool: Worldlet, allocation=ONE, **fields) -> int:
    fields = {"max_duration_us": LIMIT, "checkpoint_us": -1, **fields}
    job = pool.submit(fields.pop("devices", 1), **fields)
    pool.plan(Start(job, allocation, "test"))
    assert pool.state(job) is State.RUNNING
    return job


def image(pool: Worldlet, job: int) -> None:
    attempt = int(pool.engine.book.table.attempt[pool.engine.book.table.row[job]])
    pool.tell(ev.TakeImage(job, f"image{pool.now}"))
    pool.tell(ev.Checkpointed(job, attempt, pool.engine.book.jobs[job].last_image, SECOND))
    pool.tell(ev.ImageCopied(job, pool.engine.book.jobs[job].last_image, "*"))


def left(pool: Worldlet, job: int) -> int:
    """How long the job may run once it has been started again: found by running it to its limit."""
    pool.later(10 * MINUTE)
    assert pool.state(job) is State.QUEUED
    pool.plan(Start(job, ELSEWHERE, "again"))
    began = pool.now
    pool.later(2 * LIMIT)
    assert pool.ended[job].state == State.TIMEOUT
    return pool.ended[job].end - began


@pytest.mark.parametrize("end", ["node", "lost", "requeue", "retry", "resume"])
def test_a_job_that_starts_over_has_its_whole_limit_again(end: str) -> None:
    pool = world()
    fields = {"requeue": {"preempt": "requeue"}, "retry": {"retries": 1}}
    job = running(pool, **fields.get(end, {}))
    pool.later(100 * MINUTE)
    if end == "requeue":
        pool.answers[co.SuspendRanks] = lambda command: ev.Exited(command.job, command.attempt, 143)
        pool.plan(Suspend(job, "makes room"))
    elif end == "resume":
        pool.plan(Suspend(job, "makes room"))
        pool.tell(ev.NodeDown("n0", "power"), ev.NodeUp(pool.nodes[0], "2"))
    else:
        how = {
            "node": ev.NodeDown("n0", "power"),
            "lost": ev.Exited(job, 1, 137, lost=True),
            "retry": ev.Exited(job, 1, 1),
        }
        pool.tell(how[end])
    assert left(pool, job) == LIMIT


def test_a_job_that_saved_its_own_work_is_charged_for_it() -> None:
    pool = world()
    job = running(pool, preempt="cooperative")
    pool.later(100 * MINUTE)
    pool.plan(Suspend(job, "makes room"))
    assert left(pool, job) == 20 * MINUTE


def test_a_job_that_goes_back_to_an_image_is_charged_for_what_is_in_it() -> None:
    pool = world()
    job = running(pool)
    pool.later(30 * MINUTE)
    image(pool, job)
    pool.later(70 * MINUTE, ev.Exited(job, 1, 137))
    assert left(pool, job) == LIMIT - 30 * MINUTE


def test_run_time_on_fewer_devices_is_that_of_the_clock_and_not_of_the_work() -> None:
    pool = world()
    job = running(pool, HALF, devices=4, min_devices=1)
    pool.later(30 * MINUTE)
    image(pool, job)
    pool.later(60 * MINUTE, ev.Exited(job, 1, 137))
    assert pool.engine.book.jobs[job].run_time_used_us == 30 * MINUTE


def test_an_older_image_gives_back_what_was_run_since() -> None:
    pool = world()
    job = running(pool)
    for _ in range(2):
        pool.later(30 * MINUTE)
        image(pool, job)
    pool.obey = False
    pool.later(40 * MINUTE, ev.Exited(job, 1, 137))
    assert pool.engine.book.jobs[job].run_time_used_us == 60 * MINUTE
    pool.plan(Start(job, ONE, "again"))
    pool.tell(ev.StartFailed(job, 2, "image 2 is damaged", image_lost=True))
    assert pool.engine.book.jobs[job].run_time_used_us == 30 * MINUTE
    pool.later(MINUTE)
    pool.plan(Start(job, ONE, "again"))
    pool.tell(ev.StartFailed(job, 3, "image 1 is damaged", image_lost=True))
    pool.obey = True
    assert left(pool, job) == LIMIT


def test_a_suspended_job_whose_image_dies_goes_back_to_the_run_time_of_the_one_before() -> None:
    pool = world()
    job = running(pool)
    pool.later(30 * MINUTE)
    image(pool, job)
    pool.later(60 * MINUTE)
    pool.plan(Suspend(job, "makes room"))
    assert pool.engine.book.jobs[job].run_time_used_us == 90 * MINUTE
    pool.tell(ev.NodeDown("n0", "power"))
    assert pool.engine.book.jobs[job].run_time_used_us == 30 * MINUTE and pool.engine.book.jobs[job].restore_from == 1


def test_run_time_survives_a_snapshot_with_its_images() -> None:
    pool = world()
    job = running(pool)
    pool.later(30 * MINUTE)
    image(pool, job)
    again = Engine.restore(pool.engine.snapshot())
    assert again.book.jobs[job].images[0].run_time_us == 30 * MINUTE
