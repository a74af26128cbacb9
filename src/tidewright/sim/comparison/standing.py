"""Which policy is best in a group, which cannot be distinguished from it, and which is dominated: arithmetic on the figures."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal

from .cells import ANY, CellResult, ComparisonGroup
from .figures import FIGURE, Figure, summary, values
from .interval import interval

Mark = Literal["best", "level", ""]
"""``level``: the 95 % interval of its difference from the best, replicate by replicate, holds zero."""

PARETO = ("jct_mean_s", "jct_p99_s", "kept_by_count", "kept_by_work", "rho_p99")
COMPARABLE = 0.999
"""Least completed jobs of a policy, relative to the most of any in the group, for its means to be ranked: what it left unfinished
are the long jobs, and the means are over the others."""


def goodness(figure: Figure, value: float) -> float:
    """The value so that more is better; what is not a number is worst."""
    if math.isnan(value):
        return -math.inf
    return -value if figure.better == "low" else value


def ranked(group: ComparisonGroup) -> dict[str, tuple[CellResult, ...]]:
    """The policies whose figures can be compared: those that completed as many jobs as the others, see COMPARABLE."""
    done = {name: fmean(cell.result.completed for cell in cells) for name, cells in group.policies.items()}
    least = max(1, COMPARABLE * max(done.values(), default=0))
    return {name: cells for name, cells in group.policies.items() if done[name] >= least}


def differences(figure: Figure, one: Sequence[CellResult], other: Sequence[CellResult]) -> list[float]:
    """How much better ``one`` is in each replicate that both have; a result of all replicates is paired with each."""
    mine, theirs = values(figure, one), values(figure, other)
    names = [name for name in {**mine, **theirs} if name != ANY] or [ANY]
    pairs = [(mine.get(name, mine.get(ANY)), theirs.get(name, theirs.get(ANY))) for name in names]
    return [goodness(figure, a) - goodness(figure, b) for a, b in pairs if a is not None and b is not None]


def marks(figure: Figure, group: ComparisonGroup) -> dict[str, Mark]:
    """Policy to its mark; all empty for a figure of which neither direction is better."""
    found: dict[str, Mark] = dict.fromkeys(group.policies, "")
    policies = ranked(group)
    if not figure.better or not policies:
        return found
    means = {name: goodness(figure, summary(figure, cells).mean) for name, cells in policies.items()}
    top = max(means.values())
    leader = next(name for name, mean in means.items() if mean == top)
    return found | {name: _mark(figure, policies, name, leader, mean == top) for name, mean in means.items()}


def _mark(figure: Figure, policies: Mapping[str, Sequence[CellResult]], name: str, leader: str, top: bool) -> Mark:
    if top:
        return "best"
    found = differences(figure, policies[leader], policies[name])
    if len(found) < 2:
        return ""
    gap = interval(found)
    return "level" if gap.half_width is not None and gap.mean <= gap.half_width else ""


def dominated(group: ComparisonGroup) -> dict[str, list[str]]:
    """Policy to those that are as good in every figure of PARETO and better in one; policies that none dominates are absent."""
    scores = {
        name: [goodness(FIGURE[key], summary(FIGURE[key], cells).mean) for key in PARETO]
        for name, cells in ranked(group).items()
    }
    found = {
        name: [other for other, theirs in scores.items() if _dominates(theirs, mine)] for name, mine in scores.items()
    }
    return {name: others for name, others in found.items() if others}


def _dominates(theirs: Sequence[float], mine: Sequence[float]) -> bool:
    return theirs != mine and all(a >= b for a, b in zip(theirs, mine, strict=True))


def pareto_statements(groups: Sequence[ComparisonGroup]) -> list[str]:
    """Sentences: the policies that none dominates anywhere, and for each other one in how many groups which ones dominate it."""
    found = [dominated(group) for group in groups]
    within = {name: 0 for group in groups for name in group.policies}
    for group in groups:
        for name in ranked(group):
            within[name] += 1
    beaten = {name: [others[name] for others in found if name in others] for name in within}
    free = [name for name, count in within.items() if count and not beaten[name]]
    lines = [f"dominated nowhere ({_groups(len(groups))}): {', '.join(free)}"] if free else []
    lines += [_statement(name, beaten[name], count) for name, count in within.items() if beaten[name]]
    left = [name for name, count in within.items() if not count]
    return lines + ([f"not ranked, as others completed more jobs in every group: {', '.join(left)}"] if left else [])


def _statement(policy: str, beaten: Sequence[Sequence[str]], within: int) -> str:
    often = Counter(name for others in beaten for name in others)
    by = ", ".join(f"by {name} in {count}" for name, count in often.most_common())
    return f"{policy} is dominated in {len(beaten)} of {_groups(within)}: {by}"


def _groups(count: int) -> str:
    return f"{count} group{'s' if count != 1 else ''}"
