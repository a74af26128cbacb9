"""A comparison as one HTML page that loads nothing: what dominates what, plots by load, tables, and the command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ...base.units import counted
from ...report.page import head_row, page, plot_section
from ...report.page import table as page_table
from . import accounts
from .accounts import completed_text
from .cells import Comparison, ComparisonGroup, Settings, label, varying
from .figures import FIGURES, OF_JOBS, Figure, summary, written
from .plots import Style, by_load, jct_cdf, styles
from .standing import dominated, marks, pareto_statements
from .table import LEGEND, SIGNS, heading

_DRAWN = (
    "jct_mean_s",
    "jct_p99_s",
    "kept_by_count",
    "kept_by_work",
    "rho_p99",
    "preemptions_per_hour",
    "utilisation",
    "fragmentation",
)
_DISTRIBUTIONS = 12
"""Most groups for which the distribution of completion times is drawn: each is a plot of its own."""
PARETO_TEXT = (
    "A policy is dominated where another is at least as good in all of mean JCT, p99 JCT, promises kept by count and by "
    "work, and ρ p99, and better in one."
)


def comparison_page(comparison: Comparison) -> str:
    """A self-contained page. Raises UsageError naming the extra to install when matplotlib is missing."""
    look = styles(comparison.policies)
    body = f"{_findings(comparison)}{_plots(comparison, look)}{_tables(comparison, look)}{_again(comparison)}"
    title = heading(comparison) or "several traces"
    return page(title, f"Comparison: {', '.join(comparison.policies)}", body, LEGEND, wide=True)


def _findings(comparison: Comparison) -> str:
    axes = varying(comparison.groups)
    failed = [
        f"failed: {failure.cell.policy}, {failure.cell.replicate}, {label(failure.cell.settings, axes)}: {failure.cause}; "
        f"alone: {failure.command}"
        for failure in comparison.failures
    ]
    remarks = [*comparison.remarks, *accounts.remarks(comparison)]
    warning = f'<ul class="warning">{_items(failed)}</ul>' if failed else ""
    notes = f'<h2 style="margin-top:18px">Remarks</h2><ul>{_items(remarks)}</ul>' if remarks else ""
    return (
        f"<section><h2>Does any policy beat another in everything?</h2><p>{escape(PARETO_TEXT)}</p>"
        f"<ul>{_items(pareto_statements(comparison.groups))}</ul>{warning}{notes}</section>"
    )


def _again(comparison: Comparison) -> str:
    cells = sum(len(found) for group in comparison.groups for found in group.policies.values())
    return (
        f"<section><h2>How to run it again</h2><p>{counted(cells, 'cell')} in {counted(len(comparison.groups), 'group')}.</p>"
        f"<p><code>{escape(comparison.command)}</code></p></section>"
    )


def _items(lines: Sequence[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def by_settings(groups: Sequence[ComparisonGroup]) -> dict[Settings, list[ComparisonGroup]]:
    """Groups that differ in their load alone, under the rest of their settings."""
    found: dict[Settings, list[ComparisonGroup]] = {}
    for group in groups:
        found.setdefault(tuple(pair for pair in group.settings if pair[0] != "load"), []).append(group)
    return found


def _plots(comparison: Comparison, look: Mapping[str, Style]) -> str:
    axes = varying(comparison.groups)
    parts = []
    for at, (settings, groups) in enumerate(by_settings(comparison.groups).items()):
        drawn = [figure for figure in FIGURES if figure.key in _DRAWN and _varies(figure, groups)]
        plots = [
            plot_section(
                escape(figure.long_title or figure.title),
                escape(figure.text),
                by_load(f"{at}-{figure.key}", figure, groups, look),
            )
            for figure in drawn
        ]
        if len(comparison.groups) <= _DISTRIBUTIONS:
            plots += _distributions(at, groups, look)
        grid = f'<div class="grid">{"".join(plots)}</div>'
        name = label(settings, axes)
        parts.append(
            f"<details{'' if at else ' open'}><summary>{escape(name)}</summary>{grid}</details>" if name else grid
        )
    return "".join(parts)


def _distributions(at: int, groups: Sequence[ComparisonGroup], look: Mapping[str, Style]) -> list[str]:
    return [
        plot_section(
            "Job completion time", f"Share of completed jobs by JCT, load {escape(dict(group.settings)['load'])}.",
            jct_cdf(f"{at}-cdf-{place}", group, look),
        )
        for place, group in enumerate(groups)
    ]  # fmt: skip


def _varies(figure: Figure, groups: Sequence[ComparisonGroup]) -> bool:
    """Whether any policy has another value than 0."""
    return any(summary(figure, cells).mean > 0 for group in groups for cells in group.policies.values())


def _tables(comparison: Comparison, look: Mapping[str, Style]) -> str:
    of_jobs = [figure for figure in FIGURES if figure.key in OF_JOBS]
    of_cluster = [figure for figure in FIGURES if figure.key not in OF_JOBS]
    return _table(comparison, "Jobs", of_jobs, look, True) + _table(comparison, "Cluster", of_cluster, look, False)


def _table(
    comparison: Comparison, name: str, figures: Sequence[Figure], look: Mapping[str, Style], standing: bool
) -> str:
    axes = varying(comparison.groups)
    names = [
        *(("policy", ""), *((axis, "") for axis in axes)), ("n", "replicates"), ("done", "completed jobs of all replicates"),
        *((figure.title, figure.text) for figure in figures),
    ]  # fmt: skip
    head = head_row([*names, ("dominated by", PARETO_TEXT)] if standing else names)
    rows = [row for group in comparison.groups for row in _group_rows(group, axes, figures, look, standing)]
    return f"<section><h2>{name}</h2>{page_table(head, rows)}</section>"


def _group_rows(
    group: ComparisonGroup, axes: Sequence[str], figures: Sequence[Figure], look: Mapping[str, Style], standing: bool
) -> list[str]:
    found = {figure.key: marks(figure, group) for figure in figures}
    beaten = dominated(group)
    rows = []
    for at, (policy, cells) in enumerate(group.policies.items()):
        words = [*(value for axis, value in group.settings if axis in axes), str(len(cells)), completed_text(cells)]
        parts = [f"<td>{escape(word)}</td>" for word in words]
        for figure in figures:
            mark = found[figure.key][policy]
            text = escape(written(figure, summary(figure, cells)) + ("" if mark == "best" else SIGNS[mark]))
            parts.append(f"<td><b>{text}</b></td>" if mark == "best" else f"<td>{text}</td>")
        if standing:
            parts.append(f"<td>{escape(', '.join(beaten.get(policy, ())))}</td>")
        dot = f'<td><span class="dot" style="background:{look[policy]["color"]}"></span>{escape(policy)}</td>'
        rows.append(f"<tr{'' if at else ' class=first'}>{dot}{''.join(parts)}</tr>")
    return rows
