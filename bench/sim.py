"""The simulator's bars: the Philly trace on 480 devices, and how the cost grows with the number of jobs.

usage: python bench/sim.py [--quick]
Each case runs in a fresh process, so that its peak memory is its own.
Jobs/s are per CPU second. ``--quick`` leaves out the 500,000 jobs, and of the growth the 100,000.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

CLUSTER = "philly-480"
TIERS = "tiers=premium:0.2/standard:0.3/basic:0.5"
# (name, policy, trace, bar in CPU seconds or None). The growth is measured at a load that strict fifo can carry: at 0.9 its
# queue itself grows with the trace (56,510 jobs on average at 500,000), and every thought looks at all of it.
CASES: tuple[tuple[str, str, str, float | None], ...] = (
    ("philly fifo", "fifo", "philly", 30.0),
    ("philly srtf", "srtf", "philly", 15.0),
    ("philly las", "las", "philly", 15.0),
    ("philly las, 6 min rounds", "las:round=6m", "philly", 60.0),
    ("philly sla", "sla", "philly", 40.0),
    ("10k philly sla, tiers", "sla", f"philly:10000,{TIERS}", None),
    ("philly fifo-backfill", "fifo-backfill", "philly", 60.0),
    ("10k synthetic fifo", "fifo", "synthetic:jobs=10000,load=0.6,max=1d", None),
    ("82k synthetic fifo", "fifo", "synthetic:jobs=82247,load=0.6,max=1d", None),
    ("500k synthetic fifo", "fifo", "synthetic:jobs=500000,load=0.6,max=1d", None),
)
MEMORY_BAR_MIB = 1024
GROWTH = ("fifo", "fifo-backfill", "srtf", "las", "sla", "static")
"""Policies of the growth table: 10,000 and 100,000 jobs at a load that leaves the queue short."""


def measure(policy: str, trace_name: str) -> dict[str, Any]:
    """Run one case in this process: wall and CPU seconds of the simulation alone, peak memory of the whole process."""
    from tidewright.policy.registry import make
    from tidewright.sim.clusters import load_cluster
    from tidewright.sim.run import Options, simulate
    from tidewright.sim.traces import load_trace

    nodes = load_cluster(CLUSTER)
    trace = load_trace(trace_name, sum(node.devices for node in nodes))
    wall, cpu = time.perf_counter(), time.process_time()
    result = simulate(trace, nodes, make(policy), Options(cluster=CLUSTER, label=policy))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {
        "wall_s": round(wall, 2),
        "cpu_s": round(cpu, 2),
        "jobs_per_s": round(len(trace) / cpu),
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "turns": result.turns,
        "thoughts": result.planning_rounds,
        "completed": result.completed,
        "jct_mean_s": round(result.jct_mean_s, 1),
        "queue_length_mean": round(result.queue_length_mean, 1),
    }


def apart(policy: str, trace: str) -> dict[str, Any]:
    """``measure`` in a fresh process."""
    call = [sys.executable, __file__, "--one", policy, trace]
    return json.loads(subprocess.run(call, stdout=subprocess.PIPE, text=True, check=True).stdout)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--quick", action="store_true")
    options.add_argument("--one", nargs=2, metavar=("POLICY", "TRACE"), help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.one:
        print(json.dumps(measure(*given.one)))
        return
    from facts import keep

    print(
        f"{'case':<26} {'bar':>8} {'wall':>9} {'cpu':>9} {'jobs/s':>8} {'peak':>9}  (bar {MEMORY_BAR_MIB} MiB)",
        flush=True,
    )
    measured = {}
    for name, policy, trace, bar in CASES:
        if given.quick and "500k" in name:
            continue
        got = apart(policy, trace)
        measured[name] = {"bar_s": bar, "bar_mib": MEMORY_BAR_MIB, "policy": policy, "trace": trace, **got}
        # One thread and no I/O: CPU time is what an idle machine's clock would show, whoever else is running.
        missed = (bar is not None and got["cpu_s"] > bar) or got["peak_mib"] > MEMORY_BAR_MIB
        limit = f"< {bar:.0f} s" if bar else ""
        times = f"{limit:>8} {got['wall_s']:>7.1f} s {got['cpu_s']:>7.1f} s"
        print(
            f"{name:<26} {times} {got['jobs_per_s']:>8,} {got['peak_mib']:>5} MiB{'  MISSED' if missed else ''}",
            flush=True,
        )
    measured |= growth(given.quick)
    print(f"written to {keep('sim', measured)}")


def growth(quick: bool) -> dict[str, Any]:
    """Prints CPU seconds of 10,000 and of 100,000 jobs under each policy; 10 times as much is linear."""
    print(f"\n{'growth':<16} {'10k jobs':>10} {'100k jobs':>10} {'times':>7}", flush=True)
    found: dict[str, Any] = {}
    for policy in GROWTH:
        few = apart(policy, "synthetic:jobs=10000,load=0.6,max=1d")
        found[f"growth {policy}, 10k"] = few
        line = f"{policy:<16} {few['cpu_s']:>8.1f} s"
        if not quick:
            many = apart(policy, "synthetic:jobs=100000,load=0.6,max=1d")
            found[f"growth {policy}, 100k"] = many
            line += f" {many['cpu_s']:>8.1f} s {many['cpu_s'] / few['cpu_s']:>7.1f}"
        print(line, flush=True)
    return found


if __name__ == "__main__":
    main()
