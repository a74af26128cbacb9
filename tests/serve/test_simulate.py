"""The simulator: its figures add up, equal seeds give equal figures, overload and bursts end as they should."""

from __future__ import annotations

import math
import os
import tarfile
from pathlib import Path

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.serve.admission import AdmissionRule, target_batch
from tidewright.serve.arrivals import SYNTHETIC_BURST, RateCurve, along, poisson, read_day, read_rates
from tidewright.serve.autoscale import Autoscaler, ScalingSettings, replica_capacity
from tidewright.serve.lane import ServedModel
from tidewright.serve.profile import affine, packaged_profile
from tidewright.serve.routing import PoolSettings
from tidewright.serve.simulate import OfferedLoad, PoolSimulation, SimulatedPool, simulate

from ..sizes import examples
from .driving import ADMISSIONS, POLICIES, PROFILES, served

DATA = Path(os.environ.get("TIDEWRIGHT_DATA", Path(__file__).parents[2].parent / "shared" / "data"))
QPS = DATA / "genai-2026" / "qps.tar.gz"
PROFILE = affine(400, 8_000, 64)
OBJECTIVE_US = 50_000


@settings(max_examples=examples(40))
@given(PROFILES, POLICIES, ADMISSIONS, st.integers(1, 3), st.integers(1, 1_500), st.floats(0, 0.3), st.integers(0, 9))
def test_figures_add_up_and_repeat(profile, policy, admission, replicas, rate, noise, seed) -> None:  # type: ignore[no-untyped-def]
    loads = [OfferedLoad("m", poisson(rate, SECOND // 4, seed))]
    pool = SimulatedPool([served(profile, 40_000, policy)], replicas, PoolSettings(admission), noise, seed)
    run = PoolSimulation(pool, loads)
    found = run.run()
    assert found.offered == len(loads[0].times_us) == found.answered + found.refused
    assert found.within <= found.answered == sum(run.sizes)
    assert found.p50_us <= found.p99_us and found.busy_s <= found.replica_s + 1e-6
    assert simulate(pool, loads) == found


def test_another_seed_gives_other_figures() -> None:
    runs = [
        simulate(SimulatedPool([served(PROFILE, OBJECTIVE_US, "deferred")], 1, noise=0.1, seed=seed),
                 [OfferedLoad("m", poisson(500, SECOND, seed))])
        for seed in (1, 2)
    ]  # fmt: skip
    assert runs[0] != runs[1]


@pytest.mark.parametrize("replicas", [1, 4])
def test_ten_times_overload_keeps_the_goodput_with_admission_and_loses_it_without(replicas: int) -> None:
    rate = 10 * replicas * replica_capacity(PROFILE.table(), OBJECTIVE_US, replicas)
    loads = [OfferedLoad("m", poisson(rate, SECOND // 2, 3))]
    kept, lost = (
        simulate(SimulatedPool([served(PROFILE, OBJECTIVE_US, policy)], replicas, PoolSettings(rule)), loads)
        for policy, rule in (("deferred", AdmissionRule.DEADLINE), ("eager", AdmissionRule.NONE))
    )
    assert kept.goodput >= 0.9 * rate / 10 and kept.within == kept.answered
    assert lost.goodput < 0.2 * kept.goodput


def test_deferred_keeps_replicas_free_under_low_load() -> None:
    loads = [OfferedLoad("m", poisson(1_500, 2 * SECOND, 3))]
    eager, deferred = (
        simulate(SimulatedPool([served(PROFILE, OBJECTIVE_US, policy)], 4), loads) for policy in ("eager", "deferred")
    )
    assert deferred.attainment == eager.attainment == 1.0
    assert deferred.busy_s < 0.6 * eager.busy_s and deferred.mean_batch > 2 * eager.mean_batch


def test_best_effort_uses_the_gaps_and_costs_no_real_time_answer() -> None:
    model, times = served(PROFILE, OBJECTIVE_US, "deferred"), poisson(300, 2 * SECOND, 3)
    filler = OfferedLoad("m", numpy.zeros(2_000, numpy.int64), best_effort=True)
    alone = simulate(SimulatedPool([model], 1), [OfferedLoad("m", times)])
    both = simulate(SimulatedPool([model], 1), [OfferedLoad("m", times), filler])
    assert both.best_effort_answered == 2_000 and both.offered == alone.offered
    assert both.attainment > 0.99 * alone.attainment


def test_a_burst_is_served_by_a_scaler_with_fewer_replicas_than_its_peak_needs_all_along() -> None:
    slow = affine(4_000, 8_000, 64)  # few requests are many replicas' worth
    times = along(SYNTHETIC_BURST, 1.2 * replica_capacity(slow.table(), OBJECTIVE_US, 4), 5)
    scaler = Autoscaler(slow.table(), OBJECTIVE_US, ScalingSettings(1, 8, horizon_us=SECOND, hold_us=5 * SECOND))
    pool = SimulatedPool([served(slow, OBJECTIVE_US, "deferred")], 1, PoolSettings(cold_start_us=SECOND))
    scaled = simulate(pool, [OfferedLoad("m", times)], scaler)
    fixed = simulate(SimulatedPool(pool.models, 1, pool.settings), [OfferedLoad("m", times)])
    assert scaled.attainment > 0.9 > fixed.attainment
    assert scaled.replica_s < 0.7 * 8 * 30


def test_from_zero_the_first_request_starts_a_replica_and_idle_time_ends_it() -> None:
    times = numpy.array([SECOND, 4 * SECOND, 5 * SECOND, 100 * SECOND, 104 * SECOND], numpy.int64)
    scaler = Autoscaler(
        PROFILE.table(), OBJECTIVE_US, ScalingSettings(0, 4, horizon_us=2 * SECOND, idle_us=10 * SECOND)
    )
    pool = SimulatedPool([served(PROFILE, OBJECTIVE_US, "deferred")], 0, PoolSettings(cold_start_us=2 * SECOND))
    run = PoolSimulation(pool, [OfferedLoad("m", times)], scaler)
    found = run.run()
    assert [latency >= 0 for latency in run.latency_us] == [False, True, True, False, True]
    assert found.replica_s < 25


def test_the_batch_that_the_load_needs() -> None:
    table = affine(1_000, 9_000, 64).table()
    assert target_batch(table, 1, 0.0, 50_000) == 1
    assert target_batch(table, 1, 500.0, 50_000) == 9  # 9 / (9 + 9 ms) carries 500/s
    assert target_batch(table, 1, 1e9, 50_000) == 40  # none does: the largest within 50 ms less the time to fill it


def test_arrivals_have_the_rate_that_was_asked_for() -> None:
    times = poisson(1_000, 20 * SECOND, 1)
    assert len(times) == pytest.approx(20_000, abs=600) and (numpy.diff(times) >= 0).all()
    burst = along(SYNTHETIC_BURST, 1_000, 1)
    assert len(burst) / 30 == pytest.approx(1_000, rel=0.05) and (numpy.diff(burst) >= 0).all()
    assert not len(poisson(0, SECOND, 1))


@pytest.mark.skipif(not QPS.is_file(), reason=f"no recorded burst in {QPS}; set TIDEWRIGHT_DATA")
def test_the_recorded_burst_is_read(tmp_path: Path) -> None:
    with tarfile.open(QPS) as archive:
        archive.extract("qps.csv", tmp_path, filter="data")
    curve = read_rates(
        tmp_path / "qps.csv", request_type="Generative Requests", bin_us=SECOND // 10, first=300, bins=60
    )
    assert len(curve.rates) == 60 and max(curve.rates) == pytest.approx(6.84, abs=0.01)
    found = simulate(
        SimulatedPool([ServedModel("m", packaged_profile("resnet50-v100-amp"), OBJECTIVE_US)], 1),
        [OfferedLoad("m", along(curve, 1_000, 1))],
    )
    assert found.attainment > 0.99


def test_bad_input_says_what_to_do(tmp_path: Path) -> None:
    for rate in (math.nan, math.inf, -1.0):
        with pytest.raises(UsageError, match="finite rate"):
            poisson(rate, SECOND, 1)
    for rates in ((), (0.0,), (math.nan,), (-1.0, 2.0)):
        with pytest.raises(UsageError, match="finite rates"):
            RateCurve(rates, SECOND, "")
    with pytest.raises(UsageError, match=r"qps\.csv"):
        read_rates(tmp_path / "none.csv", request_type="x", bin_us=1)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UsageError, match=r"qps\.csv"):
        read_rates(tmp_path / "other.csv", request_type="x", bin_us=1)
    model = served(PROFILE, OBJECTIVE_US, "eager")
    with pytest.raises(UsageError, match="finite noise"):
        simulate(SimulatedPool([model], 1, noise=math.nan), [])
    with pytest.raises(UsageError, match="give the pool replicas"):
        simulate(SimulatedPool([model], 0, PoolSettings(AdmissionRule.NONE)), [OfferedLoad("m", poisson(5, SECOND, 1))])


def test_a_day_by_the_clock_has_bins_without_requests(tmp_path: Path) -> None:
    path = tmp_path / "qps.csv"
    rows = ("1000.0,0.5,a,X", "1000.0,0.25,b,X", "1057.0,1,a,X", "1228.0,2,a,X", "1171.0,9,a,Y")
    path.write_text("\n".join(("timestamp_anon,value,container_ip,request_type", *rows)))
    assert read_day(path, "X").rates == (0.75, 1.0, 0.0, 0.0, 2.0)
    with pytest.raises(UsageError, match="no rates of 'Z'"):
        read_day(path, "Z")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1057.0,1,a", "line 3: not as many cells"),
        ("1057.0,1,a,X,more", "line 3: not as many cells"),
        ("1057.0,nan,a,X", "line 3: 'nan' is no finite number"),
        ("inf,1,a,X", "line 3: 'inf' is no finite number"),
        ("1057.0,-1,a,X", "line 3: '-1' is no finite number"),
        ("1057.0,one,a,X", "line 3: could not convert"),
        ('1057.0,1,"a,X', "line 2: unexpected end of data"),
    ],
)
def test_a_damaged_recording_is_a_mistake_at_its_line(tmp_path: Path, row: str, said: str) -> None:
    path = tmp_path / "qps.csv"
    path.write_text(f"timestamp_anon,value,container_ip,request_type\n1000.0,1,a,X\n{row}\n")
    with pytest.raises(UsageError, match=said):
        read_day(path, "X")
