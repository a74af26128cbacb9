"""Shares of one CPU slot beside their bars: how its time is split between two, and what best-effort work costs the other.

    python bench/shares.py [--splits 5] [--pairs 20]                                        (about a minute)

Real ranks, started by an agent's own code on one core, do the same small piece of work again and again and count. The split is
that of CPU time while shares of 700 and 300 thousandths are busy. What best-effort work costs is what a busy rt share gets done
beside it, over what it gets done alone: by turns of half a second, the median over the pairs. *Scheduling policy alone* is a
host without control groups, where weights have no effect (the split is not held to a bar) and best effort is SCHED_IDLE.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from facts import keep
from tidewright.agent.layout import AgentLayout
from tidewright.agent.main import standard_drivers
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.checkpoint import limits
from tidewright.checkpoint.cgroup import Signals, detect
from tidewright.devices.cpu import CpuBackend
from tidewright.launch.environment import submitted_environment
from tidewright.wire.agent import JobReport, LaunchArgs, RankSeat, StopArgs

PROGRAM = """
import mmap, struct, sys
with open(sys.argv[1], "r+b") as file:
    count, view = 0, mmap.mmap(file.fileno(), 8)
while True:
    sum(range(2000))
    count += 1
    struct.pack_into("q", view, 0, count)
"""
SPLIT, SPLIT_TOLERANCE, RT_LEAST = 0.7, 0.05, 0.95
SETTLE_S, TURN_S, SPLIT_S = 0.05, 0.5, 2.0
PATIENCE_S = 30.0
TICK = os.sysconf("SC_CLK_TCK")


class Worker:
    """One share at work: its pid, and the file it counts in."""

    def __init__(self, pid: int, file: Path) -> None:
        self._pid, self._file = pid, file

    @property
    def done(self) -> int:
        """Pieces of work."""
        return int.from_bytes(self._file.read_bytes(), sys.byteorder)

    @property
    def cpu_s(self) -> float:
        """CPU time, seconds (proc(5))."""
        fields = Path(f"/proc/{self._pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICK

    def work(self, on: bool) -> None:
        os.kill(self._pid, signal.SIGCONT if on else signal.SIGSTOP)


class Slot:
    """An agent over one slot of one core, ``grouped`` with control groups or without."""

    def __init__(self, root: Path, grouped: bool) -> None:
        self._layout, self._reports = AgentLayout(root), dict[int, JobReport]()
        self._layout.prepare()
        freezer = detect() if grouped else Signals()
        self.limits = limits.detect(freezer) if grouped else limits.NO_LIMITS
        backend = CpuBackend("bench", (max(os.sched_getaffinity(0)),), 1, 2**32)
        context = NodeContext(self._layout, backend, freezer, limits=self.limits)
        self._supervisor = Supervisor(context, standard_drivers("bench"), self._hear)

    def _hear(self, report: JobReport) -> None:
        self._reports[report.job] = report

    async def start(self, job: int, **share: Any) -> tuple[Worker, str]:
        """A share at work, and how it is enforced."""
        file = self._layout.root / f"count{job}"
        file.write_bytes(bytes(8))
        args = LaunchArgs(
            job=job, attempt=1, command=(sys.executable, "-c", PROGRAM, str(file)), workdir="/", grace_us=0,
            env=submitted_environment(os.environ), ranks=(RankSeat(0, 0, (0,)),), **share,
        )  # fmt: skip
        self._supervisor.launch(args, f"start{job}")
        await self._until(job, "running")
        started = self._layout.rank(job, 1, 0) / "started"
        worker = Worker(json.loads(started.read_text())["pid"], file)
        while not worker.done:
            await asyncio.sleep(0.01)
        return worker, self._reports[job].share_limits

    async def stop(self, *jobs: int) -> None:
        for job in jobs:
            self._supervisor.stop(StopArgs(job=job, attempt=1, grace_us=0), f"stop{job}")
            await self._until(job, "exited")

    async def _until(self, job: int, state: str) -> None:
        async def look() -> None:
            while job not in self._reports or self._reports[job].state != state:
                await asyncio.sleep(0.01)

        await asyncio.wait_for(look(), PATIENCE_S)

    async def close(self) -> None:
        await self.stop(*(job for job, report in self._reports.items() if report.state not in ("exited", "failed")))
        self._supervisor.clear_groups()
        await self._supervisor.close()


@contextlib.asynccontextmanager
async def slot(grouped: bool) -> AsyncIterator[Slot]:
    with tempfile.TemporaryDirectory() as folder:
        made = Slot(Path(folder), grouped)
        try:
            yield made
        finally:
            await made.close()


async def split(here: Slot, times: int) -> dict[str, Any]:
    """How two busy shares of 700 and 300 thousandths split the slot's CPU time."""
    seven, how = await here.start(1, gpu_milli=700)
    three, _ = await here.start(2, gpu_milli=300)
    parts = []
    for _ in range(times):
        before = seven.cpu_s, three.cpu_s
        await asyncio.sleep(SPLIT_S)
        first, second = seven.cpu_s - before[0], three.cpu_s - before[1]
        parts.append(first / (first + second))
    await here.stop(1, 2)
    return {"part_of_700": round(statistics.median(parts), 3), "parts": [round(part, 3) for part in parts], "how": how}


async def best_effort(here: Slot, pairs: int) -> dict[str, Any]:
    """What a busy rt share gets done beside a busy best-effort one, over what it does alone; and the latter's part of the CPU
    time of both, beside it and while it rests."""
    below, how = await here.start(4, share_class="be")
    first, _ = await here.start(3, gpu_milli=500)
    ratios, taken = [], []
    for number in range(pairs):
        work = {}
        for beside in (False, True) if number % 2 else (True, False):
            below.work(beside)
            await asyncio.sleep(SETTLE_S)
            before, used = first.done, (first.cpu_s, below.cpu_s)
            await asyncio.sleep(TURN_S)
            work[beside] = first.done - before
            if beside:
                taken.append((below.cpu_s - used[1]) / (below.cpu_s - used[1] + first.cpu_s - used[0]))
        ratios.append(work[True] / work[False])
    below.work(True)
    first.work(False)
    used = first.cpu_s, below.cpu_s
    await asyncio.sleep(SPLIT_S)
    rest = (below.cpu_s - used[1]) / max(TICK**-1, below.cpu_s - used[1] + first.cpu_s - used[0])
    first.work(True)
    await here.stop(3, 4)
    return {
        "rt_beside_be_over_alone": round(statistics.median(ratios), 4),
        "quartiles": [round(each, 4) for each in statistics.quantiles(ratios, n=4)],
        "be_part_beside_busy_rt": round(statistics.median(taken), 4),
        "be_part_while_rt_rests": round(rest, 4),
        "how": how,
    }


async def measure(grouped: bool, splits: int, pairs: int) -> dict[str, Any]:
    async with slot(grouped) as here:
        found = {"split": await split(here, splits), "best_effort": await best_effort(here, pairs)}
        return {**found, "weights": limits.WEIGHTS in here.limits.offers}


def show(name: str, found: dict[str, Any]) -> bool:
    """Print the figures of one host beside their bars; whether all hold."""
    part, ratio = found["split"]["part_of_700"], found["best_effort"]["rt_beside_be_over_alone"]
    held = abs(part - SPLIT) <= SPLIT_TOLERANCE or not found["weights"]
    bar = f"bar: {SPLIT} +- {SPLIT_TOLERANCE}" if found["weights"] else "no weights here: no bar"
    print(f"{name}\n  part of the share of 700 beside 300      {part:8.3f}  ({bar})")
    print(f"  rt beside best effort, over rt alone     {ratio:8.3f}  (bar: at least {RT_LEAST})")
    print(f"  best effort's part beside a busy rt      {found['best_effort']['be_part_beside_busy_rt']:8.3f}")
    print(f"  best effort's part while rt rests        {found['best_effort']['be_part_while_rt_rests']:8.3f}")
    for which in ("split", "best_effort"):
        print(f"  {found[which]['how']}")
    return held and ratio >= RT_LEAST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splits", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=20)
    args = parser.parse_args()
    measured: dict[str, Any] = {"bars": {"part_of_700": [SPLIT, SPLIT_TOLERANCE], "rt_beside_be_over_alone": RT_LEAST}}
    held = True
    for name, grouped in (("control groups", True), ("scheduling policy alone", False)):
        measured[name] = asyncio.run(measure(grouped, args.splits, args.pairs))
        held = show(name, measured[name]) and held
    print(f"kept in {keep('shares', measured)}")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
