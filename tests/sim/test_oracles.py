"""Published simulators on the same inputs: their means, and job by job where they print jobs (docs/why/oracles.md)."""

from __future__ import annotations

import csv
import json
import os
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tidewright.base.units import DAY, HOUR, SECOND
from tidewright.engine.settings import EngineSettings
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.profile import PROFILES
from tidewright.sim.rate_files import load_rates
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import Trace
from tidewright.sim.traces import load_trace

DATA = Path(os.environ.get("TIDEWRIGHT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
needs_data = pytest.mark.skipif(
    not (DATA / "tiresias").is_dir(), reason=f"no reference data in {DATA}; set TIDEWRIGHT_DATA"
)


@cache
def run(trace: str, cluster: str, policy: str, profile: str, horizon_us: int = Options().horizon_us) -> Simulation:
    options = Options(profile=PROFILES[profile], horizon_us=horizon_us)
    simulation = Simulation(load_trace(trace, 0), load_cluster(cluster), make(policy), options)
    simulation.run()
    return simulation


def ended(simulation: Simulation, by_us: int) -> tuple[int, float]:
    """How many jobs have ended by then, and the mean of their completion times in seconds.

    What happens later changes neither: a run that is cut short there is compared with a published figure through the whole one.
    """
    rows = (simulation.outcomes.end >= 0) & (simulation.outcomes.end <= by_us)
    jct = (simulation.outcomes.end - simulation.trace.submit)[rows] / SECOND
    return len(jct), float(jct.mean())


@pytest.mark.parametrize(
    ("policy", "jct_s", "within"),
    [
        ("fifo", 200.817, 1e-5),
        ("fjf", 190.683, 1e-5),
        ("smallest", 198.2, 1e-5),
        ("srtf", 192.117, 1e-5),
        ("srsf", 195.9, 0.005),
    ],
)
def test_tiresias_60_jobs_on_16_gpus(policy: str, jct_s: float, within: float) -> None:
    """Tiresias' sjf is ``smallest`` here, shortest ``srtf`` and shortest-gpu ``srsf``, where one tie falls otherwise."""
    result = run("tiresias:60", "4x4", policy, "tiresias").result()
    assert result.completed == 60
    assert result.jct_mean_s == pytest.approx(jct_s, rel=within)


@pytest.mark.parametrize("policy", ["fifo", "fjf", "smallest", "srtf", "srsf", "las"])
def test_tiresias_60_jobs_where_nothing_waits(policy: str) -> None:
    assert run("tiresias:60", "32x4", policy, "tiresias").result().jct_mean_s == pytest.approx(178.41667, rel=1e-6)


@pytest.mark.parametrize(("policy", "jct_s"), [("fifo", 4529.37), ("las", 3849.51), ("srsf", 3362.65)])
def test_tiresias_480_jobs_of_philly(policy: str, jct_s: float) -> None:
    result = run("tiresias:480", "15x4", policy, "tiresias").result()
    assert result.completed == 480
    assert result.jct_mean_s == pytest.approx(jct_s, rel=1e-3 if policy == "las" else 1e-5)


HELIOS_EARLY_US = 13 * DAY
HELIOS_EARLY = {"fifo": (2_580, 1_430.98023), "sjf": (2_586, 1_432.23434)}
"""What has ended after 13 of 61 days, and its mean completion time, in the run whose whole is the published one."""


@pytest.mark.parametrize("policy", [pytest.param("fifo", marks=pytest.mark.full), "sjf"])
def test_helios_on_a_virtual_cluster_of_philly_at_first(policy: str) -> None:
    simulation = run("helios:11cb48", "16x8", policy, "helios", HELIOS_EARLY_US)
    assert ended(simulation, HELIOS_EARLY_US) == pytest.approx(HELIOS_EARLY[policy], rel=1e-6)


@pytest.mark.full
@pytest.mark.parametrize(("policy", "jct_s", "queue_s"), [("fifo", 3110.668, 240.983), ("sjf", 3059.071, 189.386)])
def test_helios_on_a_virtual_cluster_of_philly(policy: str, jct_s: float, queue_s: float) -> None:
    simulation = run("helios:11cb48", "16x8", policy, "helios")
    result = simulation.result()
    assert result.completed == 11_897
    assert (result.jct_mean_s, result.queue_mean_s) == pytest.approx((jct_s, queue_s), rel=1e-5)
    assert ended(simulation, HELIOS_EARLY_US) == pytest.approx(HELIOS_EARLY[policy], rel=1e-6)


@pytest.mark.parametrize(
    ("policy", "jct_s", "wait_s"),
    [
        pytest.param("fjf", 15_040.211, 5_048.03, marks=pytest.mark.full),
        ("sjf:skip=true", 12_290.723, 2_298.54),
    ],
)
def test_pai_on_philly(policy: str, jct_s: float, wait_s: float) -> None:
    result = run("pai:philly,jobs=2000,rate=1000", "50x8", policy, "pai").result()
    assert result.completed == 2_000
    assert (result.jct_mean_s, result.queue_mean_s) == pytest.approx((jct_s, wait_s), rel=1e-5)


CONTINUOUS = "gavel-continuous:jobs=5020,lam=9000,seed=0"
EARLY = "gavel-continuous:jobs=300,lam=9000,seed=0"
GAVEL_EARLY_H = 15.9484833
"""Mean completion time of the first 200 jobs in the run whose jobs 4000 to 5000 are compared with Gavel's."""


@cache
def gavel_continuous(trace: str = CONTINUOUS) -> Simulation:
    """Gavel's first 5,020 continuous jobs of one device each on 36 V100s, P100s and K80s, one every 9,000 s."""
    engine = EngineSettings(history_length=0, forecasts=False, rates=load_rates("gavel"))
    simulation = Simulation(
        load_trace(trace, 108), load_cluster("36x1:k80,36x1:p100,36x1:v100"),
        make("gavel-fifo"), Options(profile=PROFILES["gavel"], engine=engine),
    )  # fmt: skip
    simulation.run()
    return simulation


def in_steps(drawn: Trace, path: Path) -> str:
    """The same jobs written as Gavel writes traces, in whole steps, to be run on three kinds by the packaged table alone."""
    assert drawn.step_us is not None and drawn.workloads is not None
    with path.open("w") as file:
        for submit, duration, step, workload in zip(
            drawn.submit, drawn.duration, drawn.step_us, drawn.workloads, strict=True
        ):
            (phase,) = drawn.phases[workload]
            steps, at = round(duration / step), submit / SECOND
            file.write(f"{phase.workload}\tpython main.py\tx\t--steps\t1\t{steps}\t1\t1\t-1.0\t{at}\n")
    return f"gavel:{path},kind=v100+p100+k80"


def jct_h(simulation: Simulation, first: int, end: int) -> float:
    return float((simulation.outcomes.end - simulation.trace.submit)[first:end].mean()) / HOUR


@pytest.mark.parametrize("written", [False, True])
def test_gavels_continuous_jobs_at_first(written: bool, tmp_path: Path) -> None:
    trace = in_steps(load_trace(EARLY, 108), tmp_path / "continuous.trace") if written else EARLY
    assert jct_h(gavel_continuous(trace), 0, 200) == pytest.approx(GAVEL_EARLY_H, rel=1e-3 if written else 1e-8)


@pytest.mark.full
@pytest.mark.parametrize("written", [False, True])
def test_gavels_continuous_jobs(written: bool, tmp_path: Path) -> None:
    """Jobs 4000 to 5000 on kinds of different speed, in rounds of whole steps, by a policy that remembers: 17.5759 h."""
    trace = in_steps(load_trace(CONTINUOUS, 108), tmp_path / "continuous.trace") if written else CONTINUOUS
    simulation = gavel_continuous(trace)
    assert jct_h(simulation, 4000, 5000) == pytest.approx(17.5759, rel=1e-3)
    assert jct_h(simulation, 0, 200) == pytest.approx(GAVEL_EARLY_H, rel=1e-3 if written else 1e-8)


@needs_data
def test_gavels_own_table_and_trace_are_read() -> None:
    """Its simulation_throughputs.json is the packaged table, to the nine digits that are kept."""
    theirs, packaged = load_rates(str(DATA / "gavel" / "simulation_throughputs.json")), load_rates("gavel")
    key = [(row.workload, row.kind, row.devices, row.nodes) for row in packaged.throughputs]
    speeds = {(row.workload, row.kind, row.devices, row.nodes): row.per_s for row in theirs.throughputs}
    assert sorted(speeds) == sorted(key)
    assert [speeds[one] for one in key] == pytest.approx([row.per_s for row in packaged.throughputs], rel=1e-8)
    trace = load_trace(f"gavel:{DATA}/gavel/traces/physical_cluster/max_min_fairness.trace,kind=v100+p100+k80", 48)
    assert len(trace) == 96 and len(trace.phases) == 8 and len(trace.remarks) == 1


@pytest.mark.full
@needs_data
def test_gavel_job_by_job() -> None:
    """No job ends more than two allocations later or earlier than there: only when rounds start differs."""
    simulation = gavel_continuous()
    jct = (simulation.outcomes.end - simulation.trace.submit) / SECOND
    theirs = json.loads((DATA / "gavel" / "reruns" / "cont-fifo-9000-0.json").read_text())
    off = np.array([jct[int(job)] - seconds for job, seconds in theirs.items()])
    assert len(off) == 1000 and np.abs(off).max() < 2 * 1_920
    assert np.median(np.abs(off)) < 360


THEIRS = [
    ("tiresias:60", "4x4", "fifo", "fifo-count-n1s4g4", 0),
    ("tiresias:60", "4x4", "fjf", "fjf-count-n1s4g4", 0),
    ("tiresias:60", "4x4", "smallest", "sjf-count-n1s4g4", 0),
    ("tiresias:60", "4x4", "srtf", "shortest-count-n1s4g4", 0),
    ("tiresias:60", "4x4", "srsf", "shortest-gpu-count-n1s4g4", 2),
    ("tiresias:60", "4x4", "las", "dlas-gpu-count-n1s4g4", 0),
    ("tiresias:480", "15x4", "fifo", "fifo-480", 0),
    ("tiresias:480", "15x4", "srtf", "shortest-480", 0),
    ("tiresias:480", "15x4", "srsf", "shortest-gpu-480", 0),
    ("tiresias:480", "15x4", "las", "dlas-gpu-480", 5),
]


@needs_data
@pytest.mark.parametrize(("trace", "cluster", "policy", "rerun", "differ"), THEIRS)
def test_tiresias_job_by_job(trace: str, cluster: str, policy: str, rerun: str, differ: int) -> None:
    """Every job ends in the second in which it does there, but for ``differ`` of them that ties decide."""
    simulation = run(trace, cluster, policy, "tiresias")
    with (DATA / "tiresias" / "reruns" / f"{rerun}_job.csv").open() as lines:
        theirs = {row["job_id"]: float(row["end_time"]) for row in csv.DictReader(lines)}
    ours = dict(zip(simulation.trace.ids, (simulation.outcomes.end / SECOND).tolist(), strict=True))
    assert ours.keys() == theirs.keys()
    assert sum(ours[job] != theirs[job] for job in theirs) == differ


@needs_data
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("tiresias:60", "tiresias:{}/tiresias/60_job.csv"),
        ("tiresias:480", "tiresias:{}/tiresias/derived_philly_480_job.csv"),
        ("tiresias:5000", "tiresias:{}/tiresias/derived_philly_5000_job.csv"),
        ("helios:11cb48", "helios:{}/helios/derived_philly_vc_11cb48.csv"),
        ("pai:philly", "pai:{}/pai-2020/derived_philly_as_pai_20000.csv"),
        ("pai:philly,jobs=2000,rate=1000", "pai:{}/pai-2020/derived_philly_as_pai_20000.csv,jobs=2000,rate=1000"),
    ],
)
def test_packaged_traces_are_what_the_simulators_read(ours: str, theirs: str) -> None:
    made, read = load_trace(ours, 0), load_trace(theirs.format(DATA), 0)
    for column in ("duration", "devices"):
        assert getattr(made, column).tolist() == getattr(read, column).tolist()
    # Stretched arrivals are floored to seconds there before time is counted from the first, here after.
    assert abs(made.submit - read.submit).max() <= (SECOND if "5000" in ours else 0)


@needs_data
def test_clusters_of_tiresias_are_read() -> None:
    nodes = load_cluster(str(DATA / "tiresias" / "n256g8.csv"))
    assert (len(nodes), sum(node.devices for node in nodes)) == (256, 2048)
    assert len(dict.fromkeys(node.domain for node in nodes)) == 8, "a switch each 32 nodes"
