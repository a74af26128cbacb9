"""The real policies in the simulated world: cases worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import SECOND
from tidewright.policy.registry import make, policies
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import FREE, Costs
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import make_trace
from tidewright.sim.traces import load_trace

from ..sizes import examples


def ends(policy: str, cluster: str, *rows: tuple[int, int, int]) -> list[float]:
    """When each (submit s, duration s, devices) ends, seconds, with free moves."""
    submit, duration, devices = (np.array(column) for column in zip(*rows, strict=True))
    simulation = Simulation(
        make_trace("hand", submit.astype(float), duration.astype(float), devices),
        load_cluster(cluster),
        make(policy),
        Options(costs=FREE),
    )
    simulation.run()
    return (simulation.outcomes.end / SECOND).tolist()


def test_fifo_by_hand() -> None:
    assert ends("fifo", "1x2", (0, 100, 1), (10, 50, 2), (20, 5, 1)) == [100, 150, 155]


def test_backfill_lets_the_short_job_pass_where_it_delays_nobody() -> None:
    assert ends("fifo-backfill", "1x2", (0, 100, 1), (10, 50, 2), (20, 5, 1)) == [100, 150, 25]
    assert ends("fifo-backfill", "1x2", (0, 100, 1), (10, 50, 2), (20, 90, 1)) == [100, 150, 240]


def test_srtf_by_hand() -> None:
    """The 100 s job gives way at 10 s (90 left) to 20 s of work, and that at 15 s (15 left) to 5 s of work."""
    assert ends("srtf", "1x1", (0, 100, 1), (10, 20, 1), (15, 5, 1)) == [125, 35, 20]


@pytest.mark.parametrize("save_us", [0, 10 * SECOND, 90 * SECOND])
def test_las_with_rounds_brings_back_what_it_suspended(save_us: int) -> None:
    """The long job falls to the second queue at 60 s and gives way; nothing is waiting once the short ones have started, and a
    save may take longer than a round."""
    submit, duration = np.array([0.0, 70.0, 125.0]), np.array([600.0, 5.0, 5.0])
    trace = make_trace("hand", submit, duration, np.array([2, 1, 1]))
    costs = Costs(launch_us=0, save_us=save_us, restore_us=0)
    simulation = Simulation(trace, load_cluster("1x2"), make("las:round=1m,thresholds=2m"), Options(costs=costs))
    result = simulation.run()
    assert (result.completed, result.unfinished) == (3, 0)
    assert result.preemptions >= 1


@settings(max_examples=examples(12), deadline=None)
@given(st.sampled_from(policies.names()), st.integers(0, 2**32), st.sampled_from([0.7, 1.3]))
def test_every_policy_ends_every_job_once(policy: str, seed: int, load: float) -> None:
    trace = load_trace(f"synthetic:jobs=80,load={load},seed={seed},max=30m,sizes=1:6/2:2/4:1/8:1,elastic=0.3", 16)
    simulation = Simulation(trace, load_cluster("4x4"), make(policy), Options(costs=Costs()))
    result = simulation.run()
    assert result.completed == len(trace)
    assert result.utilisation <= 1 + 1e-12
    assert simulation.outcomes.held_area == simulation.meter.held_area
    assert result.lost_device_hours == 0
