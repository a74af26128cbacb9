"""The real policies in the simulated world: cases worked out by hand, and another simulator's published outcome."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import SECOND
from tidewright.policy.registry import make, policies
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import FREE, Costs
from tidewright.sim.run import Options, Simulation, simulate
from tidewright.sim.trace import changed, make_trace
from tidewright.sim.traces import load_trace

DATA = Path(os.environ.get("TIDEWRIGHT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "tiresias").is_dir(), reason=f"no reference data in {DATA}; set TIDEWRIGHT_DATA"
)


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


@needs_data
@pytest.mark.parametrize("cluster", ["4x4", "32x4"])
def test_fifo_agrees_with_the_tiresias_simulator(cluster: str) -> None:
    """Tiresias' own runs of its 60-job trace, count placement: mean JCT 200.82 s on 16 GPUs, 178.42 s on 128 (NSDI'19)."""
    trace = changed(load_trace(str(DATA / "tiresias" / "60_job.csv"), 16), placement="any")
    result = simulate(trace, load_cluster(cluster), make("fifo"), Options(costs=FREE))
    assert result.jct_mean_s == pytest.approx({"4x4": 200.81667, "32x4": 178.41667}[cluster], rel=1e-3)


@needs_data
def test_fifo_agrees_with_the_tiresias_simulator_job_by_job() -> None:
    trace = changed(load_trace(str(DATA / "tiresias" / "derived_philly_480_job.csv"), 60), placement="any")
    simulation = Simulation(trace, load_cluster("15x4"), make("fifo"), Options(costs=FREE))
    simulation.run()
    rows = [
        line.split(",") for line in (DATA / "tiresias" / "reruns" / "fifo-480_job.csv").read_text().splitlines()[1:]
    ]
    theirs = {f"t{row[1]}": float(row[5]) for row in rows}
    ours = dict(zip(trace.names, (simulation.outcomes.end / SECOND).tolist(), strict=True))
    assert ours == pytest.approx(theirs, abs=1.0)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(policies.names()), st.integers(0, 2**32), st.sampled_from([0.7, 1.3]))
def test_every_policy_ends_every_job_once(policy: str, seed: int, load: float) -> None:
    trace = load_trace(f"synthetic:jobs=80,load={load},seed={seed},max=30m,sizes=1:6/2:2/4:1/8:1,elastic=0.3", 16)
    simulation = Simulation(trace, load_cluster("4x4"), make(policy), Options(costs=Costs()))
    result = simulation.run()
    assert result.completed == len(trace)
    assert result.utilisation <= 1 + 1e-12
    assert simulation.outcomes.held_area == simulation.meter.held_area
    assert result.lost_device_hours == 0
