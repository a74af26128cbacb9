"""sla on kinds of different speed, and free devices that do not lie together."""

import numpy as np
import pytest

from tidewright.base.units import MINUTE
from tidewright.engine.settings import EngineSettings
from tidewright.estimate.rates import Rates
from tidewright.model.job import JobSpec
from tidewright.model.node import Part
from tidewright.model.rate import FULL_RATE, RateSettings
from tidewright.plan.moves import Migrate, Start
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Options, simulate
from tidewright.sim.trace import make_trace
from tidewright.testing.policies import check_plan
from tidewright.testing.views import NOW, ViewBuilder, pool

RATES = RateSettings(kinds={"fast": 2.0, "slow": 1.0}, spread={"": 0.5})


def job(devices: int, minutes: float = 600, **fields: object) -> JobSpec:
    return JobSpec(command=("x",), devices=devices, ranks=devices, expected_us=int(minutes * MINUTE), **fields)


def planned(builder: ViewBuilder, rates: RateSettings = RATES):
    view = builder.view()
    view.rates = Rates(rates)
    plan = make("sla").plan(view)
    check_plan(view, plan)
    return plan


@pytest.mark.parametrize(("minutes", "moves"), [(600, True), (61, False)])
def test_a_job_goes_to_a_faster_kind_that_is_free_if_enough_is_left(minutes: int, moves: bool) -> None:
    builder = ViewBuilder((*pool(1, kind="slow"), *pool(1, kind="fast")))
    mine = builder.run(
        job(4, minutes), rate=FULL_RATE // 2, ideal=60 * MINUTE + 58_000_000, reference=1, save_us=2_000_000
    )
    assert builder.allocations[mine][0].node == 0
    plan = planned(builder)
    assert [type(move) for move in plan.moves] == ([Migrate] if moves else [])
    if moves:
        assert plan.moves[0].allocation[0].node == 1 and "FasterThere" in str(plan.moves[0].why)


def test_waiting_jobs_have_free_devices_first() -> None:
    builder = ViewBuilder((*pool(1, kind="slow"), *pool(1, kind="fast")))
    builder.run(job(8), rate=FULL_RATE // 2, reference=1)
    comes = builder.queue(job(8))
    plan = planned(builder)
    assert [(type(move), move.job, move.allocation[0].node) for move in plan.moves] == [(Start, comes, 1)]


def test_nothing_is_moved_where_nothing_is_declared() -> None:
    builder = ViewBuilder((*pool(1, kind="slow"), *pool(1, kind="fast")))
    builder.run(job(4))
    assert not planned(builder, RateSettings()).moves


def test_jobs_end_sooner_for_it() -> None:
    """Eight jobs on a slow and a fast device each: without migrations the last ones run on slow devices to their end."""
    count = 16
    trace = make_trace("two", np.zeros(count), np.full(count, 7200.0), np.ones(count, np.int64))
    nodes = load_cluster("1x8:fast,1x8:slow")
    engine = EngineSettings(history_length=0, forecasts=False, rates=RATES)
    moved = simulate(trace, nodes, make("sla"), Options(engine=engine))
    stays = simulate(trace, nodes, make("fifo"), Options(engine=engine))
    assert stays.makespan_s == pytest.approx(4 * 3600, rel=0.01) and moved.makespan_s == pytest.approx(
        3 * 3600, rel=0.01
    )
    assert moved.preemptions == 8


def test_free_devices_are_brought_together_for_a_job_of_a_whole_node() -> None:
    builder = ViewBuilder(pool(2))
    builder.run(job(6, tier="premium"), ideal=60 * MINUTE)
    aside = builder.run(job(1, tier="premium"), allocation=(Part(1, 1),), ideal=60 * MINUTE)
    comes = builder.queue(job(8, tier="standard"))
    plan = planned(builder, RateSettings())
    assert [(type(move), move.job) for move in plan.moves] == [(Migrate, aside), (Start, comes)]
    assert plan.gangs == ((0, 2),) and "MigratedFor" in str(plan.moves[0].why)


def test_a_job_is_not_migrated_for_one_that_is_hardly_longer_than_the_pause() -> None:
    for minutes, moved in ((0.05, False), (600, True)):
        builder = ViewBuilder(pool(2))
        builder.run(job(6, tier="premium"), ideal=60 * MINUTE, save_us=4_000_000, restore_us=4_000_000)
        builder.run(
            job(1, tier="premium"), ideal=60 * MINUTE, allocation=(Part(1, 1),), save_us=4_000_000, restore_us=4_000_000
        )
        builder.queue(job(8, minutes, tier="standard"), submit=NOW - int(minutes * MINUTE) // 12)
        plan = planned(builder, RateSettings())
        assert any(isinstance(move, Migrate) for move in plan.moves) is moved, minutes


def test_nothing_is_migrated_for_whole_nodes_where_pauses_are_long() -> None:
    builder = ViewBuilder(pool(2))
    slow = {"save_us": 60_000_000, "restore_us": 60_000_000}
    builder.run(job(6, tier="premium"), ideal=60 * MINUTE, **slow)
    builder.run(job(1, tier="premium"), allocation=(Part(1, 1),), ideal=60 * MINUTE, **slow)
    builder.queue(job(8, tier="standard"))
    assert not planned(builder, RateSettings()).moves


def test_nothing_is_migrated_for_a_job_without_a_promise() -> None:
    builder = ViewBuilder(pool(2))
    builder.run(job(6, tier="basic"))
    builder.run(job(1, tier="basic"), allocation=(Part(1, 1),))
    builder.queue(job(8, tier="basic"))
    assert not planned(builder, RateSettings()).moves
