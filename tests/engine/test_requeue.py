"""Requeues and holds of waiting jobs, by the state that a job is in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine import termination
from tidewright.engine.commands import Reply
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code
from tidewright.model.job import Dependency, State
from tidewright.model.node import Part
from tidewright.plan.moves import Resume, Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.testing.worldlet import Worldlet

ONE = (Part(0, 1),)


def world(full: bool = True) -> Worldlet:
    return Worldlet(1, 4, settings=live_settings(check_every=1), kind="cpu", full=full)


def running(pool: Worldlet, **fields: Any) -> int:
    job = pool.submit(**{"checkpoint_us": -1, **fields})
    pool.plan(Start(job, ONE, "test"))
    assert pool.state(job) is State.RUNNING
    return job


def requeue(pool: Worldlet, job: int, **more: Any) -> Reply:
    op_id = f"q{len(pool.said)}"
    return pool.reply(ev.Requeue(job, op_id, "ada", **more), op_id)


def hold(pool: Worldlet, job: int, **more: Any) -> Reply:
    op_id = f"w{len(pool.said)}"
    return pool.reply(ev.Hold(job, op_id, waiting=True, by="ada", **more), op_id)


def launched_from(pool: Worldlet, job: int) -> int:
    """Number of the image that its next launch starts from."""
    given = pool.plan(Start(job, ONE, "again"))
    return next(command.image for command in given if isinstance(command, co.Launch))


def imaged(pool: Worldlet) -> int:
    """A running job with an hour of work, all but a minute of it in an image."""
    job = running(pool, max_duration_us=9 * HOUR)
    pool.later(HOUR - MINUTE)
    pool.tell(ev.TakeImage(job, "i"))
    pool.later(MINUTE)
    assert pool.engine.book.jobs[job].images
    return job


def test_a_running_job_starts_again_from_its_beginning() -> None:
    pool = world()
    job = imaged(pool)
    submit = pool.engine.book.table.submit.item(0)
    assert requeue(pool, job).error is None
    record, table = pool.engine.book.jobs[job], pool.engine.book.table
    assert pool.state(job) is State.QUEUED and not record.images and record.run_time_used_us == 0
    assert record.lost_us == HOUR and record.failures == record.rollback_count == 0
    assert table.submit.item(0) == submit and record.attempt == 2
    assert launched_from(pool, job) == 0


def test_restarts_of_one_step_go_through_its_commands_once() -> None:
    class Counted(list[co.Command]):
        read = 0

        def __iter__(self) -> Iterator[co.Command]:
            for command in super().__iter__():
                Counted.read += 1
                yield command

    pool = Worldlet(1, 64, settings=live_settings(check_every=1), kind="cpu", full=True)
    jobs = [pool.submit(checkpoint_us=-1) for _ in range(64)]
    pool.plan(*(Start(job, (Part(0, 1 << at),), "test") for at, job in enumerate(jobs)))
    pool.plan(*(Suspend(job, "x") for job in jobs))
    book = pool.engine.book
    book.out, book.withdrawn = Counted(), {}

    def order(job: int) -> co.StopRanks:
        return co.StopRanks(job, book.jobs[job].attempt, 0, Code.DRAINED())

    book.out.extend(order(job) for job in jobs)
    for job in jobs:
        termination.restart(book, job, Code.DRAINED(), keeps_work=False)
    book.out.append(order(jobs[0]))
    termination.withdraw_orders(book)
    assert [command for command in book.out if type(command) is co.StopRanks] == [order(jobs[0])]
    assert Counted.read <= 8 * len(jobs)


def test_or_from_its_latest_image() -> None:
    pool = world()
    job = imaged(pool)
    assert requeue(pool, job, from_image=True).error is None
    record = pool.engine.book.jobs[job]
    assert record.lost_us == MINUTE and record.run_time_used_us == HOUR - MINUTE
    assert launched_from(pool, job) == record.images[-1].serial
    pool = world()
    bare = running(pool)
    assert requeue(pool, bare, from_image=True).error == Code.NO_IMAGE_OF(bare) and pool.state(bare) is State.RUNNING


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("by_user", [True, False])
def test_a_suspended_job_loses_image_and_hold(full: bool, by_user: bool) -> None:
    pool = world(full)
    job = running(pool)
    pool.later(HOUR)
    if by_user:
        pool.tell(ev.Hold(job, "h"))
    else:
        pool.plan(Suspend(job, "x"))
    assert pool.state(job) is (State.HELD if by_user else State.SUSPENDED)
    reply = requeue(pool, job)
    assert reply.error is None and reply.warning == (Code.HOLD_REQUEUED(job) if by_user else None)
    record = pool.engine.book.jobs[job]
    assert pool.state(job) is State.QUEUED and record.user_hold is None and not record.images
    assert launched_from(pool, job) == 0


def test_a_job_that_was_to_start_from_an_image_starts_from_its_beginning() -> None:
    pool = world()
    job = imaged(pool)
    pool.tell(ev.Exited(job, 1, 137, lost=True))
    assert pool.engine.book.jobs[job].restore_from and pool.state(job) is State.QUEUED
    assert requeue(pool, job, hold=True).error is None
    assert pool.state(job) is State.HELD and not pool.engine.book.jobs[job].restore_from
    pool.tell(ev.Release(job, "r"))
    assert launched_from(pool, job) == 0


@pytest.mark.parametrize("state", [State.STARTING, State.SUSPENDING, State.RESUMING])
def test_in_between_it_is_stopped_and_what_comes_too_late_is_ignored(state: State) -> None:
    pool = world()
    job = running(pool)
    if state is State.STARTING:
        pool = world()
        job = pool.submit()
        pool.obey = False
        pool.plan(Start(job, ONE, "test"))
    elif state is State.RESUMING:
        pool.plan(Suspend(job, "x"))
        pool.obey = False
        pool.plan(Resume(job, ONE, "x"))
    else:
        pool.obey = False
        pool.plan(Suspend(job, "x"))
    assert pool.state(job) is state
    assert requeue(pool, job).error is None and pool.state(job) is State.STOPPING
    pool.tell(ev.Started(job, 1), ev.Resumed(job, 1), ev.Suspended(job, 1, 1, 1))
    pool.tell(ev.Exited(job, 1, 143))
    assert pool.state(job) is State.QUEUED and not pool.engine.book.jobs[job].images


def test_a_node_that_dies_meanwhile_changes_nothing() -> None:
    pool = world()
    job = imaged(pool)
    pool.tell(ev.ImageCopied(job, 1, "*"))
    pool.obey = False
    requeue(pool, job)
    pool.tell(ev.NodeDown("n0", "power"))
    record = pool.engine.book.jobs[job]
    assert pool.state(job) is State.QUEUED and not record.restore_from and record.lost_us == HOUR


def test_held_until_it_is_released() -> None:
    pool = world()
    job = running(pool)
    assert requeue(pool, job, hold=True).error is None
    assert pool.engine.book.hold_reason(job) == (Reason.USER_HOLD, Code.HELD_BY("ada"))
    assert pool.reply(ev.Release(job, "r"), "r").error is None and pool.state(job) is State.QUEUED


def test_nothing_to_requeue() -> None:
    pool = world()
    job = pool.submit()
    assert requeue(pool, job).error == Code.WAITS_ALREADY(job, "QUEUED")
    first = running(pool)
    pool.obey = False
    pool.tell(ev.Cancel(first))
    assert requeue(pool, first).error == Code.ENDING(first)
    pool.tell(ev.Exited(first, 1, 143))
    assert requeue(pool, first).error == Code.ENDED_FOR_GOOD(first, "CANCELLED")
    assert requeue(pool, 99).error == Code.NO_SUCH_JOB(99)


def test_the_same_requeue_again_is_one() -> None:
    pool = world()
    job = running(pool)
    event = ev.Requeue(job, "same", "ada")
    first = pool.reply(event, "same")
    pool.plan(Start(job, ONE, "again"))
    assert pool.reply(event, "same") == first and pool.state(job) is State.RUNNING


# -- holds of waiting jobs --------------------------------------------------------------------------------------------------


def test_a_waiting_job_is_kept_from_starting_and_keeps_its_place() -> None:
    pool = world()
    job = pool.submit()
    pool.later(MINUTE)
    assert hold(pool, job).error is None
    assert pool.state(job) is State.HELD
    assert pool.engine.book.hold_reason(job) == (Reason.USER_HOLD, Code.HELD_BY("ada"))
    pool.plan(Start(job, ONE, "test"))
    assert pool.state(job) is State.HELD
    assert Engine.restore(pool.engine.snapshot()).snapshot() == pool.engine.snapshot()
    assert pool.reply(ev.Release(job, "r"), "r").error is None
    assert pool.state(job) is State.QUEUED and pool.engine.book.table.submit.item(0) == 0
    assert not pool.engine.book.jobs[job].held_by


def test_one_with_devices_is_not_touched() -> None:
    pool = world()
    job = running(pool)
    assert hold(pool, job).error == Code.NOT_WAITING(job, "RUNNING")
    pool.obey = False
    pool.plan(Suspend(job, "x"))
    assert hold(pool, job).error == Code.NOT_WAITING(job, "SUSPENDING")


def test_a_preempted_job_is_kept_from_coming_back() -> None:
    pool = world()
    job = running(pool)
    pool.plan(Suspend(job, "x"))
    assert hold(pool, job).error is None and pool.state(job) is State.HELD
    pool.tell(ev.Release(job, "r"))
    pool.plan(Resume(job, ONE, "x"))
    assert pool.state(job) is State.RUNNING


def test_a_suspension_becomes_a_hold_and_a_hold_a_suspension() -> None:
    pool = world()
    job = running(pool)
    pool.tell(ev.Hold(job, "h", pool.now + HOUR))
    assert pool.engine.book.hold_reason(job) == (Reason.USER_HOLD, Code.HELD_BY_USER())
    assert hold(pool, job).error is None
    assert pool.engine.book.hold_reason(job) == (Reason.USER_HOLD, Code.HELD_BY("ada"))
    pool.later(2 * HOUR)
    assert pool.state(job) is State.HELD, "a hold has no end of its own"
    pool.tell(ev.Hold(job, "s", pool.now + SECOND))
    pool.later(2 * SECOND)
    assert pool.state(job) is State.SUSPENDED


def test_a_job_that_waits_for_others_stays_held_after_they_have_ended() -> None:
    pool = world()
    first = running(pool)
    job = pool.submit(after=(Dependency("afterok", first),))
    assert hold(pool, job).error is None
    pool.tell(ev.Exited(first, 1, 0))
    assert pool.engine.book.hold_reason(job) == (Reason.USER_HOLD, Code.HELD_BY("ada"))
    pool.tell(ev.Release(job, "r"))
    assert pool.state(job) is State.QUEUED


def test_submitted_to_be_held() -> None:
    pool = world()
    job = pool.submit(hold=True, user="bob")
    assert pool.state(job) is State.HELD
    assert pool.engine.book.hold_reason(job) == (Reason.USER_HOLD, Code.HELD_BY("bob"))
    pool.tell(ev.Release(job, "r"))
    pool.plan(Start(job, ONE, "test"))
    assert pool.state(job) is State.RUNNING
    requeue(pool, job)
    assert pool.state(job) is State.QUEUED, "it was released for good"


def test_one_that_is_being_requeued_is_held_when_it_is_back() -> None:
    pool = world()
    job = running(pool)
    pool.obey = False
    requeue(pool, job)
    assert pool.state(job) is State.STOPPING and hold(pool, job).error is None
    pool.tell(ev.Exited(job, 1, 143))
    assert pool.state(job) is State.HELD and pool.engine.book.jobs[job].held_by == "ada"
