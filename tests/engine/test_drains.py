"""Nodes that an operator drains: no new work, and with ``move`` jobs leave where that loses none of their work."""

from __future__ import annotations

import pytest

from tests.engine.test_outages import pool, where
from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.model.cause import Code, reported
from tidewright.model.job import State
from tidewright.plan.render import render
from tidewright.testing.causes import history, history_codes
from tidewright.testing.worldlet import Worldlet

REASON = "kernel update"


def drain(world: Worldlet, node: str, move: bool = True, why: str = REASON) -> co.Reply:
    op = f"d{len(world.said)}"
    return world.reply(ev.NodeDrain(node, True, why, op, move), op)


def run(world: Worldlet, **spec: object) -> int:
    job = world.submit(**spec)
    world.later(10 * SECOND)
    assert where(world, job) == {"n0": 1}
    return job


def test_without_move_jobs_run_on() -> None:
    world = pool()
    job = run(world)
    assert drain(world, "n0", move=False).warning is None
    world.later(MINUTE)
    assert where(world, job) == {"n0": 1}
    assert where(world, run_elsewhere(world)) == {"n1": 1}


def run_elsewhere(world: Worldlet) -> int:
    job = world.submit()
    world.later(10 * SECOND)
    return job


def test_with_move_a_job_goes_on_elsewhere_with_its_work_and_says_why() -> None:
    world = pool()
    job = run(world)
    assert drain(world, "n0").warning is None
    assert where(world, job) == {"n1": 1} and world.state(job) is State.RUNNING
    assert world.engine.book.jobs[job].attempt == 1
    assert Code.NODE_DRAINED in history_codes(world, job)
    assert any(REASON in render(why) for why in history(world, job))


def test_one_for_which_there_is_no_room_waits_and_goes_on_when_the_node_is_back() -> None:
    world = pool(nodes=1)
    job = run(world)
    drain(world, "n0")
    assert world.state(job) is State.SUSPENDED
    world.tell(ev.NodeDrain("n0", False, op_id="u"))
    assert world.state(job) is State.RUNNING and world.engine.book.jobs[job].attempt == 1


def test_a_job_that_is_just_starting_leaves_once_it_runs() -> None:
    world = pool()
    world.obey = False
    job = world.submit()
    assert world.state(job) is State.STARTING
    drain(world, "n0")
    world.obey = True
    world.tell(ev.Started(job, 1))
    assert where(world, job) == {"n1": 1}


@pytest.mark.parametrize(
    ("node", "spec", "code"),
    [
        ({}, {"preempt": "none"}, Code.PREEMPT_NONE),
        ({"full": False, "kind": "cpu"}, {"preempt": "freeze"}, Code.MEMORY_PINNED),
    ],
)
def test_what_would_lose_work_runs_on_and_is_named(node: dict, spec: dict, code: Code) -> None:
    world = pool(**node)
    job = run(world, **spec)
    warning = drain(world, "n0").warning
    assert where(world, job) == {"n0": 1} and world.state(job) is State.RUNNING
    assert warning == Code.STAY_ON_DRAINED("n0", (job,)) and f"job {job}" in render(warning)
    assert code in history_codes(world, job)


def test_one_that_is_frozen_in_the_memory_of_the_node_is_named() -> None:
    world = pool(full=False, kind="cpu")
    job = run(world, preempt="freeze")
    world.tell(ev.Hold(job, "h"))
    assert world.engine.book.jobs[job].suspended_as == "process" and not where(world, job)
    assert drain(world, "n1").warning is None and drain(world, "n0", move=False).warning is None
    assert drain(world, "n0").warning == Code.STAY_ON_DRAINED("n0", (job,))


def test_a_node_that_an_earlier_version_drained_keeps_its_reason() -> None:
    world = pool()
    drain(world, "n0")
    book = world.engine.book
    del book.outages.drains[0]
    drain(world, "n0", why="")
    assert reported(book.drained[0]) == reported(REASON)


def test_one_that_was_submitted_to_be_requeued_starts_again_elsewhere() -> None:
    world = pool(full=False)
    job = run(world, preempt="requeue")
    assert drain(world, "n0").warning is None
    world.later(MINUTE)
    assert where(world, job) == {"n1": 1} and world.engine.book.jobs[job].attempt == 2


def test_a_failed_suspension_is_tried_again_while_the_node_is_drained() -> None:
    world = pool()
    job = run(world)
    fails = [True]

    def answer(command: co.SuspendRanks) -> ev.Event:
        if fails.pop() if fails else False:
            return ev.SuspendFailed(command.job, command.attempt, "disk busy")
        return ev.Suspended(command.job, command.attempt, SECOND, command.serial)

    world.answers[co.SuspendRanks] = answer
    drain(world, "n0")
    assert where(world, job) == {"n0": 1}
    world.later(2 * MINUTE)
    assert where(world, job) == {"n1": 1}


def test_since_when_outlives_another_reason_and_a_snapshot_and_ends_with_the_drain() -> None:
    world = pool()
    world.later(MINUTE)
    drain(world, "n0", move=False)
    since = world.engine.book.outages.drains[0].since
    world.later(MINUTE)
    drain(world, "n0", why="")
    kept = world.engine.book
    assert kept.outages.drains[0].since == since and kept.outages.drains[0].moves and kept.drained[0] == REASON
    again = Engine.restore(world.engine.snapshot()).book
    assert again.outages.drains == kept.outages.drains
    world.tell(ev.NodeDrain("n0", False, op_id="u"))
    assert not world.engine.book.outages.drains and not world.engine.book.drained
