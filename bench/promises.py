"""Promises kept by each policy on real Philly jobs: tiers, loads, estimates and image sizes, cell by cell.

usage: python bench/promises.py [--jobs N] [--loads 0.8,1.5] [--tiers one,three] [--estimates exact,noisy,none]
       [--images 1s,60s] [--policies NAME,...] [--workers N] [--save DIR] [--out FILE]

A cell is one combination; load is device-time asked over capacity until the last submission, set by stretching the times of
submission. The bar in a cell: ``sla`` keeps at least as many promises as the best of the others less one point, by count and by
work, with at most one preemption per hour of run, and no other policy is as good in everything and better in something. Runs are
those of ``tide compare``; with ``--save`` an interrupted bench goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from tidewright.app.compare.cells import ComparisonQuestion
from tidewright.app.compare.run import compare
from tidewright.cli.progress import progress
from tidewright.sim.comparison.bar import MARGIN, PREEMPTIONS_PER_HOUR, PROMISES, best_other, missed
from tidewright.sim.comparison.cells import CellResult, ComparisonGroup
from tidewright.sim.comparison.figures import kept_by_count, kept_by_work, preemptions_per_hour

CLUSTER = "philly-480"
TIERS = {"one": "1", "three": "3"}
ESTIMATES = ("exact", "noisy", "none")
IMAGES = ("1s", "60s")
POLICIES = ("sla", "fifo", "srtf", "srsf", "las", "static")


def row(cell: CellResult) -> dict[str, Any]:
    """The figures of one policy in one cell."""
    result = cell.result
    return {
        "policy": cell.cell.policy, "count": kept_by_count(result), "work": kept_by_work(result),
        "per_hour": preemptions_per_hour(result), "jct_h": result.jct_mean_s / 3600, "jct_p99_h": result.jct_p99_s / 3600,
        "rho_p99": result.rho_p99, "goodput": result.goodput, "rounds": result.planning_rounds / result.jobs, "cpu_s": cell.cpu_s,
        "premium": next(tier.attained_by_work for tier in result.tiers if tier.tier == "premium"),
    }  # fmt: skip


def name_of(group: ComparisonGroup) -> tuple[str, float, str, str]:
    """Tiers, load, estimates and images of a cell."""
    words = dict(group.settings)
    tiers = {value: name for name, value in TIERS.items()}
    return tiers[words["tiers"]], float(words["load"]), words["estimates"], words["costs"]


def show(group: ComparisonGroup) -> None:
    """The rows of a cell, its bars, and what it misses of them."""
    met = ("; ".join(missed(group)) or "met") if "sla" in group.policies else "sla is not among the policies"
    print(f"\n{' · '.join(map(str, name_of(group)))}: {met}")
    count, work = (100 * (best_other(group, key, "sla")[1] - MARGIN) for key in PROMISES)
    print(f"  {'bar':<7} count {count:5.1f} %  work {work:5.1f} %                   {PREEMPTIONS_PER_HOUR:6.2f}/h")
    for found in (row(cells[0]) for cells in group.policies.values()):
        print(
            f"  {found['policy']:<7} count {100 * found['count']:5.1f} %  work {100 * found['work']:5.1f} %"
            f"  premium {100 * found['premium']:5.1f} %  {found['per_hour']:6.2f}/h"
            f"  JCT {found['jct_h']:6.2f} h  p99 {found['jct_p99_h']:7.1f} h  rho {found['rho_p99']:7.2f}"
            f"  goodput {found['goodput']:.3f}  {found['rounds']:5.2f} rounds/job  {found['cpu_s']:6.1f} s",
            flush=True,
        )


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--jobs", type=int, default=10_000)
    options.add_argument("--loads", default="0.8,1.0,1.2,1.5,2.0")
    options.add_argument("--tiers", default="one,three")
    options.add_argument("--estimates", default=",".join(ESTIMATES))
    options.add_argument("--images", default=",".join(IMAGES))
    options.add_argument("--policies", default=",".join(POLICIES))
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--save", type=Path)
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    asked = ComparisonQuestion(
        traces=(f"philly:{given.jobs}",), clusters=(CLUSTER,), policies=tuple(given.policies.split(",")),
        loads=tuple(map(float, given.loads.split(","))), tiers=tuple(TIERS[name] for name in given.tiers.split(",")),
        estimates=tuple(given.estimates.split(",")), costs=tuple(given.images.split(",")),
    )  # fmt: skip
    with progress("comparing", total=1.0, lines=True) as bar:
        found = compare(asked, given.workers, bar.update, given.save)
    groups = sorted(found.groups, key=lambda group: list(TIERS).index(name_of(group)[0]))
    for group in groups:
        show(group)
    for failure in found.failures:
        print(f"failed: {failure.cell.policy}: {failure.cause}\n  alone: {failure.command}")
    judged = [group for group in groups if "sla" in group.policies]
    if judged:
        print(f"\n{sum(not missed(group) for group in judged)} of {len(judged)} cells met")
    if given.out:
        rows = [
            {"cell": name_of(group), "rows": {name: row(cells[0]) for name, cells in group.policies.items()}}
            for group in groups
        ]
        given.out.write_text(json.dumps(rows, indent=1))
    if found.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
