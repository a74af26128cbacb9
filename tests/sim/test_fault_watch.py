"""Faults that leave jobs no time: a simulation ends and says so, and goes on as long as work gets done."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from tidewright.base.errors import UsageError
from tidewright.base.units import DAY, MS, SECOND
from tidewright.policy.registry import make
from tidewright.sim import faults as faults_module
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import FREE
from tidewright.sim.faults import FaultSettings, parse_faults
from tidewright.sim.report import notes
from tidewright.sim.result import SimulationResult
from tidewright.sim.run import Options, simulate
from tidewright.sim.trace import Trace, make_trace


def two_jobs(seconds: float) -> Trace:
    return make_trace("hand", np.array([0.0, 5.0]), np.array([seconds, seconds]), np.array([4, 4]))


def run(faults: FaultSettings, seconds: float = 3600.0) -> SimulationResult:
    options = Options(faults=faults, label="it", checkpoints=False)
    return simulate(two_jobs(seconds), load_cluster("1x4"), make("fifo"), options)


@pytest.mark.parametrize(
    "faults",
    [
        FaultSettings(node_mtbf_us=SECOND, node_mttr_us=MS),
        FaultSettings(node_mtbf_us=60 * SECOND, node_mttr_us=60 * SECOND),
    ],
)
def test_a_run_ends_where_faults_leave_no_time(faults: FaultSettings) -> None:
    result = run(faults)
    assert (result.completed, result.unfinished) == (0, 2)
    assert result.makespan_s < 365 * DAY / SECOND
    said = [note for note in notes([result]) if "faults in a row left 2 jobs" in note]
    assert len(said) == 1 and said[0].startswith("it: ended after ") and "--faults" in said[0]


def test_many_faults_end_no_run_that_gets_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash each 20 s of jobs whose own checkpoints are a second apart: hundreds, and not one of them stops the run."""
    monkeypatch.setattr(faults_module, "FAULTS", 20)
    faults = FaultSettings(node_mtbf_us=20 * SECOND, node_mttr_us=MS)
    costs = replace(FREE, checkpoint_every_us=SECOND)
    options = Options(faults=faults, checkpoints=False, costs=costs)
    result = simulate(two_jobs(3600.0), load_cluster("1x4"), make("fifo"), options)
    assert (result.completed, notes([result])) == (2, [])
    assert result.restarts > 10 * 20


@pytest.mark.parametrize("name", ["suspend_failure", "launch_failure"])
def test_what_never_succeeds_is_refused_with_the_range(name: str) -> None:
    with pytest.raises(UsageError, match=f"{name}: with 1 none ever succeeds") as refused:
        parse_faults(f"{name}=1")
    assert "from 0 to below 1" in (refused.value.remedy or "")
    assert parse_faults(f"{name}=0.99").any and parse_faults("resume_failure=1").any
