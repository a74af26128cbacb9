"""Plots of DISB results as SVG elements for the report. matplotlib (extra ``report``) is imported when the first is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import log10
from typing import Any

from ...report import figure
from .result import QUANTILES, DisbMatrix, DisbResult, over_dedicated

# Okabe & Ito's palette, distinct for colour-blind readers too, and four more for as many rows as there are.
COLOURS = (
    "#444b54", "#b08d57", "#d55e00", "#e69f00", "#f0e442", "#cc79a7", "#9a6fb0", "#7f6a00",
    "#56b4e9", "#0072b2", "#5fbf8f", "#00694c",
)  # fmt: skip
LEAST_PERCENT = 0.1
"""Increases are drawn on a logarithmic axis that begins here."""
_WIDE, _NARROW = (12.6, 4.2), (6.4, 4.4)


def rows_of(matrix: DisbMatrix) -> list[str]:
    """Labels of rows in the order of the results."""
    return list(dict.fromkeys(result.row for result in matrix.results))


def workloads_of(matrix: DisbMatrix) -> list[str]:
    """Names of workloads in the order of the results."""
    return list(dict.fromkeys(result.workload for result in matrix.results))


def colours(matrix: DisbMatrix) -> dict[str, str]:
    """Row to its colour."""
    return {row: COLOURS[at % len(COLOURS)] for at, row in enumerate(rows_of(matrix))}


def draw(kind: str, matrix: DisbMatrix) -> str:
    """One of ``KINDS`` as an ``<svg>`` element. Raises UsageError when matplotlib is not installed."""
    paint, size = KINDS[kind]
    return figure.inline_svg(kind, lambda axes: paint(axes, matrix), size)


def draw_png(kind: str, matrix: DisbMatrix) -> bytes:
    """The same as a PNG file. Raises UsageError when matplotlib is not installed."""
    paint, size = KINDS[kind]
    return figure.draw(kind, lambda axes: paint(axes, matrix), size, "png", "white")


def _grouped(
    axes: Any, matrix: DisbMatrix, of: Callable[[DisbResult], float], base: float
) -> list[tuple[float, DisbResult]]:
    """Bars of every row beside each other, by workload; where they stand."""
    rows, workloads, colour = rows_of(matrix), workloads_of(matrix), colours(matrix)
    width = 0.86 / len(rows)
    places = [
        (workloads.index(result.workload) + (rows.index(result.row) - (len(rows) - 1) / 2) * width, result)
        for result in matrix.results
    ]
    for row in rows:
        mine = [(place, max(of(result), base)) for place, result in places if result.row == row]
        axes.bar(
            [p for p, _ in mine], [h - base for _, h in mine], 0.92 * width, bottom=base, color=colour[row], label=row
        )
    axes.set_xticks(range(len(workloads)), workloads)
    axes.set_xlim(-0.55, len(workloads) - 0.45)
    axes.grid(False, axis="x")
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, 1.13), ncols=min(len(rows), 12), columnspacing=1.0, handlelength=1.0
    )
    return places


def _percent_axis(axis: Any) -> None:
    # FuncFormatter keeps "0.1%" where the default writes powers of ten.
    axis.set_major_formatter(lambda value, _: f"{value:g}%")


def _increase(axes: Any, matrix: DisbMatrix) -> None:
    axes.set_yscale("log")
    places = _grouped(axes, matrix, lambda result: 100 * result.rt_increase, LEAST_PERCENT)
    tails = [(place, 100 * result.rt_increase_p99) for place, result in places]
    shown = [(place, at) for place, at in tails if at > LEAST_PERCENT]
    axes.scatter([p for p, _ in shown], [at for _, at in shown], marker="_", s=34, color="#1c2733", zorder=3)
    axes.axhline(2, color="#1c2733", lw=1, ls=(0, (4, 2)))
    axes.set_ylim(LEAST_PERCENT, max([1000.0, *(2 * at for _, at in shown)]))
    _percent_axis(axes.yaxis)
    axes.set_ylabel("RT latency over alone")


def _work(axes: Any, matrix: DisbMatrix) -> None:
    places = _grouped(axes, matrix, lambda result: result.done, 0.0)
    width = 0.86 / len(rows_of(matrix))
    for place, result in places:
        axes.plot([place - 0.42 * width, place + 0.42 * width], [result.rt_done] * 2, color="#ffffff", lw=1.2)
    axes.axhline(1, color="#1c2733", lw=1, ls=(0, (4, 2)))
    axes.set_ylabel("work done, models alone = 1")


def _trade_off(axes: Any, matrix: DisbMatrix) -> None:
    colour = colours(matrix)
    points = []
    for row in rows_of(matrix):
        mine = [result for result in matrix.results if result.row == row]
        over = [result.rt_increase if (found := over_dedicated(matrix, result)) is None else found for result in mine]
        points.append((max(100 * sum(over) / len(over), LEAST_PERCENT), sum(r.done for r in mine) / len(mine), row))
        axes.scatter(*[[value] for value in points[-1][:2]], s=64, color=colour[row], zorder=3)
    axes.set_xscale("log")
    axes.axvline(2, color="#1c2733", lw=1, ls=(0, (4, 2)))
    axes.set_xlim(0.7 * LEAST_PERCENT, 8 * max(100.0, *(at for at, _, _ in points)))
    low, high = min(done for _, done, _ in points), max(done for _, done, _ in points)
    axes.set_ylim(low - 0.1, high + 0.25)
    names = _beside(points, 0.055 * (high - low + 0.35))
    for (increase, done, row), (right, at) in zip(points, names, strict=True):
        axes.annotate(
            row,
            (increase, done),
            (increase * (_GAP if right else 1 / _GAP), at),
            fontsize=8.5,
            va="center",
            ha="left" if right else "right",
            arrowprops={"arrowstyle": "-", "color": "#c3ccd4"} if at != done else None,
        )
    _percent_axis(axes.xaxis)
    axes.set_xlabel("RT latency over RT-only")
    axes.set_ylabel("work done")


_GAP = 1.25
"""Between a point and its name, as a factor of a logarithmic axis."""
_LETTER = 0.052
"""Decades that a letter is wide."""


def _beside(points: Sequence[tuple[float, float, str]], line: float) -> list[tuple[bool, float]]:
    """Where each point's name stands so that none covers another name or point: (right of it, height)."""
    taken = [(log10(increase) - 0.08, log10(increase) + 0.08, done) for increase, done, _ in points]
    found = []
    for increase, done, row in points:
        steps = sorted(range(-8, 9), key=abs)
        for step, right in ((step, right) for step in steps for right in (True, False)):
            at = done + step * line
            near = log10(increase) + (log10(_GAP) if right else -log10(_GAP))
            left, end = sorted((near, near + (1 if right else -1) * _LETTER * len(row)))
            if not any(
                abs(at - height) < line and left < other_end and end > other for other, other_end, height in taken
            ):
                break
        taken.append((left, end, at))
        found.append((right, at))
    return found


def _preemption(axes: Any, matrix: DisbMatrix) -> None:
    colour = colours(matrix)
    chosen = next((w for w in ("C", "D") if w in workloads_of(matrix)), workloads_of(matrix)[0])
    shown = [r for r in matrix.results if r.workload == chosen and r.preemption.latency_quantiles]
    for at, result in enumerate(shown):
        times = [max(us, 1.0) for us in result.preemption.latency_quantiles]
        axes.plot(
            times,
            [100 * share for share in QUANTILES],
            color=colour[result.row],
            label=result.row,
            lw=1.8,
            ls=("--", "-")[at % 2],
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g} µs" if value < 1000 else f"{value / 1000:g} ms")
    axes.set_ylim(0, 101)
    axes.set_ylabel(f"% of preemptions, workload {chosen}")
    if shown:
        axes.legend(loc="lower right")


KINDS: dict[str, tuple[Callable[[Any, DisbMatrix], None], tuple[float, float]]] = {
    "increase": (_increase, _WIDE),
    "work": (_work, _WIDE),
    "trade_off": (_trade_off, _NARROW),
    "preemption": (_preemption, _NARROW),
}
