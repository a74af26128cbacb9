"""Plots of results as SVG text for the HTML report. It refuses to know where they are shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..report.figure import inline_svg
from .meter import Series
from .result import SimulationResult

# Okabe & Ito's palette: distinct for colour-blind readers too.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#7f6a00", "#444b54")
_SPANS = (
    (1, "1s"),
    (10, "10s"),
    (60, "1m"),
    (600, "10m"),
    (3600, "1h"),
    (36_000, "10h"),
    (86_400, "1d"),
    (864_000, "10d"),
    (8_640_000, "100d"),
)


def draw(kind: str, results: Sequence[SimulationResult], colours: dict[str, str]) -> str:
    """One of the kinds in ``_DRAW`` as an ``<svg>`` element. Raises UsageError when matplotlib is not installed."""
    return inline_svg(kind, lambda axes: _DRAW[kind](axes, results, colours))


def _jct_cdf(axes: Any, results: Sequence[SimulationResult], colours: dict[str, str]) -> None:
    for result in results:
        times = np.maximum(result.jct_quantiles_s, 1.0)
        axes.plot(times, np.linspace(0, 100, len(times)), color=colours[result.policy], label=result.policy, lw=1.8)
    jct_axis(axes, [result.jct_quantiles_s for result in results if result.jct_quantiles_s])
    axes.legend(loc="lower right")


def jct_axis(axes: Any, drawn: Sequence[Sequence[float]]) -> None:
    """Times from the shortest to the longest of ascending seconds on a log scale, and shares of jobs."""
    longest = max((times[-1] for times in drawn), default=1.0)
    shortest = min((times[0] for times in drawn), default=1.0)
    ticks = [span for span in _SPANS if span[0] <= 1.5 * longest]
    axes.set_xscale("log")
    axes.set_xticks([at for at, _ in ticks], [name for _, name in ticks])
    axes.set_xlim(max(0.7 * shortest, 0.9), 1.3 * max(longest, 10))
    axes.minorticks_off()
    axes.set_ylim(0, 101)
    axes.set_ylabel("% of completed jobs")


def _times(series: Series) -> tuple[Any, str]:
    """Left edges of the samples, and the unit they are in."""
    edges = np.arange(len(series.queued) + 1) * (series.width_us / 3_600_000_000)
    return (edges / 24, "days") if len(edges) and edges[-1] > 72 else (edges, "hours")


def _over_time(
    axes: Any, results: Sequence[SimulationResult], colours: dict[str, str], of: Callable[[SimulationResult], Any]
) -> None:
    # Every run is drawn in the unit of the longest, so that they can be compared.
    longest = max(results, key=lambda result: result.makespan_s)
    unit = _times(longest.series)[1]
    for result in results:
        hours = np.arange(len(result.series.queued) + 1) * (result.series.width_us / 3_600_000_000)
        edges = hours / 24 if unit == "days" else hours
        axes.stairs(of(result), edges, color=colours[result.policy], label=result.policy, lw=1.4, baseline=None)
    axes.set_xlabel(f"{unit} since the first submission")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)


def _queue(axes: Any, results: Sequence[SimulationResult], colours: dict[str, str]) -> None:
    _over_time(axes, results, colours, lambda result: np.array(result.series.queued))
    axes.set_ylabel("jobs waiting")
    axes.legend(loc="upper right")


def _held(axes: Any, results: Sequence[SimulationResult], colours: dict[str, str]) -> None:
    _over_time(axes, results, colours, lambda result: 100 * np.array(result.series.held_devices) / result.devices)
    axes.set_ylim(0, 103)
    axes.set_ylabel("% of devices")
    axes.legend(loc="lower left")


def _tiers(axes: Any, results: Sequence[SimulationResult], colours: dict[str, str]) -> None:
    tiers = [tier for tier in results[0].tiers if any(t.jobs for r in results for t in r.tiers if t.tier == tier.tier)]
    width = 0.8 / len(results)
    for at, result in enumerate(results):
        mine = [next(t for t in result.tiers if t.tier == tier.tier) for tier in tiers]
        places = np.arange(len(tiers)) + (at - (len(results) - 1) / 2) * width
        means = np.array([tier.fraction_mean for tier in mine])
        low = np.clip(means - np.array([tier.fraction_p5 for tier in mine]), 0, None)
        axes.bar(places, means, 0.9 * width, color=colours[result.policy], label=result.policy)
        axes.errorbar(
            places, means, yerr=[low, np.zeros_like(low)], fmt="none", ecolor="#1c2733", elinewidth=0.9, capsize=2
        )
    for place, tier in enumerate(tiers):
        if tier.target:
            axes.plot([place - 0.46, place + 0.46], [tier.target] * 2, color="#1c2733", lw=1.2, ls=(0, (4, 2)))
            axes.annotate(f"{tier.target:.2f}", (place + 0.47, tier.target), fontsize=8.5, va="center", color="#1c2733")
    axes.set_xticks(range(len(tiers)), [tier.tier for tier in tiers])
    axes.set_xlim(-0.6, len(tiers) - 0.4)
    axes.set_ylim(0, 1.05)
    axes.grid(False, axis="x")
    axes.set_ylabel("delivered GPU fraction")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=min(len(results), 6), columnspacing=1.2, handlelength=1.2
    )


_DRAW: dict[str, Callable[[Any, Sequence[SimulationResult], dict[str, str]], None]] = {
    "jct_cdf": _jct_cdf,
    "queue": _queue,
    "held": _held,
    "tiers": _tiers,
}
