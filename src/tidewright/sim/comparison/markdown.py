"""Groups of a comparison as tables of Markdown, the same on every machine: planning times are left out."""

from __future__ import annotations

from collections.abc import Sequence

from .accounts import completed_text
from .cells import ComparisonGroup
from .figures import FIGURES, summary, written
from .standing import dominated, marks
from .table import SIGNS

_SHOWN = tuple(figure for figure in FIGURES if figure.key != "planning_s")


def markdown_table(groups: Sequence[ComparisonGroup], axes: Sequence[str]) -> list[str]:
    """Lines: a row for each group and policy, with the group's values on these axes before it; the best of a group is bold."""
    replicates = any(len(cells) > 1 for group in groups for cells in group.policies.values())
    heads = (*axes, "policy", *(["n"] if replicates else []), "done", *(f.title for f in _SHOWN), "dominated by")
    left = len(axes) + 1
    lines = [_row(heads), "|" + "---|" * left + "---:|" * (len(heads) - left)]
    return lines + [_row(row) for group in groups for row in _rows(group, axes, replicates)]


def _rows(group: ComparisonGroup, axes: Sequence[str], replicates: bool) -> list[list[str]]:
    standing = {figure.key: marks(figure, group) for figure in _SHOWN}
    beaten = dominated(group)
    settings = dict(group.settings)
    rows = []
    for policy, cells in group.policies.items():
        row = [*(settings[axis] for axis in axes), f"`{policy}`", *([str(len(cells))] if replicates else [])]
        row.append(completed_text(cells))
        for figure in _SHOWN:
            mark, text = standing[figure.key][policy], written(figure, summary(figure, cells))
            row.append(f"**{text}**" if mark == "best" else text + SIGNS[mark])
        rows.append([*row, ", ".join(f"`{name}`" for name in beaten.get(policy, ())) or "–"])
    return rows


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
