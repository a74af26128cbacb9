"""Durable submits per second over the API: the real controller process, several clients, fsync'd group commits.

Bar: 300/s. Run: python bench/submits.py [seconds]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from facts import keep, wait_for_controller
from tidewright.model.job import JobSpec
from tidewright.wire.client import Client

BAR, CLIENTS = 300, 8


def _submit(state: Path, until: float, counts: list[int]) -> None:
    spec = JobSpec(command=("true",), tier="basic", preempt="none")
    with Client(state) as client:
        done = 0
        while time.monotonic() < until:
            client.submit([spec])
            done += 1
        counts.append(done)


def measure(seconds: float) -> dict[str, float]:
    """Submits per second with ``CLIENTS`` clients at once, each waiting for its answer. No agent: jobs only queue."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(state)]
        with (Path(folder) / "log").open("wb") as log:
            daemon = subprocess.Popen([*argv, "--agent-socket", f"{folder}/no-agent.sock"], stdout=log, stderr=log)
        try:
            wait_for_controller(state)
            counts: list[int] = []
            began = time.monotonic()
            threads = [threading.Thread(target=_submit, args=(state, began + seconds, counts)) for _ in range(CLIENTS)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            took = time.monotonic() - began
            return {"submits_per_s": sum(counts) / took, "clients": CLIENTS, "bar": BAR}
        finally:
            daemon.terminate()
            daemon.wait(20)


if __name__ == "__main__":
    found = measure(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0)
    print(f"durable submits: {found['submits_per_s']:.0f}/s with {CLIENTS} clients (bar {BAR}/s)")
    print(f"kept in {keep('submits', found)}")
