"""What fillings tell: means over seeds for a table, every seed for programs, and a page with curves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np
from msgspec import Struct
from rich.table import Table

from ...base.units import counted
from ...report.figure import inline_svg
from ...report.page import body_row, head_row, page, plot_section
from ...report.page import table as page_table
from ..plots import COLOURS
from .experiment import FillFigures

SCHEMA = "tidewright.packing/1"
FULL = 100


class SeedResult(Struct, frozen=True, kw_only=True):
    """One order of arrivals. Per cents of the devices, but ``fragment_ratio``: of what is free. Curves are None where nothing is
    known."""

    seed: int
    exported: bool
    """Whether the order is the one of the authors' own runs."""
    pods: int
    failed: int
    refusals: dict[str, int]
    allocation_full: float
    """When as much was asked for as there is."""
    allocation: float
    """At the end."""
    fragmentation: float
    fragment_ratio: float
    allocation_curve: tuple[float | None, ...]
    fragmentation_curve: tuple[float | None, ...]


class PackingResult(Struct, frozen=True, kw_only=True):
    """One placement score over all seeds."""

    schema: str = SCHEMA
    placement: str
    trace: str
    devices: float
    pods_per_s: float
    """Of processor time."""
    seeds: tuple[SeedResult, ...]

    def mean(self, name: str) -> float:
        """Of a figure over the seeds."""
        return float(np.mean([getattr(one, name) for one in self.seeds]))

    def spread(self, name: str) -> float:
        """Standard deviation over the seeds; 0 for one seed."""
        values = [getattr(one, name) for one in self.seeds]
        return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def seed_result(seed: int, exported: bool, figures: FillFigures) -> SeedResult:
    """The figures of one filling."""
    last = int(np.flatnonzero(~np.isnan(figures.allocation))[-1])
    at = min(FULL, last)
    return SeedResult(
        seed=seed, exported=exported, pods=figures.pods, failed=figures.failed, refusals=figures.refusals,
        allocation_full=float(figures.allocation[at]), allocation=float(figures.allocation[last]),
        fragmentation=float(figures.fragmentation[last]), fragment_ratio=float(figures.fragment_ratio[last]),
        allocation_curve=_known(figures.allocation), fragmentation_curve=_known(figures.fragmentation),
    )  # fmt: skip


def _known(curve: Any) -> tuple[float | None, ...]:
    return tuple(None if np.isnan(value) else round(float(value), 3) for value in curve)


COLUMNS = (
    ("placement", "which node and devices"),
    ("allocated at 100 %", "of the devices, when as much was asked for as there is"),
    ("at the end", "of the devices, when all pods had come"),
    ("fragments", "free, and of no use to the pods that usually come, of the devices"),
    ("of what is free", "the same, of what is free"),
    ("failed pods", "found no room"),
    ("pods/s", "placed or refused, per second of processor time"),
)


def rows(results: Sequence[PackingResult]) -> list[tuple[str, ...]]:
    """Text for the columns, one row for each score."""
    return [
        (
            one.placement,
            *(_text(one, name) for name in ("allocation_full", "allocation", "fragmentation", "fragment_ratio")),
            f"{one.mean('failed'):,.0f}",
            f"{one.pods_per_s:,.0f}",
        )
        for one in results
    ]


def _text(result: PackingResult, name: str) -> str:
    spread = f" ±{result.spread(name):.2f}" if len(result.seeds) > 1 else ""
    return f"{result.mean(name):.2f}%{spread}"


def title(results: Sequence[PackingResult]) -> str:
    """What was filled, in one line."""
    first = results[0]
    seeds = [one.seed for one in first.seeds]
    text = f"seed {seeds[0]}" if len(seeds) == 1 else f"mean ± standard deviation over {len(seeds)} orders"
    return f"{first.trace}: {counted(round(first.mean('pods')), 'pod')} on {counted(round(first.devices), 'device')}, {text}"


def table(results: Sequence[PackingResult]) -> Table:
    """For the terminal."""
    grid = Table(title=title(results), title_justify="left")
    for at, (name, _) in enumerate(COLUMNS):
        grid.add_column(name, justify="right" if at else "left", no_wrap=True)
    for row in rows(results):
        grid.add_row(*row)
    return grid


def remarks(results: Sequence[PackingResult]) -> list[str]:
    """What a reader must know."""
    found = []
    drawn = [one.seed for one in results[0].seeds if not one.exported]
    if drawn:
        found.append(f"the order of seed {', '.join(map(str, drawn))} is drawn here, not one of the authors' own runs")
    for one in results:
        never = {why: sum(seed.refusals.get(why, 0) for seed in one.seeds) for why in ("kind", "size")}
        if any(never.values()):
            found.append(
                f"{one.placement}: {counted(never['kind'], 'pod')} of a kind of device, and {never['size']:,} of a size, "
                "that no node has"
            )
    return found


_PLOTS = (
    ("Allocated", "Of the devices. Each line is one order of arrivals.", "allocation_curve"),
    ("Fragments", "Free, and of no use to the pods that usually come (FGD), of the devices.", "fragmentation_curve"),
)


def html(results: Sequence[PackingResult]) -> str:
    """A self-contained page. Raises UsageError naming the extra to install when matplotlib is missing."""
    colours = {one.placement: COLOURS[at % len(COLOURS)] for at, one in enumerate(results)}
    notes = "".join(f"<li>{escape(note)}</li>" for note in remarks(results))
    cells = [body_row(row[0], colours[row[0]], row[1:]) for row in rows(results)]
    plots = "".join(
        plot_section(name, text, inline_svg(name, partial(_paint, results, colours, curve)))
        for name, text, curve in _PLOTS
    )
    body = (
        f"<section>{page_table(head_row(COLUMNS), cells)}{f'<ul>{notes}</ul>' if notes else ''}</section>"
        f'<div class="grid">{plots}</div>'
    )
    footer = "Pods arrive and never leave, as in FGD (ATC'23), section 6."
    return page(title(results), f"Packing: {', '.join(colours)}", body, footer)


def _paint(results: Sequence[PackingResult], colours: dict[str, str], curve: str, axes: Any) -> None:
    for one in results:
        for seed in one.seeds:
            values = [np.nan if value is None else value for value in getattr(seed, curve)]
            label = one.placement if seed is one.seeds[0] else None
            axes.plot(values, color=colours[one.placement], lw=1.3, label=label)
    axes.set_xlabel("asked for so far, % of the devices")
    axes.set_ylabel("%")
    axes.legend()
