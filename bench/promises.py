"""Promises kept by each policy on real Philly jobs: tiers, loads, estimates and image sizes, cell by cell.

usage: python bench/promises.py [--jobs N] [--loads 0.8,1.5] [--tiers one,three] [--estimates exact,noisy,none]
       [--images 1s,60s] [--policies NAME,...] [--workers N]

A cell is one combination; load is device-time asked over capacity until the last submission, set by stretching the times of
submission. The bar in a cell: ``sla`` keeps at least as many promises as the best of the others less one point, by count and by
work, with at most one preemption per hour of run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CLUSTER = "philly-480"
TIERS = {"one": "", "three": ",tiers=premium:0.2/standard:0.3/basic:0.5"}
ESTIMATES = ("exact", "noisy", "none")
IMAGES = {"1s": (1.0, 0.5), "60s": (60.0, 60.0)}
POLICIES = ("sla", "fifo", "srtf", "srsf", "las", "static")
PREEMPTIONS_BAR = 1.0


def measure(jobs: int, tiers: str, load: float, estimates: str, images: str, policy: str) -> dict[str, Any]:
    """One policy in one cell, in this process."""
    from tidewright.base.units import SECOND
    from tidewright.policy.registry import make
    from tidewright.sim.clusters import load_cluster
    from tidewright.sim.costs import Costs
    from tidewright.sim.leaderboard import promises_kept
    from tidewright.sim.run import Options, simulate
    from tidewright.sim.trace import with_estimates, with_load, without_estimates
    from tidewright.sim.traces import load_trace

    nodes = load_cluster(CLUSTER)
    devices = sum(node.devices for node in nodes)
    trace = load_trace(f"philly:{jobs}{TIERS[tiers]}", devices)
    trace = with_load(trace, load, devices)
    if estimates == "noisy":
        trace = with_estimates(trace, 1.0, 1)
    elif estimates == "none":
        trace = without_estimates(trace)
    save, restore = IMAGES[images]
    costs = Costs(save_us=round(save * SECOND), restore_us=round(restore * SECOND))
    cpu = time.process_time()
    result = simulate(trace, nodes, make(policy), Options(costs=costs, cluster=CLUSTER, label=policy))
    count, work = promises_kept(result)
    return {
        "policy": policy, "count": count, "work": work, "per_hour": result.preemptions / result.run_hours,
        "jct_h": result.jct_mean_s / 3600, "jct_p99_h": result.jct_p99_s / 3600, "rho_p99": result.rho_p99,
        "goodput": result.goodput, "rounds": result.planning_rounds / len(trace), "cpu_s": time.process_time() - cpu,
        "premium": next(tier.attained_by_work for tier in result.tiers if tier.tier == "premium"),
    }  # fmt: skip


def verdict(rows: dict[str, dict[str, Any]]) -> list[str]:
    """What of the bar ``sla`` misses in a cell; empty when nothing."""
    mine, others = rows["sla"], [row for name, row in rows.items() if name != "sla"]
    missed = [
        f"{what} {100 * (max(row[what] for row in others) - mine[what]):.1f} pt below"
        for what in ("count", "work")
        if others and mine[what] < max(row[what] for row in others) - 0.01
    ]
    if mine["per_hour"] > PREEMPTIONS_BAR:
        missed.append(f"{mine['per_hour']:.2f} preemptions an hour")
    if any(all(row[k] <= mine[k] for k in ("jct_h", "jct_p99_h", "rho_p99")) and all(row[k] >= mine[k] for k in ("count", "work"))
           for row in others):  # fmt: skip
        missed.append("beaten in everything by one")
    return missed


def show(cell: tuple[Any, ...], rows: dict[str, dict[str, Any]]) -> None:
    """The rows of a cell and what it misses."""
    missed = verdict(rows) if "sla" in rows else []
    print(f"\n{' · '.join(map(str, cell))}: {'; '.join(missed) or 'met'}", flush=True)
    for name, row in rows.items():
        print(
            f"  {name:<7} count {100 * row['count']:5.1f} %  work {100 * row['work']:5.1f} %"
            f"  premium {100 * row['premium']:5.1f} %  {row['per_hour']:6.2f}/h"
            f"  JCT {row['jct_h']:6.2f} h  p99 {row['jct_p99_h']:7.1f} h  rho {row['rho_p99']:7.2f}"
            f"  goodput {row['goodput']:.3f}  {row['rounds']:5.2f} rounds/job  {row['cpu_s']:6.1f} s",
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
    options.add_argument("--out", type=Path)
    given = options.parse_args()
    loads = [float(load) for load in given.loads.split(",")]
    axes = given.tiers.split(","), loads, given.estimates.split(","), given.images.split(",")
    cells = list(itertools.product(*axes))
    policies = given.policies.split(",")
    found: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {cell: {} for cell in cells}
    with ProcessPoolExecutor(given.workers) as pool:
        jobs = {
            pool.submit(measure, given.jobs, *cell, policy): (cell, policy) for cell in cells for policy in policies
        }
        for done in as_completed(jobs):
            cell, policy = jobs[done]
            found[cell][policy] = done.result()
            if len(found[cell]) == len(policies):
                found[cell] = {name: found[cell][name] for name in policies}
                show(cell, found[cell])
    if "sla" in policies:
        met = sum(not verdict(rows) for rows in found.values())
        print(f"\n{met} of {len(cells)} cells met")
    if given.out:
        given.out.write_text(json.dumps([{"cell": cell, "rows": rows} for cell, rows in found.items()], indent=1))


if __name__ == "__main__":
    main()
