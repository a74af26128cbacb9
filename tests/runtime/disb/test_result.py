"""Summaries, what a meter makes of a run, and results as files."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.runtime.disb.arrivals import IntendedLaunch
from tidewright.runtime.disb.meter import DisbMeter, preemption_figures
from tidewright.runtime.disb.result import (
    DisbMatrix,
    DisbResult,
    LatencySummary,
    PreemptionFigures,
    dump_results,
    load_results,
    over_dedicated,
    quantile,
    summarize,
)
from tidewright.runtime.disb.workload import load_workload

MS = 1_000_000


def metered(row: str, latency_ms: int, count: int = 4) -> DisbResult:
    """A second of workload A: ``count`` real-time requests, each launched 1 ms late, and two best-effort ones."""
    meter = DisbMeter(load_workload("A"), {"vgg19_rt": 5 * MS, "resnet152_be": 10 * MS}, 1_000 * MS)
    for at in range(count):
        launch = IntendedLaunch(at * 10 * MS, at * 10 * MS + MS)
        meter.launched("vgg19_rt")
        meter.completed("vgg19_rt", launch, launch.at + latency_ms * MS)
    for begin, end in ((0, 20 * MS), (20 * MS, 60 * MS), (60 * MS, 1_001 * MS)):
        meter.launched("resnet152_be")
        meter.completed("resnet152_be", IntendedLaunch(begin, begin), end)
    return meter.result(row, "model", "closed", 0, {"vgg19_rt": 3}, 0.5, PreemptionFigures())


def test_a_run_by_hand() -> None:
    found = metered("x", 6)
    assert found.rt == LatencySummary(4, 6000.0, 6000.0, 6000.0, 6000.0, 6000.0)
    assert found.rt_since_intended.mean == 7000.0
    # 6 ms where the model alone takes 5; DISB's own percentage would divide by 6.
    assert found.rt_increase == pytest.approx(0.2) and found.clients[0].increase == pytest.approx(0.2)
    # The request that ends after the second is launched and not completed.
    assert (found.clients[1].launched, found.clients[1].completed) == (3, 2)
    assert (found.rt_per_second, found.be_per_second, found.per_second) == (4.0, 2.0, 6.0)
    assert (found.rt_done, found.be_done) == (pytest.approx(0.020), pytest.approx(0.020))
    assert found.dropped == 3


def test_increase_over_a_dedicated_device() -> None:
    results = (metered("RT-only", 5), metered("x", 6), metered("none", 6, count=0))
    matrix = DisbMatrix("d", results)
    assert [over_dedicated(matrix, result) for result in results] == [0.0, pytest.approx(0.2), None]
    assert over_dedicated(DisbMatrix("d", results[1:]), results[1]) is None


def test_nothing_completed_is_no_latency() -> None:
    assert summarize([]) == LatencySummary()
    assert quantile([], 0.5) == 0.0
    assert metered("x", 6, count=0).rt_increase == 0.0


@settings(derandomize=True)
@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300))
def test_quantiles_are_values_and_ascend(values: list[float]) -> None:
    ordered = sorted(values)
    assert quantile(ordered, 0.0) == ordered[0] and quantile(ordered, 1.0) == ordered[-1]
    found = [quantile(ordered, share / 100) for share in range(101)]
    assert found == sorted(found) and set(found) <= set(values)
    # Nearest rank: at least half of the values are no larger than the median, and fewer than half are smaller.
    median = quantile(ordered, 0.5)
    assert 2 * sum(value <= median for value in values) >= len(values) > 2 * sum(value < median for value in values)


def test_preemption_figures() -> None:
    found = preemption_figures([30_000, 10_000, 20_000], [8_000], 0.25)
    assert (found.latency.p50, found.latency.max, found.restore.mean, found.wasted) == (20.0, 30.0, 8.0, 0.25)
    assert found.latency_quantiles[0] == 10.0 and found.latency_quantiles[-1] == 30.0
    assert preemption_figures([], [], 0.0).latency_quantiles == ()


def test_results_survive_their_file() -> None:
    matrix = DisbMatrix("model of d", (metered("x", 6),), (("sms", "60"),))
    assert load_results(dump_results(matrix)) == matrix
    assert matrix.modelled


@pytest.mark.parametrize("data", [b"", b"{}", dump_results(msgspec.structs.replace(DisbMatrix("d", ()), format=99))])
def test_what_are_no_results_is_refused(data: bytes) -> None:
    with pytest.raises(UsageError):
        load_results(data)
