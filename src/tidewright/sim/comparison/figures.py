"""The figures by which policies are compared: what each is, which way is better, and how it is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from ..report import duration, percent
from ..result import SimulationResult, TierResult
from .cells import CellResult
from .interval import MeanInterval, interval


class Figure(Struct, frozen=True, kw_only=True):
    """``better`` names the direction, empty where neither is; ``core``: shown where there is little room."""

    key: str
    title: str
    text: str
    of: Callable[[CellResult], float]
    show: Callable[[float], str]
    better: Literal["low", "high", ""] = "low"
    core: bool = True
    long_title: str = ""
    of_completed: bool = True
    """Whether it is over completed jobs alone."""


def promised(result: SimulationResult) -> list[TierResult]:
    """The tiers that are promised something and have jobs."""
    return [tier for tier in result.tiers if tier.target and tier.jobs]


def kept_by_count(result: SimulationResult) -> float:
    """Share of premium and standard jobs that got the GPU fraction of their tier."""
    tiers = promised(result)
    return sum(tier.attained * tier.jobs for tier in tiers) / max(sum(tier.jobs for tier in tiers), 1)


def kept_by_work(result: SimulationResult) -> float:
    """The same, each job weighted by its device-time."""
    tiers = promised(result)
    return sum(tier.attained_by_work * tier.work_s for tier in tiers) / max(sum(tier.work_s for tier in tiers), 1e-9)


def attainable(result: SimulationResult) -> float:
    """The share by count that could be kept with the cluster to each job itself: launching takes time."""
    tiers = promised(result)
    return sum(tier.attainable * tier.jobs for tier in tiers) / max(sum(tier.jobs for tier in tiers), 1)


def preemptions_per_hour(result: SimulationResult) -> float:
    """Preemptions over the hours that completed jobs had to run."""
    return result.preemptions / max(result.run_hours, 1e-9)


def _plain(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 1000 else f"{value:,.0f}"


def _seconds(value: float) -> str:
    return f"{value:,.1f} s" if value < 100 else f"{value:,.0f} s"


FIGURES: tuple[Figure, ...] = (
    Figure(
        key="jct_mean_s", title="JCT mean", text="completion minus submission", of=lambda c: c.result.jct_mean_s, show=duration,
    ),
    Figure(
        key="jct_median_s", title="median", text="JCT, half of the jobs", of=lambda c: c.result.jct_median_s, show=duration,
        core=False,
    ),
    Figure(key="jct_p99_s", title="JCT p99", text="all but one in a hundred", of=lambda c: c.result.jct_p99_s, show=duration),
    Figure(
        key="kept_by_count", title="kept, count", long_title="Promises kept, by count",
        text="premium and standard jobs that got the GPU fraction of their tier",
        of=lambda c: kept_by_count(c.result), show=percent, better="high",
    ),
    Figure(
        key="kept_by_work", title="kept, work", long_title="Promises kept, by work",
        text="the same, each job weighted by its device-time",
        of=lambda c: kept_by_work(c.result), show=percent, better="high",
    ),
    Figure(
        key="rho_p99", title="ρ p99", text="finish-time fairness of the worst-treated hundredth",
        of=lambda c: c.result.rho_p99, show=_plain,
    ),
    Figure(
        key="rho_worst", title="ρ worst", text="of the job treated worst", of=lambda c: c.result.rho_worst, show=_plain,
        core=False,
    ),
    Figure(
        key="preemptions_per_hour", title="preempt./h", long_title="Preemptions per hour of run",
        text="preemptions per hour that completed jobs had to run",
        of=lambda c: preemptions_per_hour(c.result), show=_plain,
    ),
    Figure(
        key="utilisation", title="util.", long_title="Utilisation", text="device-time held until the last job is admitted",
        of=lambda c: c.result.utilisation_arriving, show=percent, better="",
        of_completed=False,
    ),
    Figure(
        key="fragmentation", title="frag.", long_title="Fragmentation",
        text="free device-time until the last submission that a job like the trace's could not use: too few devices on a node",
        of=lambda c: c.result.fragmentation, show=percent, core=False, of_completed=False,
    ),
    Figure(
        key="gpu_hours", title="GPU-hours", text="device-time held in all; it includes launching, saving and repeating",
        of=lambda c: c.result.held_device_hours, show=lambda value: f"{value:,.0f}", core=False,
        of_completed=False,
    ),
    Figure(
        key="planning_s", title="planning", text="processor time of the policy; differs from machine to machine",
        of=lambda c: c.planning_s, show=_seconds, better="", core=False,
        of_completed=False,
    ),
)  # fmt: skip
OF_JOBS = ("jct_mean_s", "jct_median_s", "jct_p99_s", "kept_by_count", "kept_by_work", "rho_p99", "rho_worst")
"""What jobs see; the other figures are about the cluster."""
FIGURE = {figure.key: figure for figure in FIGURES}


def values(figure: Figure, cells: Sequence[CellResult]) -> dict[str, float]:
    """Replicate to the figure's value."""
    return {cell.cell.replicate: value_of(figure, cell) for cell in cells}


def value_of(figure: Figure, cell: CellResult) -> float:
    """The figure of one cell; not a number where it is over completed jobs and there are none."""
    return figure.of(cell) if cell.result.completed or not figure.of_completed else math.nan


def summary(figure: Figure, cells: Sequence[CellResult]) -> MeanInterval:
    """Mean and interval over the replicates."""
    return interval([value_of(figure, cell) for cell in cells])


def written(figure: Figure, found: MeanInterval) -> str:
    """``"93.4% ± 0.3%"``, the value alone where there is no interval, a dash where no job has ended."""
    if not math.isfinite(found.mean):
        return "–"
    text = figure.show(found.mean)
    if found.half_width is None:
        return text
    return f"{text} ± {figure.show(found.half_width) if found.half_width else 0}"
