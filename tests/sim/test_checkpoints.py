"""Simulated images: what failures lose with and without them, and what they cost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.units import DAY, HOUR, MINUTE, SECOND
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import Costs
from tidewright.sim.faults import FaultSettings, parse_faults
from tidewright.sim.run import Options, Simulation, simulate
from tidewright.sim.traces import load_trace

from ..sizes import examples

CLUSTER = load_cluster("6x8")
DEVICES = 48


def run(trace: str, **options):
    return simulate(load_trace(trace, DEVICES), CLUSTER, make("sla"), Options(**options))


def test_images_save_most_of_what_failures_lose() -> None:
    """Over several seeds: in a single one a lucky run without images loses as little."""
    lost = {False: 0.0, True: 0.0}
    for seed in (1, 2, 4):
        faults = FaultSettings(seed=seed, node_mtbf_us=5 * DAY, rank_mtbf_us=4 * DAY)
        trace = f"synthetic:jobs=100,load=0.8,seed={seed}"
        without, with_images = (run(trace, faults=faults, checkpoints=on) for on in (False, True))
        assert with_images.checkpoints > 100 and without.checkpoints == 0
        assert with_images.goodput > without.goodput
        assert with_images.failed < without.failed, "a rank killed from outside is no failure of the job"
        lost[False] += without.lost_device_hours
        lost[True] += with_images.lost_device_hours
    assert lost[True] < 0.25 * lost[False]


def test_nothing_is_imaged_where_nothing_fails_unless_asked_for() -> None:
    trace = "synthetic:jobs=60,load=0.8,seed=4"
    assert run(trace).checkpoints == 0
    asked = run(trace, checkpoints=True)
    assert asked.checkpoints > 0 and asked.lost_device_hours == 0.0


def test_images_cost_the_time_that_jobs_stand_still() -> None:
    trace, faults = "synthetic:jobs=60,load=0.5,seed=4", FaultSettings(node_mtbf_us=30 * DAY)
    free, dear = (run(trace, faults=faults, costs=Costs(checkpoint_us=us)) for us in (0, 5 * MINUTE))
    assert dear.held_device_hours > free.held_device_hours and dear.goodput < free.goodput


@settings(max_examples=examples(15), deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32), dear=st.booleans(), torn=st.sampled_from([0.0, 0.3]))
def test_every_job_ends_and_no_work_is_invented(seed: int, dear: bool, torn: float) -> None:
    """The engine's account of work never exceeds the truth of a job that has ended, whatever fails on the way."""
    faults = FaultSettings(
        seed=seed, node_mtbf_us=2 * DAY, rank_mtbf_us=1 * DAY, suspend_failure=0.1, resume_failure=0.1,
        launch_failure=0.05, checkpoint_failure=torn, slow_answer=0.05, slow_factor=5,
        device_mtbf_us=20 * DAY, device_mttr_us=2 * HOUR,
    )  # fmt: skip
    costs = Costs(checkpoint_us=2 * MINUTE) if dear else Costs()
    trace = load_trace(f"synthetic:jobs=80,load=1.2,elastic=0.3,seed={seed % 1000}", DEVICES)
    simulation = Simulation(trace, CLUSTER, make("sla"), Options(faults=faults, costs=costs, horizon_us=5000 * HOUR))
    ended: dict[int, int] = {}
    record = simulation.outcomes.record

    def watched(row, command, lost_us):
        ended[row] = command.ideal_us
        record(row, command, lost_us)

    simulation.outcomes.record = watched
    result = simulation.run()
    assert result.completed + result.failed == len(trace)
    done = simulation.outcomes.state == 8
    for row in ended:
        if done[row]:
            assert ended[row] <= int(trace.duration[row]) + SECOND, "the engine counts no work that was not done"


def test_faults_are_written_by_name() -> None:
    found = parse_faults("node_mtbf=30d, rank_mtbf=36h,suspend_failure=0.01,slow_factor=3", seed=7)
    assert found == FaultSettings(
        seed=7, node_mtbf_us=30 * DAY, rank_mtbf_us=36 * HOUR, suspend_failure=0.01, slow_factor=3
    )
    assert not parse_faults("").any
    for wrong in ("node_mtbf", "weather=bad", "suspend_failure=often", "suspend_failure=2"):
        with pytest.raises(UsageError):
            parse_faults(wrong)
