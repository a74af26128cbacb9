"""Replicas that start from the image of the first one that was warmed up."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.services.start_image import TRIES
from tidewright.live.reconcile.pending_commands import pending_commands
from tidewright.model.cause import Code
from tidewright.model.job import Level, State
from tidewright.model.service import problems
from tidewright.plan.reasons import Reason
from tidewright.testing.worldlet import Worldlet

from .test_services import deploy, replicas, running, scale, service, wait, world

SPEC = structs.replace(service(1, 4, preempt="requeue"), reports_ready=True, from_image=True)


def take(pool: Worldlet, job: int, attempt: int = 1) -> co.Reply:
    op_id = f"i{pool.engine.revision}"
    reply = pool.reply(ev.TakeServiceImage("vision", job, attempt, op_id), op_id)
    pool.later(SECOND)
    return reply


def launches(pool: Worldlet) -> list[tuple[int, int, int]]:
    return [(one.job, one.image_job, one.image) for one in pool.said if isinstance(one, co.Launch)]


def imaged() -> tuple[Worldlet, int]:
    """A pool with a service that has an image, and its job."""
    pool = world()
    deploy(pool, SPEC)
    (first,) = running(pool)
    assert take(pool, first).error is None
    return pool, first


def test_a_warmed_up_replica_becomes_the_image_that_others_start_from() -> None:
    pool, first = imaged()
    book = pool.engine.book
    assert pool.state(first) is State.HELD and book.jobs[first].image_only
    assert book.hold_reason(first) == (Reason.SERVICE_IMAGE, Code.IS_SERVICE_IMAGE("vision"))
    scale(pool, 3)
    assert len(running(pool)) == 3 and first not in running(pool)
    assert launches(pool) == [(first, 0, 0), *((job, first, 1) for job in running(pool))]
    story = [why for _, _, why in book.jobs[running(pool)[0]].history]
    assert Code.RUNS_FROM_IMAGE_OF(first) in story
    levels = {one.level for one in pool.said if isinstance(one, co.SuspendRanks)}
    assert levels == {Level.FULL} and {book.true_level(job) for job in running(pool)} == {Level.REQUEUE}


def test_the_image_goes_with_its_service_and_with_its_version() -> None:
    pool, first = imaged()
    changed = structs.replace(SPEC, replica=structs.replace(SPEC.replica, workload="other"))
    deploy(pool, changed)
    assert pool.state(first) is State.CANCELLED
    assert any(isinstance(one, co.DropImages) and one.job == first for one in pool.said)
    assert launches(pool)[-1][1:] == (0, 0), "the next version does not start from the image of the last one"
    second = running(pool)[-1]
    assert take(pool, second).error is None
    pool.tell(ev.DeleteService("vision"))
    wait(pool, 5 * SECOND)
    assert not replicas(pool) and not pool.engine.book.services.records


def test_replicas_wait_for_an_image_that_is_being_taken() -> None:
    pool = world()
    pool.answers[co.SuspendRanks] = lambda command: None
    deploy(pool, SPEC)
    (first,) = running(pool)
    take(pool, first)
    assert replicas(pool) == [first] and pool.state(first) is State.SUSPENDING
    scale(pool, 2)
    assert len(replicas(pool)) == 2, "one more than the one that waits for the image"
    pool.tell(ev.Suspended(first, 1, 1000, 1))
    pool.later(SECOND)
    assert len(running(pool)) == 2 and launches(pool)[-1][1] == first


def test_an_image_that_cannot_be_taken_leaves_a_replica() -> None:
    pool = world()
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "a socket")
    deploy(pool, SPEC)
    (first,) = running(pool)
    for _ in range(TRIES):
        assert take(pool, first).error is None
        assert running(pool) == [first]
        pool.tell(ev.ReplicaReady("vision", first, 1))
    record = pool.engine.book.services.records["vision"]
    assert record.image_error is not None and record.image_job == 0 and first in record.ready
    error = take(pool, first).error
    assert error == Code.NO_SERVICE_IMAGE(first, "vision", record.image_error)
    wait(pool, 10 * MINUTE)
    assert running(pool) == [first], "no hold is left behind"


@pytest.mark.parametrize("how", ["lost", "twice", "crash"])
def test_an_image_of_no_use_is_dropped_and_replicas_start_from_the_beginning(how: str) -> None:
    pool, first = imaged()
    started = pool.answers[co.Launch]
    if how == "crash":
        for _ in range(2):
            pool.tell(*(ev.Exited(job, 1, 1) for job in running(pool)))
            wait(pool, 5 * SECOND)
    else:

        def fails(command: Any) -> Any:
            if not command.image_job:
                return started(command)
            return ev.StartFailed(command.job, command.attempt, "damaged", image_lost=how == "lost")

        pool.answers[co.Launch] = fails
        scale(pool, 2)
    wait(pool, 2 * MINUTE)
    scale(pool, 3)
    assert pool.state(first) is State.CANCELLED and len(running(pool)) == 3
    assert launches(pool)[-1][1:] == (0, 0)
    record = pool.engine.book.services.records["vision"]
    assert record.image_tries == 1 and record.image_error is not None
    assert take(pool, running(pool)[0]).error is None, "another image is taken"


def test_an_image_that_its_node_took_along_is_taken_anew() -> None:
    pool = Worldlet(2, 4, world().planner, world().engine.settings, full=True)
    deploy(pool, SPEC)
    (first,) = running(pool)
    take(pool, first)
    lost = pool.engine.book.jobs[first].images[0].nodes[0]
    pool.tell(ev.NodeDown(lost, "power"))
    wait(pool, MINUTE)
    assert pool.state(first) is State.CANCELLED and len(running(pool)) == 1
    again = running(pool)[0]
    assert take(pool, again, pool.engine.book.jobs[again].attempt).error is None


@pytest.mark.parametrize("do", [ev.Release, ev.Cancel])
def test_users_may_take_the_image_away(do: Any) -> None:
    pool, first = imaged()
    pool.tell(do(first))
    wait(pool, 5 * SECOND)
    assert pool.state(first) is State.CANCELLED and len(running(pool)) == 1


def test_what_refuses_an_image() -> None:
    pool = world()
    deploy(pool, structs.replace(SPEC, from_image=False))
    (first,) = running(pool)
    assert take(pool, first).error == Code.NO_SERVICE_IMAGE(first, "vision", Code.REPLICAS_START_ANEW())
    deploy(pool, SPEC)
    assert take(pool, first, 7).error == Code.NO_SERVICE_IMAGE(first, "vision", Code.NOT_A_REPLICA())
    assert take(pool, 99).error == Code.NO_SERVICE_IMAGE(99, "vision", Code.NOT_A_REPLICA())
    assert take(pool, first).error is None
    again = take(pool, running(pool)[0]).error
    assert again == Code.NO_SERVICE_IMAGE(running(pool)[0], "vision", Code.HAS_SERVICE_IMAGE(first))
    bare = Worldlet(1, 4, world().planner, world().engine.settings)
    deploy(bare, SPEC)
    (only,) = running(bare)
    assert take(bare, only).error == Code.NO_SERVICE_IMAGE(only, "vision", Code.NO_IMAGES_THERE())
    assert problems(structs.replace(SPEC, replica=structs.replace(SPEC.replica, ranks=2, devices=2)))
    assert problems(structs.replace(SPEC, reports_ready=False))


def test_a_restarted_controller_repeats_the_launch_from_the_image() -> None:
    pool, first = imaged()
    pool.answers[co.Launch] = lambda command: None
    scale(pool, 2)
    (starting,) = [job for job in replicas(pool) if pool.state(job) is State.STARTING]
    command = pending_commands(pool.engine.book, starting)
    assert isinstance(command, co.Launch) and (command.image_job, command.image) == (first, 1)
