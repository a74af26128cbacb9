"""Figures and their presentation: definitions checked by hand, the page needs nothing from outside."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from tidewright.base.errors import UsageError
from tidewright.base.units import SECOND
from tidewright.sim.clusters import load_cluster
from tidewright.sim.comparison.figures import kept_by_count
from tidewright.sim.costs import FREE
from tidewright.sim.meter import SLOTS, PoolMeter
from tidewright.sim.report import html, notes, table, tier_table
from tidewright.sim.result import SCHEMA, SimulationResult, from_json, to_json
from tidewright.sim.run import Options, simulate
from tidewright.sim.trace import make_trace
from tidewright.sim.traces import load_trace

from .planners import FirstCome


def run(label: str, load: float = 1.2) -> SimulationResult:
    trace = load_trace(f"synthetic:jobs=200,load={load},max=1h", 16)
    return simulate(trace, load_cluster("4x4"), FirstCome(), Options(cluster="4x4", label=label))


@given(
    st.lists(st.tuples(st.integers(0, 10**13), st.integers(0, 10**6), st.integers(0, 10**4)), min_size=1, max_size=30)
)
def test_the_meter_keeps_exact_areas_and_samples_that_add_up_to_them(steps: list[tuple[int, int, int]]) -> None:
    meter, held, queued = PoolMeter(), 0, 0
    for elapsed, held_milli, waiting in steps:
        meter.held_milli, meter.queued = held_milli, waiting
        meter.advance(meter.at + elapsed)
        held, queued = held + elapsed * held_milli, queued + elapsed * waiting
    assert (meter.held_area, meter.queued_area) == (held, queued)
    series = meter.series()
    assert len(series.queued) <= SLOTS
    spans = np.full(len(series.queued), float(series.width_us))
    if len(spans):
        spans[-1] = meter.at - series.width_us * (len(spans) - 1)
    assert float((spans * np.array(series.held_devices)).sum()) == pytest.approx(
        held / 1000, rel=1e-3, abs=0.001 * max(meter.at, 1)
    )
    assert float((spans * np.array(series.queued)).sum()) == pytest.approx(
        queued, rel=1e-3, abs=0.001 * max(meter.at, 1)
    )


def test_fairness_by_hand() -> None:
    """Two jobs of 100 s share one device one after the other: N is 2 for the first and 1.5 for the second."""
    trace = make_trace("two", np.array([0.0, 0.0]), np.array([100.0, 100.0]), np.array([1, 1]))
    result = simulate(trace, load_cluster("1x1"), FirstCome(), Options(costs=FREE))
    rhos = [100 / (100 * 2), 200 / (100 * 1.5)]
    assert result.rho_mean == pytest.approx(sum(rhos) / 2)
    assert result.rho_unfair == 0.5
    assert result.rho_worst == pytest.approx(max(rhos))


def test_tiers_by_hand() -> None:
    """Three 100 s jobs on one device: delivered fractions 1, 1/2, 1/3."""
    tier = np.array([2, 1, 0], np.int8)
    trace = make_trace("three", np.zeros(3), np.full(3, 100.0), np.ones(3, np.int64), tier=tier)
    result = simulate(trace, load_cluster("1x1"), FirstCome(), Options(costs=FREE))
    assert [(t.tier, t.jobs) for t in result.tiers] == [("premium", 1), ("standard", 1), ("basic", 1)]
    assert [t.fraction_mean for t in result.tiers] == pytest.approx([1, 1 / 2, 1 / 3])
    assert [t.attained for t in result.tiers] == [1.0, 0.0, 1.0]
    assert kept_by_count(result) == 0.5


def test_the_page_points_nowhere_and_names_every_policy() -> None:
    page = html([run("fifo"), run("<b>&odd$x$", 0.5)])
    assert "<b>" not in page
    assert "&lt;b&gt;&amp;odd$x$" in page
    assert page.count("<svg") == 4
    assert "http" not in page
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert not re.search(r"url\((?!#|'#|\"#)", page)


def test_the_page_is_the_same_every_time() -> None:
    results = [run("fifo")]
    assert html(results) == html(results)


def test_tables_show_every_policy_and_tier() -> None:
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    results = [run("first"), run("second")]
    console.print(table(results), tier_table(results))
    text = console.export_text()
    for word in ("first", "second", "premium", "standard", "basic", "JCT mean"):
        assert word in text


def test_a_policy_that_completed_nothing_has_no_figures_of_completed_jobs() -> None:
    trace = load_trace("synthetic:jobs=5", 16)
    none = simulate(trace, load_cluster("4x4"), FirstCome(), Options(cluster="4x4", label="none", horizon_us=0))
    some = run("some")
    assert (none.completed, none.unfinished) == (0, 5)
    console = Console(width=200, record=True, file=open("/dev/null", "w"))  # noqa: SIM115
    console.print(table([none, some]))
    first, second = [line for line in console.export_text().splitlines() if line.startswith("│")]
    assert first.count(" – ") == 7 and "–" not in second
    text = to_json([none, some])
    rows = msgspec.json.decode(text)
    figures = [key for key in rows[0] if key.startswith(("jct_m", "jct_p", "queue_m", "queue_p", "rho_"))]
    assert len(figures) == 9 and all(rows[0][key] is None and rows[1][key] is not None for key in figures)
    assert from_json(text) == [none, some]


def test_jobs_left_out_of_the_means_are_mentioned() -> None:
    result = msgspec.structs.replace(run("fifo"), unfinished=3, refused=2, refusals={"NeverFits": 2})
    assert notes([result]) == [
        "fifo: 3 jobs had not ended and are left out of the means",
        "fifo: 2 jobs were refused (NeverFits: 2)",
    ]


def test_json_of_another_version_is_refused() -> None:
    text = to_json([run("fifo")])
    assert SCHEMA.encode() in text
    with pytest.raises(UsageError, match="run the simulation again"):
        from_json(text.replace(SCHEMA.encode(), b"tidewright.simulation/0"))
    with pytest.raises(UsageError, match="not simulation results"):
        from_json(b"[{}]")


def test_a_series_starts_at_zero_and_covers_the_run() -> None:
    result = run("fifo")
    assert result.series.width_us * len(result.series.queued) >= result.makespan_s * SECOND
    assert result.series.width_us * (len(result.series.queued) - 1) < result.makespan_s * SECOND
