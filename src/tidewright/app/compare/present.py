"""A comparison for people and programs: the table, remarks, JSON, and the page."""

from __future__ import annotations

from typing import Any

import msgspec

from ...sim.comparison import accounts
from ...sim.comparison.cells import Comparison, label, varying
from ...sim.comparison.page import comparison_page
from ...sim.comparison.standing import pareto_statements
from ...sim.comparison.table import LEGEND, as_data, comparison_tables


def tables(comparison: Comparison, wide: bool, columns: int) -> list[Any]:
    """Rich tables: one, or two where that does not fit into a terminal's columns; 0: no terminal."""
    return list(comparison_tables(comparison, wide, columns))


def remarks(comparison: Comparison) -> list[str]:
    """What a reader of the table must know."""
    if not comparison.groups:
        return list(comparison.remarks)
    found = [*comparison.remarks, *accounts.remarks(comparison), *pareto_statements(comparison.groups)]
    return [*found, LEGEND, "-o wide shows every figure"]


def failures(comparison: Comparison) -> list[str]:
    """A line for each cell that failed, with the command that runs it alone."""
    axes = varying(comparison.groups)
    lines = []
    for failure in comparison.failures:
        where = ", ".join(part for part in (label(failure.cell.settings, axes), failure.cell.replicate) if part)
        lines.append(f"{failure.cell.policy}, {where}: {failure.cause}\n  alone: {failure.command}")
    return lines


def as_json(comparison: Comparison) -> bytes:
    """The comparison as JSON, indented."""
    return msgspec.json.format(msgspec.json.encode(as_data(comparison)), indent=2)


def page(comparison: Comparison) -> str:
    """A self-contained HTML page. Raises UsageError when matplotlib is not installed."""
    return comparison_page(comparison)
