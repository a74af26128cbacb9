"""Moves and scalings that users ask for: done now, or refused with the reason."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.records import each
from tidewright.base.units import SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Cause, Code, reported
from tidewright.model.job import Level, State
from tidewright.model.node import NodeSpec, Part, device_count
from tidewright.plan.moves import Resize, Start, Suspend
from tidewright.plan.render import remedy
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples

GIB = 2**30


def world(nodes: int = 3, full: bool = True, **node) -> Worldlet:
    node = {"kind": "cpu", "full": full, "device_memory": 16 * GIB, **node}
    return Worldlet(nodes, 4, settings=live_settings(check_every=1), **node)


def running(world: Worldlet, *parts: Part, **fields) -> int:
    job = world.submit(sum(part.mask.bit_count() for part in parts), **fields)
    milli = world.engine.book.board.layout.share_milli(0, fields.get("gpu_memory", 0))
    world.plan(Start(job, tuple(part._replace(milli=milli) for part in parts), "test"))
    assert world.state(job) is State.RUNNING
    return job


def move(world: Worldlet, job: int, *nodes: str) -> co.Reply:
    return world.reply(ev.Move(job, nodes, f"m{len(world.said)}"), f"m{len(world.said)}")


def scale(world: Worldlet, job: int, devices: int) -> co.Reply:
    return world.reply(ev.Scale(job, devices, f"k{len(world.said)}"), f"k{len(world.said)}")


def where(world: Worldlet, job: int) -> dict[str, int]:
    nodes = world.engine.book.board.layout.nodes
    return {nodes[part.node].name: part.mask.bit_count() for part in world.engine.book.allocations[job]}


# -- move ---------------------------------------------------------------------------------------------------------------


def test_a_job_moves_to_the_node_named_and_elsewhere_when_none_is() -> None:
    pool = world()
    job = running(pool, Part(0, 1))
    pool.later(9 * SECOND)
    assert not move(pool, job, "n2").error
    assert pool.state(job) is State.RUNNING and where(pool, job) == {"n2": 1}
    assert not move(pool, job).error
    assert "n2" not in where(pool, job) and pool.state(job) is State.RUNNING
    assert pool.engine.book.table.attempt[pool.engine.book.table.row[job]] == 1, "the same attempt all along"
    assert pool.engine.view().jobs.ideal_now[0] == 9 * SECOND


def test_a_gang_moves_whole_to_several_nodes() -> None:
    pool = world()
    job = running(pool, Part(0, 0xF), Part(1, 3))
    assert not move(pool, job, "n1", "n2").error
    assert where(pool, job) == {"n1": 4, "n2": 2} or where(pool, job) == {"n1": 2, "n2": 4}


def test_a_move_to_where_the_job_is_changes_nothing_and_is_refused() -> None:
    pool = world()
    job, gang = running(pool, Part(0, 1)), running(pool, Part(0, 2), Part(1, 3))
    pool.tell(ev.NodeDrain("n0", True, "service"))
    for moved, nodes, there in ((job, ("n0", "n0"), ("n0",)), (gang, ("n1", "n0"), ("n0", "n1"))):
        given = len(pool.said)
        reply = move(pool, moved, *nodes)
        assert (reply.error, reply.kind) == (Code.ALREADY_THERE(moved, there), "conflict")
        assert len(pool.said) == given + 1, "nothing but the answer"
    assert not move(pool, gang, "n1").error and where(pool, gang) == {"n1": 3}, "some of it was elsewhere"


def test_a_suspended_image_is_brought_back_where_its_user_says() -> None:
    pool = world()
    job = running(pool, Part(0, 1))
    pool.plan(Suspend(job, "room"))
    assert not move(pool, job, "n1").error
    assert pool.state(job) is State.RUNNING and where(pool, job) == {"n1": 1}


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        (("n9",), Code.NO_SUCH_NODE("n9")),
        (("n1",), Code.NODES_TOO_SMALL(1, 3, ("n1",), 2)),
        (("n2",), Code.NO_ROOM(3, 1, ("n2",), (2,))),
        (("n3",), Code.NODE_UNSCHEDULABLE("n3", reported("broken"))),
        (("n4",), Code.NO_ROOM(3, 1, ("n4",), ())),
        ((), Code.NO_ROOM(3, 1, (), (2,))),
    ],
)
def test_a_move_is_refused_with_its_reason(nodes: tuple[str, ...], reason: Cause) -> None:
    pool = Worldlet(1, 4, settings=live_settings(check_every=1), kind="cpu", full=True)
    for name, devices, full in (("n1", 2, True), ("n2", 4, True), ("n3", 4, True), ("n4", 4, False)):
        pool.tell(ev.NodeUp(NodeSpec(name=name, kind="cpu", devices=devices, full=full), "1"))
    pool.tell(ev.NodeDrain("n3", True, "broken"))
    job = running(pool, Part(0, 7))
    running(pool, Part(2, 0xF))
    reply = move(pool, job, *nodes)
    assert reply.error == reason and remedy(reason)
    assert pool.state(job) is State.RUNNING and where(pool, job) == {"n0": 3}


def test_a_move_off_the_only_node_says_that_there_is_no_other() -> None:
    pool = world(nodes=1)
    job, _ = running(pool, Part(0, 1)), running(pool, Part(0, 2))
    reply = move(pool, job)
    assert reply.error == Code.ON_EVERY_NODE(job)


def test_only_jobs_on_other_nodes_stand_in_the_way_of_a_move() -> None:
    pool = world(nodes=2)
    job, _, other = running(pool, Part(0, 1)), running(pool, Part(0, 2)), running(pool, Part(1, 0xF))
    assert move(pool, job).error == Code.NO_ROOM(1, job, (), (other,))


@pytest.mark.parametrize(
    ("fields", "full", "reason"),
    [
        ({"preempt": "freeze"}, True, Code.MEMORY_PINNED("freeze")),
        ({}, False, Code.MEMORY_PINNED("freeze")),
        ({"preempt": "requeue"}, True, Code.WOULD_RESTART_ELSEWHERE("requeue")),
        ({"preempt": "none"}, True, Code.PREEMPT_NONE()),
    ],
)
def test_a_job_that_cannot_be_imaged_does_not_move(fields: dict, full: bool, reason: Cause) -> None:
    pool = world(full=full)
    job = running(pool, Part(0, 1), **fields)
    assert move(pool, job, "n1").error == Code.NOT_MOVABLE(job, reason)
    assert where(pool, job) == {"n0": 1}


def test_only_a_job_that_is_somewhere_moves() -> None:
    pool = world()
    queued = pool.submit(1)
    assert move(pool, queued).error == Code.NOT_MOVABLE_NOW(queued, "queued")
    held = running(pool, Part(0, 1))
    pool.reply(ev.Hold(held, "h"), "h")
    assert move(pool, held).error == Code.HELD_STILL(held)
    assert move(pool, 77).kind == "notfound"


def test_a_move_asked_for_twice_is_made_once() -> None:
    pool = world()
    job = running(pool, Part(0, 1))
    pool.tell(ev.Move(job, ("n1",), "once"))
    given = pool.tell(ev.Move(job, ("n1",), "once"))
    assert not any(isinstance(command, co.SuspendRanks) for command in given)


# -- scale --------------------------------------------------------------------------------------------------------------


def test_a_gang_shrinks_in_turns_and_grows_back() -> None:
    pool = world()
    job = running(pool, Part(0, 0xF))
    assert not scale(pool, job, 2).error
    assert where(pool, job) == {"n0": 2}
    row = pool.engine.book.table.row[job]
    assert pool.engine.book.table.rate[row] == 471_000, "two turns, six per cent dearer"
    before = pool.engine.view().jobs.ideal_now[row]
    pool.later(10 * SECOND)
    assert pool.engine.view().jobs.ideal_now[row] - before == 4_710_000
    assert not scale(pool, job, 0).error
    assert where(pool, job) == {"n0": 4} and pool.engine.book.table.rate[row] == 1_000_000


def test_a_wish_holds_until_another_and_binds_planners() -> None:
    pool = world(1)
    pool.planner = make("sla")
    job = pool.submit(4)
    assert not scale(pool, job, 3).error
    jobs = pool.engine.view().jobs
    assert (jobs.floor[0], jobs.demand[0]) == (3, 3) and where(pool, job) == {"n0": 3}
    pool.tell(ev.Exited(job, 1, 137, lost=True))
    assert device_count(pool.engine.book.allocations[job]) == 3, "also after a failover"
    assert not scale(pool, job, 0).error
    assert each(pool.engine.book, "size_override") == {} and where(pool, job) == {"n0": 4}


def test_a_waiting_job_takes_less_and_starts() -> None:
    pool = world(1)
    pool.planner = make("fifo")
    running_one = pool.submit(2)
    waiting = pool.submit(4)
    assert pool.state(waiting) is State.QUEUED and pool.state(running_one) is State.RUNNING
    assert not scale(pool, waiting, 2).error
    assert pool.state(waiting) is State.RUNNING


def test_a_suspended_job_comes_back_smaller() -> None:
    pool = world(1)
    job = running(pool, Part(0, 0xF))
    pool.plan(Suspend(job, "room"))
    pool.planner = make("fifo")
    assert not scale(pool, job, 1).error
    assert pool.state(job) is State.RUNNING and where(pool, job) == {"n0": 1}


@pytest.mark.parametrize(("placement", "devices", "most"), [("any", 5, 4), ("one-node", 3, 2)])
def test_a_job_in_an_image_is_not_scaled_beyond_the_nodes_that_can_restore_it(placement, devices, most) -> None:
    pool = Worldlet(2, 2, settings=live_settings(check_every=1), kind="cpu", full=True)
    pool.tell(ev.NodeUp(NodeSpec(name="bare", kind="cpu", devices=8), "1"))
    job = pool.submit(8, min_devices=1, placement=placement)
    pool.plan(Start(job, (Part(0, 3),), "test"))
    pool.plan(Suspend(job, "room"))
    refused = scale(pool, job, devices)
    assert refused.error == Code.FEW_RESTORE_NODES(job, "cpu", most, devices)
    assert remedy(refused.error).endswith(f"tide scale {job} {most}")
    assert each(pool.engine.book, "size_override") == {} and not scale(pool, job, most).error


@pytest.mark.parametrize(
    ("devices", "fields", "reason"),
    [
        (5, {}, Code.SCALE_OUT_OF_RANGE(1, 4, 5, 4)),
        (-1, {}, Code.SCALE_OUT_OF_RANGE(1, 4, -1, 1)),
        (2, {"ranks": 2}, Code.RANKS_NOT_SHARABLE(1, 4)),
        (2, {"preempt": "none"}, Code.NOT_RESIZABLE(1, Code.PREEMPT_NONE())),
        (2, {"preempt": "requeue"}, Code.NOT_RESIZABLE(1, Code.WOULD_START_OVER())),
    ],
)
def test_a_scaling_is_refused_with_its_reason(devices: int, fields: dict, reason: Cause) -> None:
    pool = world()
    job = running(pool, Part(0, 0xF), **fields)
    reply = scale(pool, job, devices)
    assert reply.error == reason and remedy(reason)
    assert each(pool.engine.book, "size_override") == {} and where(pool, job) == {"n0": 4}


def test_growing_needs_free_devices_and_refusing_leaves_the_old_wish() -> None:
    pool = world(1)
    job = running(pool, Part(0, 0xF))
    assert not scale(pool, job, 2).error
    running(pool, Part(0, 0xC))
    assert scale(pool, job, 3).error == Code.NOT_ENOUGH_FREE(job, 2, 3)
    assert each(pool.engine.book, "size_override") == {job: 2} and where(pool, job) == {"n0": 2}


def test_a_resize_that_fails_leaves_the_job_as_it_was() -> None:
    pool = world(1)
    job = running(pool, Part(0, 0xF))
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "torn")
    assert not scale(pool, job, 2).error
    assert pool.state(job) is State.RUNNING and where(pool, job) == {"n0": 4}
    assert each(pool.engine.book, "size_override") == {}, "what its user gets is what it has"


def test_a_failed_suspension_keeps_planners_away_and_not_the_user() -> None:
    pool = world()
    job = running(pool, Part(0, 0xF))
    usual = pool.answers[co.SuspendRanks]
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "torn")
    pool.plan(Suspend(job, "room"))
    assert pool.state(job) is State.RUNNING and pool.engine.book.jobs[job].suspend_cooldown
    pool.answers[co.SuspendRanks] = usual
    assert not scale(pool, job, 2).error and where(pool, job) == {"n0": 2}
    pool.answers[co.SuspendRanks] = lambda command: ev.SuspendFailed(command.job, command.attempt, "torn")
    pool.plan(Suspend(job, "room"))
    pool.answers[co.SuspendRanks] = usual
    assert not move(pool, job, "n2").error and where(pool, job) == {"n2": 2}


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(st.lists(st.tuples(st.booleans(), st.integers(-1, 9), st.lists(st.integers(0, 3), max_size=2)), max_size=12))
def test_any_sequence_of_wishes_keeps_every_job_whole(wishes: list[tuple[bool, int, list[int]]]) -> None:
    """The checker looks at everything after each turn; a refusal changes nothing."""
    pool = world(4)
    jobs = [
        running(pool, Part(0, 0xF), Part(1, 1)),
        running(pool, Part(2, 3)),
        running(pool, Part(3, 1), gpu_memory=GIB),
    ]
    for index, (moves, number, nodes) in enumerate(wishes):
        job = jobs[index % 3]
        before = where(pool, job)
        reply = move(pool, job, *(f"n{node}" for node in nodes)) if moves else scale(pool, job, number)
        assert pool.state(job) is State.RUNNING
        if reply.error:
            assert where(pool, job) == before
        elif moves:
            assert set(where(pool, job)) <= {f"n{node}" for node in nodes} or not nodes
        else:
            assert sum(where(pool, job).values()) == (number or pool.engine.book.specs[job].devices)


def test_a_job_that_can_only_be_frozen_is_not_spread_over_nodes() -> None:
    pool = world(full=False)
    job = pool.submit(4, ranks=1, min_devices=2)
    pool.plan(Start(job, (Part(0, 3),), "test"))
    assert pool.engine.book.table.level[pool.engine.book.table.row[job]] == Level.FREEZE
    for parts in ((Part(0, 3), Part(1, 1)), (Part(1, 7),)):
        pool.plan(Resize(job, parts, "grow"))
        assert pool.state(job) is State.RUNNING and where(pool, job) == {"n0": 2}
        assert pool.engine.book.jobs[job].history[-1][1:] == ("REFUSED", Code.PINNED("n0"))
    pool.plan(Resize(job, (Part(0, 7),), "grow"))
    assert where(pool, job) == {"n0": 3}


def test_a_move_to_named_nodes_spreads_a_job_as_little_as_can_be() -> None:
    """Its placement keeps it together where that can be; its user's word counts where it cannot."""
    pool = world(4)
    job, rank_pairs = running(pool, Part(0, 0xF)), running(pool, Part(3, 0xF), ranks=2)
    for node, mask in ((1, 1), (2, 3)):
        running(pool, Part(node, mask))
    assert not move(pool, job, "n1", "n2").error
    assert where(pool, job) == {"n1": 3, "n2": 1}
    assert move(pool, rank_pairs, "n1", "n2").error.code is Code.NO_ROOM, "a rank sees two devices of one node"


def test_a_share_moves_to_the_device_that_is_fullest() -> None:
    pool = world(2)
    running(pool, Part(1, 1), gpu_memory=2 * GIB)
    running(pool, Part(1, 2), gpu_memory=8 * GIB)
    job = running(pool, Part(0, 1), gpu_memory=4 * GIB)
    assert not move(pool, job, "n1").error
    assert pool.engine.book.allocations[job] == (Part(1, 2, 250),)
