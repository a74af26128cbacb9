"""A comparison as one table for the terminal, and as data. It refuses to know how cells are run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from .accounts import account, completed_text
from .cells import CellResult, Comparison, ComparisonGroup, varying
from .figures import FIGURES, OF_JOBS, Figure, summary, written
from .standing import PARETO, Mark, dominated, marks, pareto_statements

SCHEMA = "tidewright.comparison/1"
SIGNS: dict[Mark, str] = {"best": " *", "level": " ≈", "": ""}
LEGEND = (
    "n: replicates; done: completed jobs, over which all of JCT, kept, ρ and preemptions are; kept: promises; "
    "*: best of its group; ≈: not distinguishable from the best at 95 % (paired by replicate); "
    "±: half-width of the 95 % interval of the mean; dominated by: as good in mean and p99 JCT, promises kept by count and by "
    "work, and ρ p99, and better in one. A policy that completed less than 99.9 % of the jobs that another did is not ranked."
)


def heading(comparison: Comparison) -> str:
    """What all groups have in common, in one line."""
    axes = varying(comparison.groups)
    first = comparison.groups[0].settings if comparison.groups else ()
    plain = ("none", "default", "of the profile", "of the trace", "as the trace has it")
    return ", ".join(f"{axis} {value}" for axis, value in first if axis not in axes and value not in plain)


def comparison_tables(comparison: Comparison, wide: bool, columns: int = 0) -> list[Table]:
    """One table, or one of jobs and one of the cluster where it is wider than a terminal's ``columns``; 0: as wide as it is."""
    shown = [figure for figure in FIGURES if wide or figure.core]
    whole = comparison_table(comparison, shown)
    if not columns or Measurement.get(Console(width=1_000), Console(width=1_000).options, whole).maximum <= columns:
        return [whole]
    return [
        comparison_table(comparison, [figure for figure in shown if (figure.key in OF_JOBS) == of_jobs])
        for of_jobs in (True, False)
    ]


def comparison_table(comparison: Comparison, shown: Sequence[Figure]) -> Table:
    """One row for each group and policy."""
    axes = varying(comparison.groups)
    grid = Table(title=Text(heading(comparison)), title_justify="left")
    for name in (*axes, "policy", "n", "done"):
        grid.add_column(name, justify="right" if name in ("n", "done") else "left", no_wrap=True)
    for figure in shown:
        grid.add_column(
            figure.title, justify="right", min_width=7
        )  # a narrow terminal breaks the line before an interval
    if PARETO[0] in {figure.key for figure in shown}:
        grid.add_column("dominated by")
    for group in comparison.groups:
        grid.add_section()
        for row in _rows(group, axes, shown):
            grid.add_row(*row)
    return grid


def _rows(group: ComparisonGroup, axes: Sequence[str], shown: Sequence[Figure]) -> list[list[Text]]:
    standing = {figure.key: marks(figure, group) for figure in shown}
    beaten = dominated(group)
    rows = []
    for policy, cells in group.policies.items():
        words = [value for axis, value in group.settings if axis in axes]
        row = [Text(word) for word in (*words, policy, str(len(cells)), completed_text(cells))]
        row += [_cell(figure, cells, standing[figure.key][policy]) for figure in shown]
        dominating = [Text(", ".join(beaten.get(policy, ())))] if PARETO[0] in standing else []
        rows.append(row + dominating)
    return rows


def _cell(figure: Figure, cells: Sequence[CellResult], mark: Mark) -> Text:
    return Text(written(figure, summary(figure, cells)) + SIGNS[mark], style="bold" if mark == "best" else "")


def as_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data: groups with their figures, every cell's result, and the failures."""
    return {
        "schema": SCHEMA, "command": comparison.command, "remarks": comparison.remarks,
        "figures": {figure.key: {"text": figure.text, "better": figure.better} for figure in FIGURES},
        "pareto": pareto_statements(comparison.groups),
        "groups": [_group_data(group) for group in comparison.groups],
        "failures": comparison.failures,
    }  # fmt: skip


def _group_data(group: ComparisonGroup) -> dict[str, Any]:
    standing = {figure.key: marks(figure, group) for figure in FIGURES}
    beaten = dominated(group)
    return {
        "settings": dict(group.settings),
        "policies": [
            {
                "policy": policy, "dominated_by": beaten.get(policy, []), "jobs": account(cells),
                "figures": {
                    figure.key: {**_interval_data(figure, cells), "mark": standing[figure.key][policy]} for figure in FIGURES
                },
                "cells": [
                    {"replicate": c.cell.replicate, "planning_s": c.planning_s, "cpu_s": c.cpu_s, "result": c.result}
                    for c in cells
                ],
            }
            for policy, cells in group.policies.items()
        ],
    }  # fmt: skip


def _interval_data(figure: Figure, cells: Sequence[CellResult]) -> dict[str, Any]:
    found = summary(figure, cells)
    return {"mean": found.mean, "half_width": found.half_width}
