"""Devices that fail, nodes that come back with other devices, nodes that refuse launches: no job pays for any of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.model.cause import Code, reported
from tidewright.model.job import State
from tidewright.model.node import DeviceFault, NodeSpec, Part
from tidewright.plan.moves import Start, Suspend
from tidewright.policy.registry import make
from tidewright.testing.causes import history, history_codes, within
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet

BROKEN = DeviceFault(0, "XID 79: the GPU has fallen off the bus; restart the host", broken=True)
WORN = DeviceFault(0, "XID 63: a memory row is to be remapped")


def pool(nodes: int = 2, devices: int = 2, **node: object) -> Worldlet:
    world = Worldlet(nodes, devices, settings=live_settings(check_every=1), **{"kind": "h100", "full": True, **node})
    world.planner = make("las")
    return world


def where(world: Worldlet, job: int) -> dict[str, int]:
    book = world.engine.book
    return {book.board.layout.nodes[part.node].name: part.mask for part in book.allocations.get(job, ())}


def refuse(world: Worldlet, *nodes: str, fault: str = "world", error: str = "no space left on device") -> None:
    """Launches that touch one of these nodes fail there."""
    names = [spec.name for spec in world.nodes]

    def answer(command: co.Launch) -> ev.Event:
        bad = [names[part.node] for part in command.allocation if names[part.node] in nodes]
        if bad:
            return ev.StartFailed(command.job, command.attempt, error, fault, node=bad[0])
        return ev.Started(command.job, command.attempt)

    world.answers[co.Launch] = answer


# -- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [BROKEN, WORN])
def test_a_job_on_a_faulty_device_is_moved_with_its_work(fault: DeviceFault) -> None:
    world = pool()
    job = world.submit()
    world.later(10 * SECOND)
    assert where(world, job) == {"n0": 1}
    world.tell(ev.NodeHealth("n0", (fault,)))
    assert world.state(job) is State.RUNNING and where(world, job) != {"n0": 1}
    assert world.engine.book.table.attempt[0] == 1, "moved, not started again"
    assert Code.DEVICE_OUT(0, "n0", reported(fault.why)) in history(world, job)
    assert world.engine.book.board.free[0] & 1 == 0


def test_a_job_that_cannot_be_suspended_is_started_again_only_where_nothing_can_go_on() -> None:
    world = pool()
    job = world.submit(preempt="none")
    world.tell(ev.NodeHealth("n0", (WORN,)))
    assert where(world, job) == {"n0": 1} and Code.RUNS_ON_THERE in history_codes(world, job)
    world.tell(ev.NodeHealth("n0", (BROKEN,)))
    assert world.state(job) is State.RUNNING and where(world, job) != {"n0": 1}
    assert world.engine.book.table.attempt[0] == 2


def test_a_suspension_that_fails_on_a_broken_device_ends_in_a_new_attempt() -> None:
    world = pool()
    job = world.submit()
    world.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "the GPU is lost")
    world.tell(ev.NodeHealth("n0", (BROKEN,)))
    assert world.state(job) is State.RUNNING and where(world, job) != {"n0": 1}
    assert world.engine.book.table.attempt[0] == 2


def test_a_suspension_that_fails_on_a_worn_device_is_tried_again() -> None:
    world = pool()
    job = world.submit()
    answer = world.answers[co.SuspendRanks]
    world.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "not now")
    world.tell(ev.NodeHealth("n0", (WORN,)))
    assert where(world, job) == {"n0": 1}
    world.answers[co.SuspendRanks] = answer
    world.later(live_settings().suspend_cooldown_us + SECOND)
    assert world.state(job) is State.RUNNING and where(world, job) != {"n0": 1}
    assert world.engine.book.table.attempt[0] == 1


def test_a_device_that_fails_while_a_job_starts_on_it_loses_it_once_it_runs() -> None:
    world = pool()
    world.answers[co.Launch] = None
    job = world.submit()
    world.tell(ev.NodeHealth("n0", (BROKEN,)))
    assert world.state(job) is State.STARTING
    world.answers[co.Launch] = lambda command: ev.Started(command.job, command.attempt)
    world.tell(ev.Started(job, 1))
    assert world.state(job) is State.RUNNING and where(world, job) != {"n0": 1}


def test_nothing_is_placed_on_a_faulty_device_until_it_is_sound() -> None:
    world = pool(1)
    world.tell(ev.NodeHealth("n0", (BROKEN,)))
    first, second = world.submit(), world.submit()
    assert where(world, first) == {"n0": 2} and world.state(second) is State.QUEUED
    why = explain(world.engine, world.planner, second)
    assert Code.DEVICE_BECAUSE("n0", 0, reported(BROKEN.why)) in within(why.why)
    world.tell(ev.NodeHealth("n0"))
    assert where(world, second) == {"n0": 1}


def test_a_share_of_a_faulty_device_is_given_to_nobody() -> None:
    world = pool(1, device_memory=80 * 2**30)
    first = world.submit(gpu_memory=20 * 2**30)
    world.tell(ev.NodeHealth("n0", (replace(WORN, device=0),)))
    second = world.submit(gpu_memory=20 * 2**30)
    assert where(world, first) == {"n0": 2} == where(world, second)


def test_devices_reserved_on_a_faulty_device_are_given_elsewhere() -> None:
    world = pool(2, 1)
    holder = world.submit(preempt="cooperative")
    world.submit()
    world.answers[co.SuspendRanks] = None
    waiting = world.submit()
    world.plan(Suspend(holder, "room"), Start(waiting, (Part(0, 1),), "room"))
    assert waiting in world.engine.book.reservations
    world.tell(ev.NodeHealth("n0", (BROKEN,)))
    assert waiting not in world.engine.book.reservations and Code.DEVICES_OUT("n0") in history(world, waiting)


def test_faults_survive_a_snapshot() -> None:
    world = pool()
    world.submit()
    world.tell(ev.NodeHealth("n1", (BROKEN,)))
    again = Engine.restore(world.engine.snapshot())
    assert again.book.board.closed == world.engine.book.board.closed == (0, 1)
    assert again.snapshot() == world.engine.snapshot()


# -- nodes that come back changed ---------------------------------------------------------------------------------------


def test_a_node_that_comes_back_with_fewer_devices_is_believed() -> None:
    world = pool(1, 4, kind="cpu")
    jobs = [world.submit() for _ in range(3)]
    back = replace(world.nodes[0], devices=2)
    world.tell(ev.NodeUp(back, "1"))
    book = world.engine.book
    assert book.board.layout.nodes[0] == back
    states = [world.state(job) for job in jobs]
    assert states == [State.RUNNING, State.RUNNING, State.SUSPENDED], (
        "the one on a slot that is gone waits with its work"
    )
    assert [where(world, job) for job in jobs[:2]] == [{"n0": 1}, {"n0": 2}]
    world.tell(ev.Exited(jobs[0], 1, 0))
    assert where(world, jobs[2]) == {"n0": 1}


def test_a_job_that_cannot_leave_a_slot_that_is_gone_runs_to_its_end_and_nothing_follows_it() -> None:
    world = pool(1, 4, kind="cpu")
    world.submit(), world.submit()
    stays = world.submit(preempt="none")
    back = replace(world.nodes[0], devices=2)
    world.tell(ev.NodeUp(back, "1"))
    assert where(world, stays) == {"n0": 4}
    late = world.submit()
    assert world.state(late) is State.QUEUED
    world.tell(ev.Exited(stays, 1, 0))
    assert world.engine.book.board.layout.nodes[0] == back and world.state(late) is State.QUEUED


def test_a_node_that_comes_back_with_more_devices_is_believed_while_jobs_run_on_it() -> None:
    world = pool(1, 2)
    first = world.submit(2)
    late = world.submit()
    assert world.state(late) is State.QUEUED
    world.tell(ev.NodeUp(replace(world.nodes[0], devices=3), "1"))
    assert where(world, first) == {"n0": 3} and where(world, late) == {"n0": 4}


def test_devices_that_are_numbered_anew_are_not_given_out_before_their_holders_have_moved() -> None:
    world = pool(2, 4, uuids=("a", "b", "c", "d"))
    jobs = [world.submit() for _ in range(3)]
    assert [where(world, job) for job in jobs] == [{"n0": 1}, {"n0": 2}, {"n0": 4}]
    world.answers[co.SuspendRanks] = None
    back = replace(world.nodes[0], devices=3, uuids=("a", "c", "d"))
    world.tell(ev.NodeUp(back, "1"))
    book = world.engine.book
    assert [world.state(job) for job in jobs] == [State.RUNNING, State.SUSPENDING, State.SUSPENDING]
    assert not book.board.free[0], "c is still held under its old number"
    for job in jobs[1:]:
        world.tell(ev.Suspended(job, 1, 1, book.jobs[job].saving.serial))
    assert book.board.layout.nodes[0] == back and where(world, jobs[0]) == {"n0": 1}
    assert all(world.state(job) is State.RUNNING for job in jobs)


def test_shares_of_a_device_that_is_gone_are_counted_by_its_old_memory_until_they_have_moved() -> None:
    gib = 2**30
    world = pool(1, 2, kind="cpu", device_memory=40 * gib)
    whole = world.submit()
    share = world.submit(gpu_memory=34 * gib, gpu_milli=100)
    assert (where(world, whole), where(world, share)) == ({"n0": 1}, {"n0": 2})
    world.answers[co.SuspendRanks] = None
    back = replace(world.nodes[0], devices=1, device_memory=24 * gib)
    world.tell(ev.NodeUp(back, "1"))
    book = world.engine.book
    late = world.submit(gpu_memory=30 * gib)
    assert [world.state(job) for job in (whole, share, late)] == [State.RUNNING, State.SUSPENDING, State.QUEUED]
    world.tell(ev.Exited(whole, 1, 0))
    assert world.state(late) is State.QUEUED, "the device that is left has 24 GiB"
    world.tell(ev.Suspended(share, 1, 1, book.jobs[share].saving.serial))
    assert book.board.layout.nodes[0] == back and not book.phys.partial
    assert world.state(share) is State.SUSPENDED and world.state(late) is State.QUEUED


def test_a_node_whose_devices_are_of_another_kind_now_is_believed_when_they_are_free() -> None:
    world = pool(1, 2)
    job = world.submit()
    back = NodeSpec(name="n0", kind="a100", devices=2, full=True)
    world.tell(ev.NodeUp(back, "1"))
    assert world.engine.book.board.layout.nodes[0] == back
    assert job in world.engine.book.specs


# -- nodes that refuse launches -----------------------------------------------------------------------------------------


def test_a_refused_launch_is_tried_elsewhere_at_once_and_is_never_the_jobs_failure() -> None:
    world = pool()
    refuse(world, "n0")
    job = world.submit()
    assert world.state(job) is State.RUNNING and list(where(world, job)) == ["n1"]
    assert Code.LAUNCH_FAILED_ON("n0", reported("no space left on device")) in history(world, job)


def test_a_pool_that_refuses_everything_keeps_the_job_and_says_why() -> None:
    world = pool(1)
    refuse(world, "n0")
    job = world.submit()
    for _ in range(40):
        world.later(6 * MINUTE)
    assert world.state(job) in (State.QUEUED, State.HELD)
    assert reported("no space left on device") in history(world, job)
    refuse(world)
    world.later(10 * MINUTE)
    assert world.state(job) is State.RUNNING


def test_a_node_that_refuses_launches_in_a_row_is_cordoned_for_a_while() -> None:
    world = pool(2, 4)
    refuse(world, "n0")
    jobs = [world.submit(4) for _ in range(3)]
    assert list(where(world, jobs[0])) == ["n1"]
    book = world.engine.book
    assert book.outages.cordoned[0].why == Code.CORDONED(3, MINUTE, reported("no space left on device"))
    why = explain(world.engine, world.planner, jobs[2])
    assert Code.NODE_BECAUSE("n0", book.outages.cordoned[0].why) in within(why.why), why
    assert sum(isinstance(one, co.Launch) and one.allocation[0].node == 0 for one in world.said) == 3
    refuse(world)
    world.later(live_settings().cordon_us + SECOND)
    assert not book.outages.cordoned
    assert any(list(where(world, job)) == ["n0"] for job in jobs[1:]) and not book.outages.refusals


def test_the_first_refusal_after_a_cordon_brings_a_longer_one() -> None:
    world = pool(1, 4)
    refuse(world, "n0")
    for _ in range(2):
        world.submit()
    settings, book = live_settings(), world.engine.book
    pauses = []
    for _ in range(4):
        while not book.outages.cordoned:
            world.later(SECOND)
        pauses.append(book.outages.cordoned[0].until - world.now)
        world.later(pauses[-1])
    assert pauses == [settings.cordon_us << step for step in range(4)]


@pytest.mark.parametrize("lift", [ev.NodeDrain("n0", False, op_id="u"), "up"])
def test_an_operator_or_a_new_agent_ends_a_cordon(lift: object) -> None:
    world = pool(1, 4)
    refuse(world, "n0")
    world.submit(), world.submit()
    while not world.engine.book.outages.cordoned:
        world.later(SECOND)
    world.tell(ev.NodeUp(world.nodes[0], "1") if lift == "up" else lift)  # type: ignore[arg-type]
    assert not world.engine.book.outages.cordoned and world.engine.book.board.up & 1


def test_one_job_alone_cordons_no_node() -> None:
    world = pool(2, 4)
    refuse(world, "n0", "n1")
    world.submit()
    for _ in range(20):
        world.later(6 * MINUTE)
    assert not world.engine.book.outages.cordoned


def test_a_missing_directory_on_one_node_alone_is_tried_on_another() -> None:
    world = pool()
    refuse(world, "n0", fault="user", error="cannot enter /data")
    job = world.submit()
    assert list(where(world, job)) == ["n1"]
    assert not world.engine.book.outages.refusals, "it is not held against the node"


@pytest.mark.parametrize("nodes", [1, 3])
def test_what_no_node_can_run_fails_after_two(nodes: int) -> None:
    world = pool(nodes)
    refuse(world, "n0", "n1", "n2", fault="user", error="no such program")
    job = world.submit()
    assert world.state(job) is State.FAILED and world.ended[job].why == reported("no such program")
    assert world.ended[job].attempts == min(nodes, 2)


def test_failures_of_before_nodes_were_named_are_judged_as_they_were() -> None:
    world = Worldlet(settings=EngineSettings(check_every=1), planner=make("fifo"))
    world.answers[co.Launch] = lambda command: ev.StartFailed(command.job, command.attempt, "no luck")
    job = world.submit()
    for _ in range(20):
        world.later(6 * MINUTE)
    assert world.state(job) is State.FAILED


def test_refusals_survive_a_snapshot() -> None:
    world = pool(2, 4)
    refuse(world, "n0")
    for _ in range(3):
        world.submit(4)
    again = Engine.restore(world.engine.snapshot())
    assert again.book.outages == world.engine.book.outages and again.book.board.up == world.engine.book.board.up == 2
