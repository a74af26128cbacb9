"""Policies that work out whole allocations, and policies that remember."""

import msgspec
import numpy as np
import pytest
from msgspec import Struct

from tidewright.base.units import MINUTE
from tidewright.drive.driver import EngineDriver
from tidewright.drive.record import decode
from tidewright.drive.replay import replay
from tidewright.engine.engine import Engine
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.model.view import View
from tidewright.plan.moves import Migrate, Suspend
from tidewright.plan.plan import Plan, Wake
from tidewright.policy.preferences import Preferences
from tidewright.policy.state import recall, remember
from tidewright.policy.targets import plan_targets
from tidewright.sim.run import Simulation
from tidewright.sim.synthetic import synthetic
from tidewright.testing.policies import check_plan, check_policy
from tidewright.testing.views import ViewBuilder, pool, random_view

WHY = Code.FIRST_IN_QUEUE()


class Remembered(Struct, frozen=True):
    turn: int = 0
    seen: dict[int, int] = {}


class RoundRobin:
    """Each job in turn has the devices of one kind for a round: a policy with a whole allocation and a memory."""

    name = "round-robin"

    def __init__(self, *, round_us: int = 10 * MINUTE) -> None:
        self.round_us = round_us

    def plan(self, view: View) -> Plan:
        state = recall(view, self.name, Remembered())
        jobs, kinds = view.jobs, len(view.layout.kinds)
        counts = np.zeros((jobs.n, kinds), np.int32)
        for row in range(jobs.n):
            kind = (int(jobs.id[row]) + state.turn) % kinds
            counts[row, kind] = jobs.demand[row]
        preferences = Preferences(
            key=(jobs.id + 7 * state.turn) % 13, waiting=jobs.waiting, why=lambda row: WHY, counts=counts
        )
        plan = plan_targets(view, preferences, Wake(at=view.now + self.round_us))
        seen = {int(job): state.seen.get(int(job), 0) + 1 for job in jobs.id.tolist()}
        return msgspec.structs.replace(plan, state=remember(self.name, Remembered(state.turn + 1, seen)))


def targets(view: View, counts: dict[int, tuple[int, ...]], **fields: object) -> Plan:
    """The plan that gives jobs these counts of each kind."""
    table = np.zeros((view.jobs.n, len(view.layout.kinds)), np.int32)
    for job, wanted in counts.items():
        table[view.jobs.row[job]] = wanted
    preferences = Preferences(key=view.jobs.id, waiting=view.jobs.waiting, why=lambda row: WHY, counts=table)
    plan = plan_targets(view, msgspec.structs.replace(preferences, **fields), Wake())
    check_plan(view, plan)
    return plan


def job(devices: int, **fields: object) -> JobSpec:
    return JobSpec(command=("x",), devices=devices, ranks=devices, **fields)


def kinds_of(plan: Plan) -> dict[int, str]:
    return {move.job: type(move).__name__ for move in plan.moves}


def test_who_has_what_it_is_to_have_stays() -> None:
    builder = ViewBuilder((*pool(1, kind="a"), *pool(1, kind="b")))
    stays, moves, shrinks, goes = (builder.run(job(2, min_devices=1)) for _ in range(4))
    comes = builder.queue(job(4))
    view = builder.view()
    plan = targets(view, {stays: (2, 0), moves: (0, 2), shrinks: (1, 0), goes: (0, 0), comes: (4, 0)})
    assert kinds_of(plan) == {goes: "Suspend", moves: "Migrate", shrinks: "Resize", comes: "Start"}
    allocation = next(move.allocation for move in plan.moves if isinstance(move, Migrate))
    assert allocation[0].node == 1


def test_two_that_change_places_are_not_moved_onto_each_other() -> None:
    builder = ViewBuilder((*pool(1, kind="a"), *pool(1, kind="b")))
    one, other = builder.run(job(8, device_types=("a", "b"))), builder.run(job(8, device_types=("b", "a")))
    plan = targets(builder.view(), {one: (0, 8), other: (8, 0)})
    assert sorted(kinds_of(plan).values()) == ["Migrate", "Suspend"]
    assert next(move for move in plan.moves if isinstance(move, Suspend)).replan


def test_who_may_not_be_moved_is_not() -> None:
    builder = ViewBuilder(pool(1))
    mine = builder.run(job(8))
    view = builder.view()
    assert not targets(view, {mine: (0,)}, victims=np.zeros(view.jobs.n, bool)).moves
    assert kinds_of(targets(view, {mine: (0,)})) == {mine: "Suspend"}


@pytest.mark.parametrize("seed", range(30))
def test_any_allocation_makes_a_plan_that_lands(seed: int) -> None:
    view = random_view(seed, 3 + seed % 8, 6 * (seed % 9), 5 * (seed % 7))
    dice = np.random.Generator(np.random.PCG64(seed))
    shape = view.jobs.n, len(view.layout.kinds)
    wanted = dice.integers(0, 3, shape) * np.maximum(view.jobs.floor, 1)[:, None]
    counts = np.clip(wanted, view.jobs.floor[:, None], view.jobs.demand[:, None])
    counts = np.where((wanted > 0) & (view.jobs.memory == 0)[:, None], counts, 0)
    preferences = Preferences(key=-view.jobs.id, waiting=view.jobs.waiting, why=lambda row: WHY, counts=counts)
    check_plan(view, plan_targets(view, preferences, Wake()))


def test_a_policy_with_a_memory_passes_the_kit() -> None:
    check_policy(RoundRobin, views=20)


def test_what_a_policy_remembers_is_journaled_and_in_forks() -> None:
    trace = synthetic("jobs=12,load=1.5,max=20m,seed=5", 16)
    kept = []
    simulation = Simulation(trace, (*pool(1, kind="a"), *pool(1, kind="b")), RoundRobin(), recorder=kept)
    result = simulation.run()
    assert result.completed == 12
    name, data = simulation.engine.book.policy_state
    turn = msgspec.msgpack.decode(data, type=Remembered).turn
    assert name == "round-robin" and turn == simulation.planning_rounds
    settings = simulation.engine.settings
    again = replay(kept, settings)
    assert again.book.policy_state == (name, data), "from the journal alone, without the policy"
    fork = Engine.restore(simulation.engine.snapshot())
    assert recall(fork.view(), "round-robin", Remembered()).turn == turn
    assert recall(fork.view(), "another", Remembered()).turn == 0, "not another policy's"
    assert any(b"state" in body for body in kept) and decode(kept[0]).turn == 1


def test_a_policy_reads_what_it_remembered_after_a_restart_in_between() -> None:
    """The same commands from an engine that was a snapshot half way through."""
    trace = synthetic("jobs=12,load=1.5,max=20m,seed=5", 16)
    nodes = (*pool(1, kind="a"), *pool(1, kind="b"))
    whole, halves = [], []
    Simulation(trace, nodes, RoundRobin(), recorder=whole).run()
    simulation = Simulation(trace, nodes, RoundRobin(), recorder=halves)
    for _ in range(20):
        now = simulation.next_instant()
        assert now is not None
        simulation.turn(now)
    engine = Engine.restore(simulation.engine.snapshot())
    simulation.engine, simulation.driver = engine, EngineDriver(engine, halves, simulation.driver.turns)
    simulation.planner = RoundRobin()
    simulation.run()
    assert [decode(body) for body in halves] == [decode(body) for body in whole]


def test_what_cannot_be_read_is_forgotten() -> None:
    class Other(Struct, frozen=True):
        name: str = "default"

    view = ViewBuilder(pool(1)).view()
    view.policy_state = "p", remember("p", Remembered(3, {1: 2})).data
    assert recall(view, "p", Other()).name == "default" and recall(view, "p", Remembered()).turn == 3
    view.policy_state = "p", b"\xc1"
    assert recall(view, "p", Remembered()).turn == 0
