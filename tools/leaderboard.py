"""Run every policy at every load and write docs/leaderboard.md and docs/leaderboard.svg.

usage: python tools/leaderboard.py [--check]   (--check: exit 1 unless sla has the best tier attainment at every load)
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
from tidewright.sim.leaderboard import (
    CLUSTER,
    LOADS,
    POLICIES,
    SEEDS,
    Entry,
    attainment,
    entries,
    markdown,
    plot,
    trace_name,
)  # fmt: skip
from tidewright.sim.result import Result
from tidewright.sim.run import Options, simulate
from tidewright.sim.traces import load_trace
from tidewright.sim.world import Costs

DOCS = Path(__file__).parent.parent / "docs"
COSTS = Costs(launch_us=3_000_000, save_us=1_000_000, restore_us=500_000)
COSTS_TEXT = "a launch takes 3 s, a save 1 s, a restore 0.5 s, devices held meanwhile"


def one(task: tuple[float, str, int]) -> tuple[float, str, Result]:
    """Simulate one policy at one load with one seed."""
    load, policy, seed = task
    nodes = load_cluster(CLUSTER)
    trace = load_trace(trace_name(load, seed), sum(node.devices for node in nodes))
    options = Options(costs=COSTS, cluster=CLUSTER, label=policy)
    return load, policy, simulate(trace, nodes, make(policy), options)


def run() -> list[Entry]:
    """Every combination, on all cores, in a fixed order."""
    tasks = [(load, policy, seed) for load in LOADS for policy in POLICIES for seed in SEEDS]
    found = []
    with ProcessPoolExecutor(max_workers=os.cpu_count()) as pool, Progress() as progress:
        bar = progress.add_task("simulating", total=len(tasks))
        for result in pool.map(one, tasks):
            found.append(result)
            progress.advance(bar)
    return entries(found)


def losers(board: list[Entry]) -> list[str]:
    """Loads and policies at which sla is not ahead."""
    score = {(entry.load, entry.policy): fmean(attainment(run) for run in entry.results) for entry in board}
    return [
        f"{policy} at load {load:g}"
        for (load, policy), got in score.items()
        if policy != "sla" and got >= score[load, "sla"]
    ]


def main() -> int:
    board = run()
    DOCS.mkdir(exist_ok=True)
    (DOCS / "leaderboard.md").write_text(markdown(board, COSTS_TEXT))
    (DOCS / "leaderboard.svg").write_text(plot(board))
    print(f"wrote {DOCS / 'leaderboard.md'} and leaderboard.svg")
    behind = losers(board)
    print("sla is ahead at every load" if not behind else f"sla is not ahead of {', '.join(behind)}")
    return 1 if behind and "--check" in sys.argv[1:] else 0


if __name__ == "__main__":
    raise SystemExit(main())
