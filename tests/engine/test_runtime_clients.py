"""Clients of device runtimes in the book: without devices, beside their runtime while it runs, and ended with it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tidewright.base.units import HOUR, MINUTE
from tidewright.drive.replay import replay
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.apply_plan import unsuspendable
from tidewright.engine.check import check_all
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.engine.termination import end
from tidewright.model.cause import Code
from tidewright.model.job import Dependency, JobSpec, Level, State, problems
from tidewright.model.node import Part, RankPlace, rank_layout
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.policy.registry import make
from tidewright.testing.causes import history
from tidewright.testing.explainer import explain
from tidewright.testing.swarm_clients import ClientSwarm
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples


def runtime(pool: Worldlet, **fields) -> int:
    given = {"name": "vision", "kind": "runtime", "preempt": "requeue", "user": "ada", **fields}
    return pool.submit(1, **given)


def start(pool: Worldlet, job: int, node: int = 0) -> None:
    pool.plan(Start(job, (Part(node, 1),), "test"))


def client(pool: Worldlet, name: str = "vision", **fields) -> int:
    return pool.submit(0, **{"ranks": 1, "runtime": name, "user": "ada", **fields})


def both(pool: Worldlet, **fields) -> tuple[int, int]:
    host = runtime(pool)
    start(pool, host)
    return host, client(pool, **fields)


def reason(pool: Worldlet, job: int) -> Reason:
    found = pool.engine.book.hold_reason(job)
    assert found is not None
    return found[0]


def test_a_client_waits_for_its_runtime_and_starts_beside_it_without_a_device() -> None:
    pool = Worldlet(2, 2)
    host = runtime(pool)
    mine = client(pool)
    assert pool.state(mine) is State.HELD
    assert reason(pool, mine) is Reason.RUNTIME
    start(pool, host, node=1)
    assert pool.state(mine) is State.RUNNING
    assert pool.engine.book.allocations[mine] == (Part(1, 0),)
    assert pool.engine.book.board.free_total == [3]


def test_a_client_is_never_imaged_or_preempted_also_where_every_node_takes_images() -> None:
    pool = Worldlet(2, 2, settings=live_settings(check_every=1), full=True)
    _, mine = both(pool)
    book = pool.engine.book
    assert book.true_level(mine) == Level.NONE
    assert not book.jobs[mine].checkpoint_at
    assert unsuspendable(book, mine, book.table.row[mine]) is not None


def test_the_rank_of_a_client_sits_on_the_node_and_sees_no_device() -> None:
    assert rank_layout((Part(3, 0),), 2) == [RankPlace(0, 0, 3, ()), RankPlace(1, 1, 3, ())]


def test_a_client_follows_its_runtime_to_another_node() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    given = pool.plan(Suspend(host, "test"))
    assert [command.job for command in given if isinstance(command, co.StopRanks)] == [mine]
    assert pool.state(host) is State.QUEUED
    assert pool.state(mine) is State.HELD
    assert reason(pool, mine) is Reason.RUNTIME
    start(pool, host, node=1)
    assert pool.state(mine) is State.RUNNING
    assert pool.engine.book.allocations[mine] == (Part(1, 0),)
    assert pool.engine.book.jobs[mine].attempt == 2


@pytest.mark.parametrize("code", [0, 1])
def test_clients_end_with_their_runtime_wherever_they_are(code: int) -> None:
    pool = Worldlet(2, 2)
    host, running = both(pool)
    held = client(pool)
    pool.tell(ev.Hold(held, "h"))
    waits = client(pool, after=(Dependency("afterok", held),))
    pool.tell(ev.Exited(host, 1, code))
    assert {pool.state(job) for job in (running, held, waits)} == {State.CANCELLED}
    assert all(pool.ended[job].why == Code.RUNTIME_ENDED(host) for job in (running, held))
    check_all(pool.engine.book)


def test_a_client_that_is_being_stopped_when_its_runtime_ends_does_not_come_back() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    pool.answers[co.StopRanks] = lambda command: None
    pool.plan(Suspend(host, "test"))
    assert pool.state(mine) is State.STOPPING
    pool.tell(ev.Cancel(host, "c"))
    assert pool.state(host) is State.CANCELLED
    pool.tell(ev.Exited(mine, 1, 143))
    assert pool.state(mine) is State.CANCELLED


def test_a_client_that_fails_is_tried_again_beside_its_runtime() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool, retries=1)
    pool.tell(ev.Exited(mine, 1, 3))
    assert reason(pool, mine) is Reason.BACKOFF
    pool.later(MINUTE)
    assert pool.state(mine) is State.RUNNING
    pool.tell(ev.Exited(mine, 2, 3))
    assert pool.state(mine) is State.FAILED
    assert pool.state(host) is State.RUNNING
    assert pool.engine.book.jobs[host].runtime_clients == {}


def test_a_client_that_is_held_ends_and_starts_again_when_it_is_released() -> None:
    pool = Worldlet(2, 2)
    _, mine = both(pool)
    assert not pool.reply(ev.Hold(mine, "h"), "h").error
    assert pool.state(mine) is State.HELD
    assert reason(pool, mine) is Reason.USER_HOLD
    assert not pool.reply(ev.Release(mine, "r"), "r").error
    assert pool.state(mine) is State.RUNNING


def test_a_client_that_is_held_while_it_starts_is_held_once_it_runs() -> None:
    pool = Worldlet(2, 2)
    pool.answers[co.Launch] = lambda command: (
        ev.Started(command.job, command.attempt) if command.allocation[0].mask else None
    )
    _, mine = both(pool)
    assert pool.state(mine) is State.STARTING
    assert not pool.reply(ev.Hold(mine, "h"), "h").error
    pool.tell(ev.Started(mine, 1))
    assert pool.state(mine) is State.HELD


def test_a_client_is_not_moved_scaled_or_imaged_by_itself() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    follows = Code.FOLLOWS_RUNTIME(mine, host)
    assert pool.reply(ev.Move(mine, ("n1",), "m"), "m").error == follows
    assert pool.reply(ev.Scale(mine, 1, "s"), "s").error == follows
    assert pool.reply(ev.TakeImage(mine, "i"), "i").error is not None
    assert pool.state(mine) is State.RUNNING


def test_a_runtime_has_to_be_there_and_to_be_the_users_own() -> None:
    pool = Worldlet(2, 2)
    spec = JobSpec(command=("true",), devices=0, runtime="vision", user="ada")
    assert pool.reply(ev.Submit(spec, "a"), "a").error == Code.NO_SUCH_RUNTIME("vision")
    theirs = runtime(pool, user="bob")
    assert pool.reply(ev.Submit(spec, "b"), "b").error == Code.NOT_YOUR_RUNTIME("vision", theirs, "bob")
    mine, by_id = runtime(pool), JobSpec(command=("true",), devices=0, runtime=str(theirs + 1), user="ada")
    assert pool.reply(ev.Submit(by_id, "c"), "c").job == mine + 1
    for number in (mine, theirs):
        pool.tell(ev.Cancel(number, f"x{number}"))
    assert pool.reply(ev.Submit(spec, "d"), "d").kind == "notfound"


def test_a_dead_node_takes_both_and_both_come_back() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    pool.tell(ev.NodeDown("n0", "lost"))
    assert pool.state(host) is State.QUEUED
    assert pool.state(mine) is State.HELD
    start(pool, host, node=1)
    assert pool.state(mine) is State.RUNNING
    assert pool.engine.book.jobs[mine].failures == 0


def test_a_runtime_on_a_drained_node_still_takes_clients() -> None:
    pool = Worldlet(2, 2)
    host = runtime(pool)
    start(pool, host)
    pool.tell(ev.NodeDrain("n0", True, "service"))
    assert pool.state(client(pool)) is State.RUNNING


def test_a_client_that_could_not_be_launched_is_not_put_elsewhere() -> None:
    pool = Worldlet(2, 2)
    pool.answers[co.Launch] = lambda command: (
        ev.Started(command.job, command.attempt)
        if command.allocation[0].mask
        else ev.StartFailed(command.job, command.attempt, "no such file", fault="user", node="n0")
    )
    _, mine = both(pool)
    assert pool.state(mine) is State.FAILED


def test_a_book_with_clients_survives_a_snapshot() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    again = Engine.restore(pool.engine.snapshot())
    check_all(again.book)
    assert again.book.jobs[mine].runtime_job == host
    assert again.book.jobs[host].runtime_clients == {mine: True}
    assert again.book.runtimes == {host: True}
    commands = again.step(pool.now, [ev.Exited(host, 1, 0)])
    assert [command.job for command in commands if isinstance(command, co.StopRanks)] == [mine]


def test_long_chains_of_runtimes_and_clients_end_without_end_of_the_stack() -> None:
    pool = Worldlet(2, 2, settings=EngineSettings())
    first = previous = runtime(pool, name="r0")
    for number in range(1, 400):
        waiting = client(pool, f"r{number - 1}")
        previous = runtime(pool, name=f"r{number}", after=(Dependency("afterok", waiting),))
    pool.tell(ev.Cancel(first, "c"))
    assert not pool.engine.book.jobs
    assert pool.state(previous) is State.CANCELLED


def test_a_client_that_has_finished_when_its_runtime_goes_away_is_complete() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    pool.answers[co.StopRanks] = lambda command: ev.Exited(command.job, command.attempt, 0)
    pool.plan(Suspend(host, "test"))
    assert pool.state(mine) is State.COMPLETED


def test_ranks_of_a_client_are_limited_by_the_devices_of_its_runtime() -> None:
    pool = Worldlet(2, 2, settings=live_settings(check_every=1))
    start(pool, runtime(pool))
    spec = JobSpec(command=("true",), devices=0, runtime="vision", user="ada", ranks=65_536)
    refused = pool.reply(ev.Submit(spec, "a"), "a")
    assert refused.error is not None and refused.error.code is Code.TOO_CROWDED
    assert pool.reply(ev.Submit(replace(spec, ranks=3), "b"), "b").warning is None


@pytest.mark.parametrize("first", [0, 1])
def test_a_runtime_and_its_client_that_end_in_one_step_leave_no_orders(first: int) -> None:
    """Both were killed: whoever carries out an order for a job that is gone would have to look it up."""
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    ends = [ev.Exited(host, 1, 137), ev.Exited(mine, 1, 1)]
    given = pool.tell(*(ends if first else reversed(ends)))
    assert not [command for command in given if isinstance(command, co.StopRanks)]
    assert not pool.engine.book.jobs


def test_a_job_that_ends_in_the_step_in_which_it_is_cancelled_leaves_no_orders() -> None:
    pool = Worldlet(2, 2)
    job = pool.submit(1)
    start(pool, job)
    given = pool.tell(ev.Cancel(job, "c"), ev.Exited(job, 1, 0))
    assert not [command for command in given if isinstance(command, co.StopRanks)]
    assert pool.state(job) is State.CANCELLED


def test_the_end_of_one_job_does_not_look_through_the_commands_of_all() -> None:
    """Ten thousand may end in one step."""

    class Counted(list):  # type: ignore[type-arg]
        passes = 0

        def __iter__(self):  # type: ignore[no-untyped-def]
            Counted.passes += 1
            return super().__iter__()

    pool = Worldlet(2, 2)
    jobs = [pool.submit(1) for _ in range(5)]
    pool.engine.book.out = Counted()
    for job in jobs:
        end(pool.engine.book, job, int(State.CANCELLED), 1, Code.CANCELLED())
    assert len(pool.engine.book.out) == 5 and not Counted.passes


def test_a_client_that_is_being_stopped_for_its_runtime_can_be_held() -> None:
    pool = Worldlet(2, 2)
    host, mine = both(pool)
    pool.answers[co.StopRanks] = lambda command: None
    pool.plan(Suspend(host, "test"))
    why = explain(pool.engine, make("sla"), mine).why
    assert why == Code.STOPS_AND_RETURNS(Code.RUNTIME_STOPPED(host, "suspending"))
    assert not pool.reply(ev.Hold(mine, "h"), "h").error
    pool.tell(ev.Exited(mine, 1, 143))
    start(pool, host)
    assert reason(pool, mine) is Reason.USER_HOLD
    pool.reply(ev.Release(mine, "r"), "r")
    assert pool.state(mine) is State.RUNNING
    pool.tell(ev.Cancel(mine, "c"))
    assert explain(pool.engine, make("sla"), mine).why == Code.STOPS_FOR_GOOD(Code.CANCELLED())
    assert pool.reply(ev.Hold(mine, "h2"), "h2").error == Code.BEING_STOPPED(mine)


def test_why_says_what_a_client_waits_for() -> None:
    pool = Worldlet(2, 2)
    host = runtime(pool)
    mine = client(pool)
    found = explain(pool.engine, make("sla"), mine)
    assert found.reason is Reason.RUNTIME
    assert found.why == Code.WAITS_FOR_RUNTIME("vision", host)
    assert Code.SUBMITTED_TO_RUNTIME("be", host) in history(pool.engine.book, mine)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("devices", 1), ("min_devices", 1), ("device_types", ("h100",)), ("gpu_memory", 1), ("kind", "runtime"),
        ("preempt", "full"), ("runtime", "a b"),
    ],
)  # fmt: skip
def test_what_a_client_cannot_ask_for(field: str, value: object) -> None:
    fine = {"command": ("true",), "devices": 0, "runtime": "vision"}
    assert not problems(JobSpec(**fine))
    assert problems(JobSpec(**{**fine, field: value}))
    assert problems(JobSpec(command=("true",), devices=0))


@pytest.mark.parametrize("policy", ["sla", "fifo", "fifo-backfill", "srtf", "las", "static"])
def test_no_policy_touches_a_client(policy: str) -> None:
    pool = Worldlet(2, 2, planner=make(policy), settings=live_settings(check_every=1), full=True)
    host = runtime(pool)
    mine = [client(pool, tier=tier) for tier in ("basic", "premium")]
    pool.tell(ev.Tick())
    assert pool.state(host) is State.RUNNING
    jobs = [pool.submit(devices, tier=tier) for devices in (1, 2, 1, 2) for tier in ("basic", "premium")]
    elastic = pool.submit(2, min_devices=1)
    for hours in range(1, 6):
        pool.later(hours * HOUR)
        running = [job for job in (*jobs, elastic) if job in pool.engine.book.jobs and pool.state(job) is State.RUNNING]
        pool.tell(*(ev.Exited(job, pool.engine.book.jobs[job].attempt, 0) for job in running[:1]))
        if pool.state(host) is State.RUNNING:
            assert [pool.state(job) for job in mine] == [State.RUNNING] * 2
    refused = [why for job in mine for why in history(pool, job) if why.code is Code.FOLLOWS_RUNTIME]
    assert not refused, "a plan wanted to move a client"
    assert len(pool.ended) >= 4


def test_in_a_hostile_world_clients_are_beside_their_runtimes_or_wait() -> None:
    """That they are is among the invariants checked after every step (engine.check)."""
    ran = 0
    for seed in range(40, 40 + examples(64)):
        swarm = ClientSwarm(seed)
        for _ in range(15):
            swarm.run(10)
            ran += swarm.running_clients()
        swarm.settle()
        assert set(swarm.ended) == set(swarm.accepted), "every accepted job ends exactly once"
        assert swarm.engine.book.phys.held_milli() == 0
        again = replay(swarm.journal.records, swarm.engine.settings)
        assert again.snapshot() == swarm.engine.snapshot()
    assert ran > examples(64), "hardly a client ran: the test shows nothing"
