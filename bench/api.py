"""The API of a controller with 50,000 jobs: answers at once, and others are kept waiting by nobody.

Bars: a page of three jobs in 50 ms; nobody waits longer than 100 ms while 10,000 specs in one body are taken in.
Run: python bench/api.py [jobs]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from facts import keep, wait_for_controller
from tidewright.model.job import JobSpec
from tidewright.wire.client import Client

BAR_MS, STALL_BAR_MS, BATCH = 50.0, 100.0, 10_000
TRIES = 7


class Prober:
    """Asks for three jobs again and again on a connection of its own; remembers the longest wait."""

    def __init__(self, state: Path) -> None:
        self._client = Client(state)
        self._over = threading.Event()
        self.waits_ms: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self._client.jobs(limit=3)
            self.waits_ms.append(1000 * (time.monotonic() - began))
            time.sleep(0.005)

    def __enter__(self) -> Prober:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def _specs(first: int, count: int) -> list[JobSpec]:
    env = {"PATH": "/usr/bin:/bin", "HOME": "/home/u", "LANG": "C.UTF-8"}
    return [
        JobSpec(name=f"job-{n}", command=("python", "train.py", f"--seed={n}"), tier=("basic", "standard")[n % 2],
                team=f"team-{n % 7}", user=f"user-{n % 50}", env=env)
        for n in range(first, first + count)
    ]  # fmt: skip


def _questions(client: Client) -> dict[str, Callable[[], Any]]:
    def first_event() -> None:
        stream = client._stream("/v1/events", {})
        with stream as answer:
            answer.readline()

    return {
        "GET /v1/jobs?limit=3": lambda: client.jobs(limit=3),
        "GET /v1/jobs?limit=3&state=running": lambda: client.jobs(limit=3, state="running"),
        "GET /v1/jobs?limit=3&user=nobody": lambda: client.jobs(limit=3, user="nobody"),
        "GET /v1/jobs?limit=3&all=1&team=team-3": lambda: client.jobs(limit=3, all=True, team="team-3"),
        "GET /v1/jobs/job-777 (by name)": lambda: client.job("job-777"),
        "GET /v1/jobs/777/wait?timeout=0": lambda: client.wait(777, timeout=0),
        "GET /v1/info": client.info,
        "GET /v1/nodes": client.nodes,
        "GET /v1/top": client.top,
        "GET /v1/usage?by=user": lambda: client.usage("user"),
        "GET /metrics": client.metrics,
        "GET /v1/events (start)": first_event,
    }


def measure(jobs: int) -> dict[str, Any]:
    """Longest waits while batches come in, and milliseconds of each question afterwards. No agent: jobs only queue."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(state)]
        with (Path(folder) / "log").open("wb") as log:
            daemon = subprocess.Popen([*argv, "--agent-socket", f"{folder}/no-agent.sock"], stdout=log, stderr=log)
        try:
            wait_for_controller(state)
            found: dict[str, Any] = {"jobs": jobs, "bar_ms": BAR_MS, "stall_bar_ms": STALL_BAR_MS, "batches": []}
            for first in range(0, jobs, BATCH):
                specs = _specs(first, min(BATCH, jobs - first))
                with Prober(state) as before:
                    time.sleep(2.0)
                with Prober(state) as prober:
                    time.sleep(0.2)
                    began = time.monotonic()
                    Client(state, timeout=600).submit(specs)
                    took = time.monotonic() - began
                    time.sleep(1.0)
                found["batches"].append(
                    {
                        "took_s": took,
                        "longest_wait_ms": max(prober.waits_ms),
                        "longest_wait_before_ms": max(before.waits_ms),
                    }
                )
            with Client(state, timeout=600) as client:
                found["answers_ms"] = {name: _median_ms(ask) for name, ask in _questions(client).items()}
                with Prober(state) as prober:
                    time.sleep(0.2)
                    began = time.monotonic()
                    assert len(client.jobs().jobs) == jobs
                    found["whole_list_s"] = time.monotonic() - began
                found["whole_list_longest_wait_ms"] = max(prober.waits_ms)
            return found
        finally:
            daemon.terminate()
            daemon.wait(60)


def _median_ms(ask: Callable[[], Any]) -> float:
    times = []
    for _ in range(TRIES):
        began = time.monotonic()
        ask()
        times.append(1000 * (time.monotonic() - began))
    return sorted(times)[TRIES // 2]


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 50_000)
    for batch in found["batches"]:
        print(
            f"a body of {BATCH} specs: {batch['took_s']:.1f} s; longest wait of others {batch['longest_wait_ms']:.0f} ms "
            f"(bar {STALL_BAR_MS:.0f} ms), {batch['longest_wait_before_ms']:.0f} ms while nothing else went on"
        )
    print(f"with {found['jobs']} jobs:")
    for name, ms in found["answers_ms"].items():
        print(f"  {name:<44} {ms:8.1f} ms  (bar {BAR_MS:.0f} ms)")
    print(
        f"  {'GET /v1/jobs, all of them':<44} {1000 * found['whole_list_s']:8.0f} ms, others waited "
        f"{found['whole_list_longest_wait_ms']:.0f} ms at most (bar {STALL_BAR_MS:.0f} ms)"
    )
    print(f"kept in {keep('api', found)}")
