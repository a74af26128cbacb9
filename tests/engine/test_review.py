"""Corners of the engine that a review found broken: each test failed before its correction."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import numpy as np
import pytest

from tidewright.engine import events as ev
from tidewright.engine.commands import PlanRequest
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.model.cause import Code
from tidewright.model.job import ArrayMember, Dependency, JobSpec, State, problems
from tidewright.model.node import Part
from tidewright.plan.moves import Resume, Start
from tidewright.plan.plan import Plan, Wake
from tidewright.testing.causes import codes
from tidewright.testing.worldlet import Worldlet


class FirstFit:
    """Starts whatever waits on the first node with room, in the order of submission."""

    name = "first-fit"

    def plan(self, view: Any) -> Plan:
        board, moves = view.board(), []
        for row in np.flatnonzero(view.jobs.waiting):
            wanted = int(view.jobs.demand[row])
            for node in range(len(view.layout.nodes)):
                if board.up >> node & 1 and board.free[node].bit_count() >= wanted:
                    free = [bit for bit in range(64) if board.free[node] >> bit & 1][:wanted]
                    part = (Part(node, sum(1 << bit for bit in free)),)
                    board.acquire(part)
                    kind = Start if view.jobs.state[row] == State.QUEUED else Resume
                    moves.append(kind(int(view.jobs.id[row]), part, "fits"))
                    break
        return Plan(view.revision, tuple(moves))


def after(*jobs: int, kind: str = "afterok") -> tuple[Dependency, ...]:
    return tuple(Dependency(kind, job) for job in jobs)  # type: ignore[arg-type]


def test_a_job_that_two_others_doom_ends_once() -> None:
    world = Worldlet(1, 1)
    first = world.submit()
    second = world.submit(after=after(first))
    third = world.submit(after=after(first, second))
    twice = world.submit(after=(*after(first), *after(first, kind="afterany")))
    world.tell(ev.Cancel(first, "c"))
    assert [world.state(job) for job in (first, second, third, twice)] == [State.CANCELLED] * 4
    assert not world.engine.book.specs


def test_a_chain_of_dependent_jobs_may_be_longer_than_the_stack() -> None:
    world = Worldlet(1, 1, settings=EngineSettings())
    last = world.submit()
    for _ in range(length := sys.getrecursionlimit()):
        last = world.submit(after=after(last))
    world.tell(ev.Cancel(1, "c"))
    assert len(world.ended) == 1 + length and {job.state for job in world.ended.values()} == {State.CANCELLED}
    assert world.ended[last].why == Code.DEPENDENCY_FAILED(last - 1)


def test_a_node_described_anew_keeps_what_runs_on_it() -> None:
    world = Worldlet(2, 4, planner=FirstFit())
    job = world.submit(2)
    world.tell(ev.NodeUp(msgspec.structs.replace(world.nodes[0], note="one fan is slow", memory=2**30), "1"))
    book = world.engine.book
    assert book.board.layout.nodes[0].note == "one fan is slow"
    assert book.board.free[0].bit_count() == book.phys.free[0].bit_count() == 2
    assert world.state(job) is State.RUNNING


def test_devices_that_a_user_frees_by_a_hold_go_to_those_who_wait() -> None:
    world = Worldlet(1, 4, planner=FirstFit())
    holder, waiting = world.submit(4), world.submit(4)
    assert world.state(waiting) is State.QUEUED
    world.tell(ev.Hold(holder, "h"))
    assert (world.state(holder), world.state(waiting)) == (State.HELD, State.RUNNING)


def test_a_frozen_gang_cannot_be_held_beyond_its_bound() -> None:
    world = Worldlet(1, 4, planner=FirstFit(), settings=live_settings(check_every=1), kind="cpu")
    job = world.submit(2)
    assert not world.reply(ev.Hold(job, "h", world.now + 10_000_000), "h").error
    assert world.reply(ev.Hold(job, "for ever"), "for ever").kind == "conflict"
    assert world.reply(ev.Hold(job, "long", world.now + 10**9), "long").kind == "conflict"
    assert not world.reply(ev.Hold(job, "longer", world.now + 20_000_000), "longer").error
    world.later(19_000_000)
    assert world.state(job) is State.HELD
    world.later(2_000_000)
    assert world.state(job) is State.RUNNING


def test_a_hold_of_a_job_that_comes_up_is_judged_as_one_of_a_running_job() -> None:
    world = Worldlet(1, 4, planner=FirstFit(), settings=live_settings(check_every=1), kind="h100")
    world.obey = False
    job = world.submit(1)
    assert world.state(job) is State.STARTING
    assert Code.KEEPS_MEMORY in codes(world.reply(ev.Hold(job, "h"), "h").error)
    world.tell(ev.Started(job, 1))
    assert world.state(job) is State.RUNNING


def test_a_gang_that_could_not_be_thawed_stays_bound_to_its_node() -> None:
    world = Worldlet(2, 4, planner=FirstFit(), settings=live_settings(check_every=1), kind="cpu")
    job = world.submit(2)
    world.tell(ev.Hold(job, "h", world.now + 10_000_000))
    world.obey = False
    world.later(10_000_000)
    world.tell(ev.ResumeFailed(job, 1, "no memory"))
    world.tell(ev.NodeDrain("n0", True))
    world.later(2_000_000)
    assert world.state(job) is State.SUSPENDED
    refused = world.plan(Resume(job, (Part(1, 3),), "elsewhere"))
    assert world.state(job) is State.SUSPENDED and not [one for one in refused if type(one).__name__ == "ResumeRanks"]
    world.tell(ev.NodeDrain("n0", False))
    assert world.state(job) is State.RESUMING


def test_every_wake_at_a_far_time_does_not_leave_a_timer_behind() -> None:
    class Later(FirstFit):
        def plan(self, view: Any) -> Plan:
            return Plan(view.revision, wake=Wake(at=view.now + 10_000_000))

    world = Worldlet(1, 1, planner=Later())
    world.submit()
    for _ in range(99):
        world.later(10_000, *(ev.Submit(JobSpec(command=("true",))),))
    assert len(world.engine.book.timers) == 1
    planning_rounds = sum(isinstance(one, PlanRequest) for one in world.said)
    world.later(9_999_000)
    assert sum(isinstance(one, PlanRequest) for one in world.said) == planning_rounds
    world.later(2_000)
    assert sum(isinstance(one, PlanRequest) for one in world.said) == planning_rounds + 1, (
        "woken when the last plan asked for it"
    )


def test_a_year_on_the_largest_pool_does_not_overflow_the_ledger() -> None:
    world = Worldlet(32, 64)
    job = world.submit(2048)
    world.plan(Start(job, tuple(Part(node, 2**64 - 1) for node in range(32)), "all of it"))
    world.later(365 * 86_400_000_000)
    world.tell(ev.Exited(job, 1, 0))
    assert world.ended[job].state == State.COMPLETED
    assert world.ended[job].held_milli_us == 2048 * 1000 * 365 * 86_400_000_000


def test_launches_that_are_lost_again_and_again_become_rare() -> None:
    world = Worldlet(1, 1, planner=FirstFit())
    world.obey = False
    job = world.submit()
    for attempt in range(1, 30):
        if world.state(job) is not State.STARTING:
            world.later(world.engine.settings.backoff_max_us)
        world.tell(ev.Exited(job, attempt, 137, lost=True))
        assert (world.state(job) is State.HELD) == (attempt > 1)


@pytest.mark.parametrize(
    "fields",
    [
        {"gpu_memory": 10**24},
        {"retry_exit_codes": (2**70,)},
        {"array": ArrayMember("a", 2**70, 1)},
        {"array": ArrayMember("a", 0, 1, -1)},
    ],
)
def test_numbers_that_no_column_holds_are_refused(fields: dict[str, Any]) -> None:
    assert problems(JobSpec(command=("true",), **fields))
    world = Worldlet(1, 1)
    assert world.reply(ev.Submit(JobSpec(command=("true",), **fields), "x"), "x").kind == "usage"
