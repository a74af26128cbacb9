"""Every job of a comparison in one account: completed, failed, refused, or unfinished when the simulation ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from msgspec import Struct

from ...base.units import agreeing, counted
from ..report import moves_refused
from .cells import CellResult, Comparison, label, varying


class JobAccount(Struct, frozen=True, kw_only=True):
    """Jobs over all replicates; ``jobs`` is the sum of the others. ``refusals``: code to number."""

    jobs: int
    completed: int
    failed: int
    refused: int
    unfinished: int
    refusals: dict[str, int]


def account(cells: Sequence[CellResult]) -> JobAccount:
    """What became of the jobs of these cells."""
    results = [cell.result for cell in cells]
    refusals: Counter[str] = Counter()
    for result in results:
        refusals.update(result.refusals)
    return JobAccount(
        jobs=sum(r.jobs for r in results), completed=sum(r.completed for r in results), failed=sum(r.failed for r in results),
        refused=sum(r.refused for r in results), unfinished=sum(r.unfinished for r in results),
        refusals=dict(sorted(refusals.items())),
    )  # fmt: skip


def completed_text(cells: Sequence[CellResult]) -> str:
    """``"2,000"``, or ``"1,990 of 2,000"``."""
    found = account(cells)
    return f"{found.completed:,}" + (f" of {found.jobs:,}" if found.completed < found.jobs else "")


def remarks(comparison: Comparison) -> list[str]:
    """A line for each policy and group some of whose jobs are in no mean, and what the readers of traces changed."""
    axes = varying(comparison.groups)
    lines: dict[str, None] = {}
    for group in comparison.groups:
        where = label(group.settings, axes)
        for policy, cells in group.policies.items():
            lines.update(dict.fromkeys(remark for cell in cells for remark in cell.result.remarks))
            left_out = _left_out(account(cells))
            if left_out:
                jobs = account(cells).jobs
                of = f"of {counted(jobs, 'job')} {agreeing(jobs, 'is', 'are')} in no mean"
                lines[f"{policy}{where and f' at {where}'}: {left_out} {of}"] = None
            refused = moves_refused([cell.result for cell in cells])
            if refused:
                lines[f"{policy}{where and f' at {where}'}: {refused}"] = None
    return list(lines)


def _left_out(found: JobAccount) -> str:
    reasons = ", ".join(f"{why}: {count:,}" for why, count in found.refusals.items())
    parts = (
        (found.unfinished, "unfinished at the horizon"), (found.refused, f"refused ({reasons})"),
        (found.failed, "failed, stopped or cancelled"),
    )  # fmt: skip
    return ", ".join(f"{count:,} {text}" for count, text in parts if count)
