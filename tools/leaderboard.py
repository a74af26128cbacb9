"""Run every policy at every load and write docs/leaderboard.md and docs/leaderboard.svg.

usage: python tools/leaderboard.py [--check]   (--check: exit 1 unless sla has the best tier attainment at every load, and keeps
as many promises of one tier of Philly, by count and by work, as the best of the others less 1 point)
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import fmean

from rich.progress import Progress

from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import Costs
from tidewright.sim.leaderboard import (
    CLUSTER,
    LOADS,
    PHILLY,
    PHILLY_CLUSTER,
    PHILLY_POLICIES,
    POLICIES,
    SEEDS,
    LeaderboardEntry,
    attainment,
    entries,
    markdown,
    plot,
    tier_of,
    trace_name,
)  # fmt: skip
from tidewright.sim.result import SimulationResult
from tidewright.sim.run import Options, simulate
from tidewright.sim.trace import changed
from tidewright.sim.traces import load_trace

DOCS = Path(__file__).parent.parent / "docs"
COSTS = Costs(launch_us=3_000_000, save_us=1_000_000, restore_us=500_000)
COSTS_TEXT = "a launch takes 3 s, a save 1 s, a restore 0.5 s, devices held meanwhile"


def one(task: tuple[str, str, str]) -> SimulationResult:
    """Simulate one trace on one cluster under one policy."""
    trace, cluster, policy = task
    nodes = load_cluster(cluster)
    loaded = changed(load_trace(trace, sum(node.devices for node in nodes)), name=trace)
    return simulate(loaded, nodes, make(policy), Options(costs=COSTS, cluster=cluster, label=policy))


def run() -> tuple[list[LeaderboardEntry], list[SimulationResult]]:
    """Every combination, on all cores, in a fixed order: the synthetic loads, and Philly. The longest runs start first."""
    philly = [(trace, PHILLY_CLUSTER, policy) for trace in PHILLY for policy in PHILLY_POLICIES]
    cells = [(load, policy, seed) for load in LOADS for policy in POLICIES for seed in SEEDS]
    tasks = philly + [(trace_name(load, seed), CLUSTER, policy) for load, policy, seed in cells]
    found = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool, Progress() as progress:
        bar = progress.add_task("simulating", total=len(tasks))
        for result in pool.map(one, tasks):
            found.append(result)
            progress.advance(bar)
    real, made = found[: len(philly)], found[len(philly) :]
    board = entries([(load, policy, result) for (load, policy, _), result in zip(cells, made, strict=True)])
    return board, real


def losers(board: list[LeaderboardEntry]) -> list[str]:
    """Loads and policies at which sla is not ahead."""
    score = {(entry.load, entry.policy): fmean(attainment(run) for run in entry.results) for entry in board}
    return [
        f"{policy} at load {load:g}"
        for (load, policy), got in score.items()
        if policy != "sla" and got >= score[load, "sla"]
    ]


def philly_losers(real: list[SimulationResult]) -> list[str]:
    """Policies that keep more of the promises of one tier than sla and 1 point."""
    results = {result.policy: tier_of(result, "standard") for result in real if result.trace == PHILLY[0]}
    mine = results["sla"]
    return [
        f"{policy} on {PHILLY[0]}"
        for policy, tier in results.items()
        if tier.attained > mine.attained + 0.01 or tier.attained_by_work > mine.attained_by_work + 0.01
    ]


def main() -> int:
    board, real = run()
    DOCS.mkdir(exist_ok=True)
    (DOCS / "leaderboard.md").write_text(markdown(board, COSTS_TEXT, real))
    (DOCS / "leaderboard.svg").write_text(plot(board))
    print(f"wrote {DOCS / 'leaderboard.md'} and leaderboard.svg")
    behind = losers(board) + philly_losers(real)
    print("sla is ahead at every load" if not behind else f"sla is not ahead of {', '.join(behind)}")
    return 1 if behind and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    raise SystemExit(main())
