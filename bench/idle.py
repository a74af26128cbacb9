"""The controller with nothing to do. Bars: under 1 % of a core, under 120 MB resident.

Run: python bench/idle.py [seconds]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from facts import keep, wait_for_controller
from tidewright.wire.client import Client

BAR_PERCENT, BAR_MB = 1.0, 120


def measure(seconds: float) -> dict[str, float]:
    """CPU share and resident memory of a controller with its agent connected and no jobs."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        with (Path(folder) / "log").open("wb") as log:
            argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(state), "--backend", "cpu"]
            daemon = subprocess.Popen(argv, stdout=log, stderr=log)
        try:
            wait_for_controller(state, agent=True)
            process = psutil.Process(daemon.pid)
            before, began = sum(process.cpu_times()[:2]), time.monotonic()
            time.sleep(seconds)
            used = sum(process.cpu_times()[:2]) - before
            rss = process.memory_info().rss / 1e6
            return {
                "cpu_percent": 100 * used / (time.monotonic() - began), "rss_mb": rss,
                "bar_percent": BAR_PERCENT, "bar_mb": BAR_MB,
            }  # fmt: skip
        finally:
            Client(state).shutdown()
            daemon.wait(20)


if __name__ == "__main__":
    found = measure(float(sys.argv[1]) if len(sys.argv) > 1 else 15.0)
    print(f"idle controller: {found['cpu_percent']:.2f} % of a core (bar {BAR_PERCENT} %)")
    print(f"resident memory: {found['rss_mb']:.0f} MB (bar {BAR_MB} MB)")
    print(f"kept in {keep('idle', found)}")
