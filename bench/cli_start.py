"""How long ``tide ps`` takes, interpreter start included, with a controller that has jobs to list. Bar: 0.3 s.

Usage: python bench/cli_start.py [RUNS]
"""

from __future__ import annotations

import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from facts import keep, wait_for_controller
from tidewright.model.job import JobSpec
from tidewright.wire.client import Client

BAR_S, JOBS = 0.3, 100


def measure(runs: int) -> dict[str, float]:
    """Seconds of ``runs`` calls of ``tide ps`` listing JOBS jobs; nothing else is asked of the machine meanwhile."""
    tide = Path(sys.executable).with_name("tide")
    program = str(tide) if tide.exists() else shutil.which("tide")
    if program is None:
        raise SystemExit("tide is not installed: pip install -e .")
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(state)]
        argv += ["--agent-socket", f"{folder}/no-agent.sock"]
        with (Path(folder) / "log").open("wb") as log:
            daemon = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            _fill(state)
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            took = [_once([program, "--state", str(state), "ps"]) for _ in range(runs)]
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
        finally:
            daemon.terminate()
            daemon.wait(20)
    cpu_s = (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) / runs
    return {
        "median_s": statistics.median(took), "worst_s": max(took), "cpu_s": cpu_s, "runs": runs, "jobs": JOBS, "bar_s": BAR_S,
    }  # fmt: skip


def _fill(state: Path) -> None:
    """Wait for the controller and give it jobs, which only queue: there is no agent."""
    wait_for_controller(state)
    Client(state).submit([JobSpec(name=f"job-{at}", command=("true",)) for at in range(JOBS)])


def _once(argv: list[str]) -> float:
    began = time.perf_counter()
    lines = subprocess.run(argv, capture_output=True, check=True).stdout.count(b"\n")
    took = time.perf_counter() - began
    if lines != JOBS + 1:
        raise SystemExit(f"tide ps printed {lines} lines, not {JOBS + 1}")
    return took


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 15)
    print(
        f"tide ps: median {found['median_s']:.3f} s, worst {found['worst_s']:.3f} s (bar {BAR_S} s), CPU {found['cpu_s']:.3f} s"
    )
    print(f"kept in {keep('cli_start', found)}")
