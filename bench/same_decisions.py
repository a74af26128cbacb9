"""Whether two trees take the same decisions: the hash of every command of a set of simulations, in each.

    python bench/same_decisions.py BASE [--quick] [--commands] [--only TEXT]

BASE is another work tree, or a folder with a ``src``; it is run with this interpreter. What is hashed is what the engine
would write to its journal: every event and every command, in order, with their times. Exits with 1 where a run differs.
Hashes of BASE are kept in BASE/decisions.json, so that a second comparison runs only the tree that changed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import hashlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
POLICIES = ("sla", "srtf", "las", "las:round=6m", "fifo", "fifo-backfill", "static")
MIXED = "60x8:v100,10x4:a100"
TIERS = "tiers=premium:0.2/standard:0.3/basic:0.5"
# (trace, cluster, estimate error). One tier and three, light and heavy load, one kind and two, exact and wrong estimates.
RUNS: tuple[tuple[str, str, float], ...] = (
    ("philly:3000", "philly-480", 0.0),
    ("philly:3000", "20x8", 0.0),
    (f"philly:3000,{TIERS}", "20x8", 1.0),
    ("synthetic:jobs=3000,load=0.8", "philly-480", 0.0),
    ("synthetic:jobs=1500,load=1.5,elastic=0.3", "20x8", 1.0),
    ("synthetic:jobs=1500,load=1.5,tiers=standard:1.0", "20x8", 0.0),
    ("synthetic:jobs=1500,load=1.2,elastic=0.3", MIXED, 0.0),
    (
        "synthetic:jobs=1500,load=1.5,elastic=0.3,max=2d,sizes=1:0.8/2:0.1/4:0.05/8:0.03/16:0.02",
        "6x8:v100,4x4:a100",
        1.0,
    ),
)
QUICK = 1000
"""Jobs of each trace with ``--quick``."""


class _Hash:
    def __init__(self) -> None:
        self.sha = hashlib.sha256()

    def append(self, record: bytes) -> None:
        self.sha.update(record + b"\n")


class _CommandHash(_Hash):
    """Of what is done to jobs and when; how often the planner was asked does not count."""

    def append(self, record: bytes) -> None:
        from tidewright.drive.record import decode
        from tidewright.engine.commands import PlanRequest

        step = decode(record)
        for command in step.commands:
            if not isinstance(command, PlanRequest):
                self.sha.update(f"{step.now} {command}\n".encode())


def decide(
    policy: str, trace_name: str, cluster: str, error: float, jobs: int, options: dict[str, Any], commands: bool = False
) -> str:
    """The hash of one run in this process, with the number of steps before it unless only ``commands`` count."""
    from tidewright.policy.registry import make
    from tidewright.sim.clusters import load_cluster
    from tidewright.sim.faults import FaultSettings
    from tidewright.sim.run import Options, Simulation
    from tidewright.sim.trace import head, with_estimates
    from tidewright.sim.traces import load_trace

    nodes = load_cluster(cluster)
    trace = with_estimates(load_trace(trace_name, sum(node.devices for node in nodes)), error, 1)
    recorder = _CommandHash() if commands else _Hash()
    faults = FaultSettings(**options)
    simulation = Simulation(head(trace, jobs) if jobs else trace, nodes, make(policy), Options(faults=faults), recorder)
    simulation.run()
    return f"{'-' if commands else simulation.driver.turns} {recorder.sha.hexdigest()[:24]}"


def cases(quick: bool, only: str, commands: bool) -> list[list[Any]]:
    """Every policy with every run, and two runs with failing nodes and ranks."""
    jobs = QUICK if quick else 0
    found = [[policy, *run, jobs, {}] for policy in POLICIES for run in RUNS]
    faults = {"node_mtbf_us": 3 * 86_400_000_000, "rank_mtbf_us": 10 * 86_400_000_000, "suspend_failure": 0.02}
    found += [[policy, "philly:2000", "20x8", 0.0, jobs, faults] for policy in ("sla", "las")]
    return [case + [True] * commands for case in found if only in str(case)]


def run(tree: Path, case: list[Any]) -> tuple[str, float]:
    """One case in a process of its own with the sources of ``tree``; its hash and its CPU-bound wall time in seconds."""
    env = {**os.environ, "PYTHONPATH": str(tree / "src"), "OPENBLAS_NUM_THREADS": "1"}
    began = time.perf_counter()
    call = [sys.executable, __file__, str(tree), "--one", json.dumps(case)]
    done = subprocess.run(call, env=env, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"failed: {done.stderr.strip()[-400:]}", time.perf_counter() - began


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("base", type=Path)
    options.add_argument("--quick", action="store_true", help=f"only the first {QUICK} jobs of each trace")
    options.add_argument(
        "--commands", action="store_true", help="compare what is done to jobs; the base may plan more often"
    )
    options.add_argument("--only", default="", metavar="TEXT", help="cases that contain this text")
    options.add_argument("--workers", type=int, default=2)
    options.add_argument("--one", metavar="CASE", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(decide(*json.loads(given.one)))
        return 0
    kept = given.base / "decisions.json"
    known: dict[str, str] = json.loads(kept.read_text()) if kept.exists() else {}
    differ = 0
    with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:

        def both(case: list[Any]) -> tuple[list[Any], str, str, float]:
            name = json.dumps(case)
            before = known.get(name) or run(given.base, case)[0]
            known[name] = before
            return case, before, *run(ROOT, case)

        for case, before, after, took in pool.map(both, cases(given.quick, given.only, given.commands)):
            same = before == after and not after.startswith("failed")
            differ += not same
            what = f"{case[0]:<14} {case[1]:<52} {case[2]:<20} error {case[3]:g}{' faults' if case[5] else ''}"
            print(f"{'same' if same else 'DIFFERS'}  {what:<104} {took:>6.1f} s", flush=True)
            if not same:
                print(f"    base {before}\n    now  {after}", flush=True)
            kept.write_text(json.dumps(known, indent=1))
    print(f"{differ} differ" if differ else "all decisions are the same")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
