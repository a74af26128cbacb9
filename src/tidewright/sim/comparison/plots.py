"""Plots of a comparison as SVG text: a figure by load with error bars, and completion times of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from ...report.figure import inline_svg
from ..plots import COLOURS, jct_axis
from .cells import CellResult, ComparisonGroup
from .figures import Figure, summary
from .interval import MeanInterval

Style = Mapping[str, Any]
_DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 1, 1, 1)))
_MARKS = "osD^vPX*"
_SIZE = (5.2, 3.5)
_PERCENT = 100.0


def styles(policies: Sequence[str]) -> dict[str, Style]:
    """A colour, a marker and a dash for each policy, the same in every plot."""
    count = len(COLOURS)
    return {
        name: {"color": COLOURS[at % count], "marker": _MARKS[at % count], "ls": _DASHES[at // count % len(_DASHES)]}
        for at, name in enumerate(policies)
    }


def by_load(salt: str, figure: Figure, groups: Sequence[ComparisonGroup], look: Mapping[str, Style]) -> str:
    """A figure over the groups, which differ in their load alone: a line for each policy, or bars of a single group."""

    def paint(axes: Any) -> None:
        if len(groups) > 1:
            paint_by_load(axes, figure, groups, look)
        else:
            _paint_bars(axes, figure, groups[0], look)

    return inline_svg(salt, paint, size=_SIZE)


def paint_by_load(axes: Any, figure: Figure, groups: Sequence[ComparisonGroup], look: Mapping[str, Style]) -> None:
    """The lines on axes; a load that the trace itself has stands at 0."""
    names = [dict(group.settings)["load"] for group in groups]
    places = [float(name) if name.replace(".", "", 1).isdigit() else 0.0 for name in names]
    scale, unit = _scale(figure)
    for policy, style in look.items():
        points = [
            (x, summary(figure, group.policies[policy]))
            for x, group in zip(places, groups, strict=True)
            if policy in group.policies
        ]
        axes.errorbar(
            [x for x, _ in points], [scale * found.mean for _, found in points],
            yerr=_errors([found for _, found in points], scale), label=policy, lw=1.6, ms=4.5, capsize=3, elinewidth=1, **style,
        )  # fmt: skip
    axes.set_xticks(places, ["trace" if at == 0 else f"{at:g}" for at in places])
    axes.set_xlabel("load")
    axes.set_ylabel(f"{figure.title}{unit}")
    found = [summary(figure, cells) for group in groups for cells in group.policies.values()]
    _limits(axes.set_ylim, axes.set_yscale, axes.yaxis, found, figure, scale)
    _legend(axes, len(look))


def _paint_bars(axes: Any, figure: Figure, group: ComparisonGroup, look: Mapping[str, Style]) -> None:
    scale, unit = _scale(figure)
    found = {policy: summary(figure, cells) for policy, cells in group.policies.items()}
    errors = _errors(list(found.values()), scale) if any(each.half_width for each in found.values()) else None
    axes.barh(
        range(len(found)), [scale * each.mean for each in found.values()], 0.66,
        xerr=errors, color=[look[policy]["color"] for policy in found], capsize=3,
        error_kw={"elinewidth": 1, "ecolor": "#1c2733"},
    )  # fmt: skip
    axes.set_yticks(range(len(found)), list(found))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.set_xlabel(f"{figure.title}{unit}")
    _limits(axes.set_xlim, axes.set_xscale, axes.xaxis, list(found.values()), figure, scale)


def _errors(found: Sequence[MeanInterval], scale: float) -> list[list[float]]:
    """Lengths of the bars below and above; none reaches below 0, where no figure is."""
    widths = [each.half_width or 0.0 for each in found]
    below = [min(width, each.mean) for width, each in zip(widths, found, strict=True)]
    return [[scale * width for width in below], [scale * width for width in widths]]


def _legend(axes: Any, policies: int) -> None:
    axes.legend(
        fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=min(policies, 4), columnspacing=1.2, handlelength=2.0
    )  # fmt: skip


def _scale(figure: Figure) -> tuple[float, str]:
    """Factor and unit in which a figure is drawn."""
    if figure.key.startswith("jct"):
        return 1 / 3600, ", hours"
    if figure.show(0.5) == "50.0%":
        return _PERCENT, ", %"
    return 1.0, ", s" if figure.key == "planning_s" else ""


def _limits(
    limit: Callable[..., Any],
    scaled: Callable[..., Any],
    axis: Any,
    found: Sequence[MeanInterval],
    figure: Figure,
    scale: float,
) -> None:
    """From 0; on a log scale where the largest mean is more than 30 times the smallest."""
    drawn = [scale * each.mean for each in found if each.mean > 0]
    if not drawn:
        return
    if max(drawn) > 30 * min(drawn) and scale != _PERCENT:
        scaled("log")
        limit(min(drawn) / 2, 2 * max(drawn))
        axis.set_major_formatter(lambda value, _: f"{value:,g}")
        axis.set_minor_formatter(lambda value, _: "")
        return
    top = max(scale * (each.mean + (each.half_width or 0.0)) for each in found if each.mean > 0)
    whole = scale == _PERCENT and figure.better == "high"
    limit(0, 104 if whole else 1.07 * top)


def jct_cdf(salt: str, group: ComparisonGroup, look: Mapping[str, Style]) -> str:
    """Share of jobs that ended within a time of submission; quantiles are means over the replicates."""

    def paint(axes: Any) -> None:
        drawn = {policy: quantiles(cells) for policy, cells in group.policies.items()}
        for policy, times in drawn.items():
            axes.plot(
                times,
                np.linspace(0, 100, len(times)),
                label=policy,
                lw=1.6,
                color=look[policy]["color"],
                ls=look[policy]["ls"],
            )
        jct_axis(axes, [times for times in drawn.values() if len(times)])
        _legend(axes, len(drawn))

    return inline_svg(salt, paint, size=_SIZE)


def quantiles(cells: Sequence[CellResult]) -> list[float]:
    """JCT at 0, 0.5, … 100 per cent, at least a second."""
    return [
        max(fmean(times), 1.0)
        for times in zip(*(cell.result.jct_quantiles_s for cell in cells), strict=False)
    ]  # fmt: skip
