"""The bar for promises: what one policy misses of it in a group, beside all others."""

from __future__ import annotations

from ..report import percent
from .cells import ComparisonGroup
from .figures import FIGURE, summary
from .standing import dominated

MARGIN = 0.01
"""How far below the best of the others the share of promises kept may be."""
PREEMPTIONS_PER_HOUR = 1.0
"""Most preemptions per hour of run."""
BAR_TEXT = (
    "promises kept, by count and by work, at least those of the best of the others less 1 point; at most 1 preemption per hour "
    "of run; not dominated"
)


PROMISES = ("kept_by_count", "kept_by_work")
"""The figures that the first two parts are about."""


def best_other(group: ComparisonGroup, key: str, policy: str) -> tuple[str, float]:
    """The best of the other policies in a figure of PROMISES, and its share; empty and 0 where there is none."""
    others = {name: summary(FIGURE[key], cells).mean for name, cells in group.policies.items() if name != policy}
    best = max(others, key=others.__getitem__, default="")
    return best, others.get(best, 0.0)


def missed(group: ComparisonGroup, policy: str = "sla") -> list[str]:
    """What of the bar the policy misses; empty when nothing. Raises KeyError when the group does not have it."""
    mine = group.policies[policy]
    lines = []
    for key in PROMISES:
        best, share = best_other(group, key, policy)
        gap = share - summary(FIGURE[key], mine).mean if best else 0.0
        if gap > MARGIN:
            lines.append(f"{FIGURE[key].title} {percent(gap)} below {best}")
    often = summary(FIGURE["preemptions_per_hour"], mine).mean
    if often > PREEMPTIONS_PER_HOUR:
        lines.append(f"{often:.2f} preemptions per hour of run")
    beaten = dominated(group).get(policy, [])
    return lines + ([f"dominated by {', '.join(beaten)}"] if beaten else [])
