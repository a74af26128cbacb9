"""The loop and the world: no job is lost, nothing is done twice or for nothing, and the accounts agree."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import Bug
from tidewright.base.units import HOUR, SECOND
from tidewright.model.board import whole
from tidewright.model.job import State
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.plan import Plan, Wake
from tidewright.sim.clusters import load_cluster
from tidewright.sim.comparison.accounts import remarks
from tidewright.sim.comparison.cells import Cell, CellResult, Comparison, grouped
from tidewright.sim.costs import FREE, Costs
from tidewright.sim.faults import FaultSettings
from tidewright.sim.report import notes
from tidewright.sim.result import from_json, to_json
from tidewright.sim.run import Options, Simulation, simulate
from tidewright.sim.trace import Trace, make_trace, with_load
from tidewright.sim.traces import load_trace

from ..sizes import examples
from .planners import Churn, FirstCome, waiting


def jobs(*rows: tuple[float, float, int], **columns: object) -> Trace:
    submit, duration, devices = (np.array(column) for column in zip(*rows, strict=True))
    return make_trace("hand", submit.astype(float), duration.astype(float), devices, **columns)


def test_first_come_first_served_by_hand() -> None:
    """Two devices; the wide second job blocks the short third one until both devices are free at 100 s."""
    result = simulate(jobs((0, 100, 1), (10, 50, 2), (20, 5, 1)), load_cluster("1x2"), FirstCome(), Options(costs=FREE))
    assert result.jct_mean_s == pytest.approx((100 + 140 + 135) / 3)
    assert result.queue_mean_s == pytest.approx((0 + 90 + 130) / 3)
    assert result.makespan_s == 155
    assert result.utilisation == pytest.approx((100 + 100 + 5) / (2 * 155))
    assert result.queue_length_mean == pytest.approx((90 + 130) / 155)


class OneDevice:
    """Puts every job on the first device, free or not and however many it asks for."""

    name = "one-device"

    def plan(self, view):
        starts = [Start(int(view.jobs.id[row]), (whole(0, 1),), "there") for row in waiting(view)]
        return Plan(view.revision, tuple(starts), gangs=((2, 4),))


def test_moves_that_do_not_hold_are_counted_with_their_reasons() -> None:
    """One of four jobs starts; the engine asks again, as moves were refused, and refuses those of all three that are left."""
    trace = jobs((0, 100, 1), (0, 50, 1), (0, 50, 1), (0, 5, 2))
    result = simulate(trace, load_cluster("1x2"), OneDevice(), Options(costs=FREE, horizon_us=50 * SECOND, label="one"))
    refused, moves = result.moves_refused, result.moves
    assert (refused, moves) == (9, 10)
    assert result.move_refusals == {"DevicesTaken": 7, "WrongCount": 2}
    text = "9 of 10 moves were refused, as they did not hold (DevicesTaken: 7, WrongCount: 2)"
    assert f"one: {text}" in notes([result])
    assert from_json(to_json([result])) == [result]
    good = simulate(trace, load_cluster("1x2"), FirstCome(), Options(costs=FREE))
    assert (good.moves_refused, good.move_refusals) == (0, {})
    assert not any("moves" in note for note in notes([good]))
    cell = Cell(settings=(), policy="one", replicate="any")
    found = grouped([CellResult(cell=cell, result=result, planning_s=0.0, cpu_s=0.0)], ["one"])
    assert f"one: {text}" in remarks(Comparison(command="", groups=found, policies=("one",)))


def test_costs_are_paid_with_devices_held() -> None:
    result = simulate(jobs((0, 60, 1)), load_cluster("1x1"), FirstCome(), Options(costs=Costs(launch_us=3 * SECOND)))
    assert (result.makespan_s, result.utilisation, result.jct_mean_s) == (63, 1.0, 63)
    assert result.tiers[1].fraction_mean == pytest.approx(60 / 63)


class Swap:
    """Runs job 1, suspends it for job 2 as soon as that one is there, and brings it back."""

    name = "swap"

    def plan(self, view):
        churn = Churn(0, busy=0.0).plan(view)
        running = [job for job in view.allocations if job == 1 and view.jobs.n == 2]
        if running and view.jobs.state[view.jobs.row[1]] == int(State.RUNNING):
            return Plan(
                view.revision, (Suspend(1, "second first"), Start(2, (whole(0, 1),), "its turn")), gangs=((0, 2),)
            )
        return churn


def test_a_suspended_job_loses_no_work_and_pays_save_and_restore() -> None:
    """40 s of 100 done; save 1 s; the second job launches 3 s and runs 10 s; restore 2 s; 60 s left."""
    costs = Costs(launch_us=3 * SECOND, save_us=1 * SECOND, restore_us=2 * SECOND)
    simulation = Simulation(jobs((0, 100, 1), (43, 10, 1)), load_cluster("1x1"), Swap(), Options(costs=costs))
    result = simulation.run()
    assert simulation.outcomes.end.tolist() == [(43 + 1 + 3 + 10 + 2 + 60) * SECOND, (43 + 1 + 3 + 10) * SECOND]
    assert (result.preemptions, result.lost_device_hours, result.utilisation) == (1, 0.0, 1.0)


def test_a_crash_repeats_what_was_not_checkpointed() -> None:
    """Runs from 0, crashes at a drawn time; with checkpoints every 10 s at most 10 s are repeated."""
    faults = FaultSettings(seed=5, node_mtbf_us=200 * SECOND, node_mttr_us=1 * SECOND)
    trace = jobs((0, 400, 2))
    plain = simulate(trace, load_cluster("2x1"), FirstCome(), Options(costs=FREE, faults=faults))
    saved = simulate(
        trace,
        load_cluster("2x1"),
        FirstCome(),
        Options(costs=Costs(launch_us=0, checkpoint_every_us=10 * SECOND), faults=faults),
    )
    assert plain.completed == saved.completed == 1
    assert saved.restarts > 0
    assert saved.lost_device_hours * 3600 <= 2 * 10 * saved.restarts
    assert plain.lost_device_hours > saved.lost_device_hours


def test_a_failing_job_is_retried_as_its_spec_says() -> None:
    faults = FaultSettings(seed=2, rank_mtbf_us=1 * SECOND)
    result = simulate(
        jobs((0, 1000, 1), retries=3), load_cluster("1x1"), FirstCome(), Options(costs=FREE, faults=faults)
    )
    assert (result.failed, result.completed, result.restarts) == (1, 0, 3)


def test_what_can_never_run_is_refused_and_counted() -> None:
    result = simulate(jobs((0, 10, 1), (1, 10, 9)), load_cluster("2x4"), FirstCome(), Options(costs=FREE))
    assert (result.completed, result.refused, result.unfinished) == (1, 1, 0)


class Idle:
    """Never starts anything."""

    name = "idle"

    def plan(self, view):
        return Plan(view.revision)


def test_a_run_that_goes_nowhere_ends_and_says_so() -> None:
    result = simulate(jobs((0, 10, 1), (5, 10, 1)), load_cluster("1x1"), Idle(), Options(costs=FREE))
    assert (result.unfinished, result.completed, result.jct_mean_s) == (2, 0, 0.0)
    bounded = simulate(jobs((0, 10, 1), (50, 10, 1)), load_cluster("1x1"), FirstCome(), Options(horizon_us=20 * SECOND))
    assert (bounded.completed, bounded.unfinished) == (1, 1)
    assert bounded.remarks == ("1 job was never submitted: the simulation ends after 20s",)


def test_jobs_that_come_after_ten_years_are_said_to_be_left_out() -> None:
    trace = with_load(load_trace("philly:20", 16), 0.0001, 16)
    result = simulate(trace, load_cluster("2x8"), FirstCome())
    assert (result.completed, result.unfinished) == (1, 19)
    assert notes([result])[0] == "19 jobs were never submitted: the simulation ends after 10 years"


class Fidget:
    """Wakes itself a microsecond later, without end."""

    name = "fidget"

    def plan(self, view):
        return Plan(view.revision, wake=Wake(at=view.now + 1))


def test_a_policy_that_spins_is_caught() -> None:
    with pytest.raises(Bug, match="fidget plans again and again"):
        simulate(jobs((0, 10, 1)), load_cluster("1x1"), Fidget(), Options(costs=FREE))


@settings(max_examples=examples(15), deadline=None)
@given(
    st.integers(0, 2**32),
    st.floats(0.0, 0.6),
    st.sampled_from([FREE, Costs(), Costs(launch_us=SECOND, save_us=20 * SECOND, restore_us=7 * SECOND)]),
    st.booleans(),
    st.integers(0, 3 * SECOND),
)
def test_every_job_ends_once_and_the_accounts_agree(
    seed: int, busy: float, costs: Costs, faulty: bool, think_us: int
) -> None:
    faults = FaultSettings(
        seed=seed,
        node_mtbf_us=2 * HOUR if faulty else 0,
        node_mttr_us=300 * SECOND,
        rank_mtbf_us=4 * HOUR if faulty else 0,
        suspend_failure=0.2 if faulty else 0.0,
        resume_failure=0.1 if faulty else 0.0,
        launch_failure=0.05 if faulty else 0.0,
        slow_answer=0.1 if faulty else 0.0,
    )
    trace = load_trace(
        f"synthetic:jobs={examples(60)},load=1.2,seed={seed},max=20m,sizes=1:4/2:2/4:1/8:1,elastic=0.5", 16
    )
    options = Options(costs=costs, faults=faults, think_us=think_us, horizon_us=2000 * HOUR)
    simulation = Simulation(trace, load_cluster("4x4"), Churn(seed, busy), options)
    result = simulation.run()
    assert result.completed + result.failed + result.refused + result.unfinished == len(trace)
    assert result.unfinished == result.refused == 0
    assert result.utilisation <= 1 + 1e-12
    assert not simulation.world.jobs
    assert simulation.meter.held_milli == simulation.meter.queued == 0
    done = simulation.outcomes.state == int(State.COMPLETED)
    assert (simulation.outcomes.end - trace.submit >= trace.duration)[done].all()
    assert (simulation.outcomes.start >= trace.submit)[done].all()
    if not faulty:
        assert result.completed == len(trace)
        assert simulation.outcomes.held_area == simulation.meter.held_area
        assert simulation.meter.held_area >= 1000 * sum(int(d) for d in trace.duration)
        assert result.lost_device_hours == 0


def test_results_survive_json() -> None:
    result = simulate(load_trace("synthetic:jobs=50", 16), load_cluster("4x4"), FirstCome())
    assert from_json(to_json([result])) == [result]


_SCRIPT = """
import hashlib
from tests.sim.planners import Churn
from tidewright.sim.clusters import load_cluster
from tidewright.sim.faults import FaultSettings
from tidewright.sim.result import to_json
from tidewright.sim.run import Options, Simulation
from tidewright.sim.traces import load_trace
class Tape:
    def __init__(self): self.hash = hashlib.sha256()
    def append(self, record): self.hash.update(record)
tape = Tape()
faults = FaultSettings(node_mtbf_us=2_400_000_000, rank_mtbf_us=3_000_000_000, suspend_failure=0.1, slow_answer=0.1)
trace = load_trace("synthetic:jobs=40,load=1.2,seed=4,max=20m,elastic=0.5", 16)
result = Simulation(trace, load_cluster("4x4"), Churn(4, 0.2), Options(faults=faults), tape).run()
print(tape.hash.hexdigest(), hashlib.sha256(to_json([result])).hexdigest())
"""


def test_the_journal_is_the_same_under_any_hash_seed() -> None:
    here = os.path.dirname(os.path.dirname(__file__))
    outputs = []
    for seed in ("0", "271828"):
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": here}
        outputs.append(
            subprocess.run([sys.executable, "-c", _SCRIPT], env=env, capture_output=True, text=True, check=True).stdout
        )
    assert outputs[0].strip()
    assert outputs[0] == outputs[1]
