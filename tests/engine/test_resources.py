"""Host CPUs and memory in the book: admission, landing, frozen jobs, and a rank that passed its memory."""

from __future__ import annotations

from typing import Any

import pytest

from tidewright.base.units import SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.check import check_all
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code, reported
from tidewright.model.failure import RankFailure
from tidewright.model.job import JobSpec, Level, State, problems
from tidewright.model.node import NodeSpec, Part, PartResources
from tidewright.plan.moves import Migrate, Resume, Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.policy.registry import make
from tidewright.testing.causes import history
from tidewright.testing.worldlet import Worldlet

GIB = 2**30


def world(nodes: int = 1, devices: int = 4, planner: Any = None, **more: Any) -> Worldlet:
    fields = {"device_memory": 40 * GIB, "cpus": 8, "memory": 64 * GIB, **more}
    return Worldlet(nodes, devices, planner, live_settings(check_every=1), **fields)


def took(cpus_milli: int = 0, memory: int = 0) -> PartResources:
    return PartResources(cpus_milli, memory)


# -- admission ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"cpus_milli": 8001}, Code.CPUS_TOO_FEW(1, 8001, 0, 8000)),
        ({"memory": 64 * GIB + 1}, Code.HOST_MEMORY_TOO_SMALL(1, 64 * GIB + 1, 0, 64 * GIB)),
        ({"cpus_milli": 4000, "devices": 4, "ranks": 4}, Code.CPUS_TOO_FEW(4, 4000, 2, 2000)),
        ({"cpus_milli": 8000, "memory": 64 * GIB}, None),
    ],
)
def test_what_no_node_could_ever_hold_is_refused_with_the_nearest_that_fits(asked: dict[str, Any], error: Any) -> None:
    pool = world()
    assert pool.reply(ev.Submit(JobSpec(command=("true",), **asked), "s"), "s").error == error


@pytest.mark.parametrize(
    "fields",
    [
        {"cpus_milli": -1}, {"cpus_milli": 2**40}, {"memory": -1}, {"memory": 2**50}, {"memory": 2**20}, {"gpu_milli": -1},
        {"gpu_milli": 1001}, {"gpu_milli": 500, "devices": 2, "ranks": 2}, {"cpus_milli": 500, "runtime": "r", "devices": 0},
        {"memory": 2**30, "runtime": "r", "devices": 0}, {"gpu_milli": 1, "runtime": "r", "devices": 0},
    ],
)  # fmt: skip
def test_amounts_that_make_no_sense_are_problems_of_the_spec(fields: dict[str, Any]) -> None:
    assert problems(JobSpec(command=("true",), **fields))


def test_a_share_of_compute_says_where_it_is_enforced() -> None:
    pool = world(kind="h100")
    assert (
        pool.reply(ev.Submit(JobSpec(command=("x",), gpu_milli=300), "s"), "s").warning == Code.COMPUTE_NOT_ENFORCED()
    )


# -- landing --------------------------------------------------------------------------------------------------------------


def test_a_plan_lands_with_what_was_asked_for_and_not_without() -> None:
    pool = world()
    job = pool.submit(2, cpus_milli=1500, memory=GIB)
    pool.plan(Start(job, (Part(0, 3),), "bare"))
    assert pool.state(job) is State.QUEUED and Code.WRONG_RESOURCES() in history(pool, job)
    pool.plan(Start(job, (Part(0, 3, 1000, took(3000, 2 * GIB)),), "whole"))
    assert pool.state(job) is State.RUNNING
    assert pool.engine.book.board.host == {0: (3000, 2 * GIB)} == pool.engine.book.phys.host
    more = pool.submit(1, cpus_milli=6000)
    pool.plan(Start(more, (Part(0, 4, 1000, took(6000)),), "too much"))
    assert pool.state(more) is State.QUEUED and Code.DEVICES_TAKEN() in history(pool, more)
    pool.tell(ev.Exited(job, 1, 0))
    assert not pool.engine.book.board.host
    pool.plan(Start(more, (Part(0, 4, 1000, took(6000)),), "now"))
    assert pool.state(more) is State.RUNNING


def test_shares_take_compute_and_memory_of_a_device_apart() -> None:
    pool = world(devices=1, planner=make("fifo"), kind="h100")
    small = pool.submit(1, gpu_milli=100, gpu_memory=30 * GIB)
    fast = pool.submit(1, gpu_milli=800, gpu_memory=5 * GIB)
    large = pool.submit(1, gpu_milli=50, gpu_memory=10 * GIB)
    pool.later(SECOND)
    assert [pool.state(job) for job in (small, fast, large)] == [State.RUNNING, State.RUNNING, State.QUEUED]
    assert pool.engine.book.blocked[large].reason is Reason.NO_CAPACITY
    assert pool.engine.book.blocked[large].why == Code.DEVICE_MEMORY_SHORT(50, 10 * GIB, "h100")
    pool.tell(ev.Exited(fast, 1, 0))
    pool.later(SECOND)
    assert pool.state(large) is State.RUNNING


@pytest.mark.parametrize("policy", ["sla", "fifo", "fifo-backfill", "srtf", "las", "static"])
def test_every_policy_keeps_within_the_hosts_and_serves_all(policy: str) -> None:
    pool = world(2, planner=make(policy), full=True)
    jobs = [
        pool.submit(1 + at % 2, cpus_milli=(0, 2500, 4000)[at % 3], memory=(0, 20 * GIB)[at % 2], tier=tier)
        for at, tier in enumerate(("basic", "premium", "standard") * 6)
    ]
    for _ in range(60):
        pool.later(600 * SECOND)
        book = pool.engine.book
        for cpus_milli, memory in book.board.host.values():
            assert cpus_milli <= 8000 and memory <= 64 * GIB
        running = [job for job in jobs if job in book.jobs and pool.state(job) is State.RUNNING]
        pool.tell(*(ev.Exited(job, book.jobs[job].attempt, 0) for job in running[:2]))
    assert len(pool.ended) == len(jobs) and not pool.engine.book.board.host


def test_a_job_that_needs_cpus_preempts_for_them() -> None:
    pool = world(planner=make("sla"), full=True)
    basic = [pool.submit(1, cpus_milli=3000, tier="basic") for _ in range(2)]
    pool.later(SECOND)
    assert all(pool.state(job) is State.RUNNING for job in basic)
    pool.later(3600 * SECOND)
    wanted = pool.submit(1, cpus_milli=5000, tier="premium")
    for _ in range(10):
        pool.later(600 * SECOND)
    assert pool.state(wanted) is State.RUNNING, "two devices are free, and three CPUs are not enough"
    assert sorted(pool.state(job).name for job in basic) == ["RUNNING", "SUSPENDED"]


# -- suspended jobs -------------------------------------------------------------------------------------------------------


def frozen(pool: Worldlet, cpus_milli: int = 6000, memory: int = 40 * GIB) -> int:
    job = pool.submit(1, cpus_milli=cpus_milli, memory=memory, preempt="freeze")
    pool.plan(Start(job, (Part(0, 1, 1000, took(cpus_milli, memory)),), "test"))
    assert pool.engine.book.table.level[pool.engine.book.table.row[job]] == Level.FREEZE
    return job


def test_a_frozen_job_keeps_its_memory_in_use_and_gives_up_its_cpus() -> None:
    pool = world(kind="cpu")
    book, job = pool.engine.book, frozen(pool)
    pool.plan(Suspend(job, "test"))
    assert pool.state(job) is State.SUSPENDED
    book = pool.engine.book
    assert book.board.host == book.phys.host == {0: (0, 40 * GIB)}
    other = pool.submit(1, memory=30 * GIB)
    pool.plan(Start(other, (Part(0, 1, 1000, took(0, 30 * GIB)),), "no room"))
    assert pool.state(other) is State.QUEUED
    again = Engine.restore(pool.engine.snapshot())
    assert again.book.board.host == book.board.host and again.snapshot() == pool.engine.snapshot()
    pool.plan(Resume(job, (Part(0, 2, 1000, took(6000)),), "its memory is there"))
    assert pool.state(job) is State.RUNNING
    assert pool.engine.book.board.host == pool.engine.book.phys.host == {0: (6000, 40 * GIB)}
    assert pool.engine.book.allocations[job] == (Part(0, 2, 1000, took(6000, 40 * GIB)),)
    pool.tell(ev.Exited(job, 1, 0))
    assert not pool.engine.book.board.host and not pool.engine.book.phys.host


@pytest.mark.parametrize("end", ["cancel", "lost", "thaw fails"])
def test_the_memory_of_a_frozen_job_is_free_once_its_processes_are_gone(end: str) -> None:
    pool = world(kind="cpu")
    job = frozen(pool)
    pool.plan(Suspend(job, "test"))
    if end == "cancel":
        pool.tell(ev.Cancel(job, "c"))
    elif end == "lost":
        pool.tell(ev.NodeDown("n0", "power"))
    else:
        pool.answers[co.ResumeRanks] = lambda command: ev.ResumeFailed(command.job, command.attempt, "no")
        pool.plan(Resume(job, (Part(0, 1, 1000, took(6000)),), "test"))
        assert pool.engine.book.board.host == pool.engine.book.phys.host == {0: (0, 40 * GIB)}, (
            "it is frozen there still"
        )
        pool.tell(ev.Exited(job, 1, 1))
    check_all(pool.engine.book)
    assert not pool.engine.book.board.host and not pool.engine.book.phys.host


def test_a_suspension_that_fails_leaves_all_of_it_where_it_was() -> None:
    pool = world(kind="cpu")
    job = frozen(pool)
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "a hung disk")
    pool.plan(Suspend(job, "test"))
    assert pool.state(job) is State.RUNNING
    assert pool.engine.book.board.host == pool.engine.book.phys.host == {0: (6000, 40 * GIB)}


def test_a_job_in_an_image_holds_nothing_of_any_host() -> None:
    pool = world(2, full=True)
    job = pool.submit(1, cpus_milli=6000, memory=40 * GIB)
    pool.plan(Start(job, (Part(0, 1, 1000, took(6000, 40 * GIB)),), "test"))
    pool.plan(Migrate(job, (Part(1, 1, 1000, took(6000, 40 * GIB)),), "test"))
    assert pool.state(job) is State.RUNNING and pool.engine.book.phys.host == {1: (6000, 40 * GIB)}
    pool.plan(Suspend(job, "test"))
    assert pool.state(job) is State.SUSPENDED and not pool.engine.book.board.host and not pool.engine.book.phys.host


def test_a_node_that_comes_back_with_less_keeps_its_jobs_and_takes_no_more() -> None:
    pool = world()
    job = pool.submit(1, cpus_milli=6000)
    pool.plan(Start(job, (Part(0, 1, 1000, took(6000)),), "test"))
    pool.tell(
        ev.NodeUp(NodeSpec(name="n0", kind="h100", devices=4, device_memory=40 * GIB, cpus=2, memory=64 * GIB), "1")
    )
    assert pool.state(job) is State.RUNNING and pool.engine.book.board.host == {0: (6000, 0)}
    other = pool.submit(1, cpus_milli=1000)
    pool.plan(Start(other, (Part(0, 2, 1000, took(1000)),), "test"))
    assert pool.state(other) is State.QUEUED
    pool.tell(ev.Exited(job, 1, 0))
    pool.plan(Start(other, (Part(0, 2, 1000, took(1000)),), "test"))
    assert pool.state(other) is State.RUNNING


# -- out of memory --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("retries", [0, 1])
def test_a_rank_that_passed_its_memory_is_the_jobs_own_failure_even_with_an_image(retries: int) -> None:
    pool = world(full=True)
    job = pool.submit(1, memory=GIB, retries=retries, checkpoint_us=-1)
    pool.plan(Start(job, (Part(0, 1, 1000, took(0, GIB)),), "test"))
    pool.tell(ev.TakeImage(job, "i"))
    pool.tell(ev.Checkpointed(job, 1, 1, SECOND), ev.ImageCopied(job, 1, "*"))
    why = Code.OUT_OF_MEMORY(0, GIB)
    failure = RankFailure(0, 137, "killed by signal 9 (SIGKILL), out of memory", memory_limit=GIB)
    pool.tell(ev.Exited(job, 1, 137, why=why, failure=failure))
    if retries:
        assert pool.state(job) is State.HELD and pool.engine.book.jobs[job].failures == 1
        assert not pool.engine.book.jobs[job].restore_from, "its image would only pass the limit again"
    else:
        assert pool.ended[job].state == State.FAILED and pool.ended[job].why == why
    assert reported("") not in history(pool, job)
