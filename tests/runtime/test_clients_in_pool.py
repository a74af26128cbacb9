"""Jobs as clients of a runtime in a real pool: they find it, have no device, follow it, and end with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tidewright.app import runtime as app_runtime

from .conftest import until
from .pool import Pool

pytestmark = pytest.mark.processes

PROGRAM = """
import os, sys, time
import numpy as np
from tidewright.runtime import RuntimeClient

wanted = None if sys.argv[1] == "any" else sys.argv[1]
with RuntimeClient(kind=wanted) as client:
    model = client.load("tidewright.testing.runtime_models:double", [("float32", (4,))])
    print("devices", repr(os.environ["CUDA_VISIBLE_DEVICES"]), "cores", sorted(os.sched_getaffinity(0)), flush=True)
    mine = next(row["class"] for row in client.stats()["clients"] if row["queue"] == client.queue)
    print("attempt", os.environ["TIDE_ATTEMPT"], "queue", mine, flush=True)
    done = 0
    while not os.path.exists(sys.argv[2]):
        assert model.infer(np.ones(4, np.float32))[0][0] == 2
        done += 1
        time.sleep(0.01)
    print("done", done, flush=True)
"""


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with tempfile.TemporaryDirectory(prefix="tide-") as folder:  # a socket's path is short
        pool = Pool(Path(folder))
        pool.tide("up")
        (pool.state / "client.py").write_text(PROGRAM)
        yield pool
        pool.tide("down", "--jobs")


def client(pool: Pool, runtime: str, kind: str = "be", asks: str = "any", end: str = "never") -> int:
    """Submit one that runs until there is a file ``end``."""
    words = ("run", "--parsable", "--runtime", runtime, "--class", kind, "--name", f"{kind}-job", "--", sys.executable)
    return int(pool.tide(*words, str(pool.state / "client.py"), asks, str(pool.state / end)).split()[-1])


def runtime(pool: Pool, name: str) -> int:
    pool.tide("runtime", "up", "--name", name)
    return int(json.loads(pool.tide("ps", "-o", "json", "--name", name))["jobs"][-1]["id"])


def job(pool: Pool, number: int) -> dict[str, Any]:
    return json.loads(pool.tide("show", str(number), "-o", "json"))["job"]  # type: ignore[no-any-return]


def daemon(pool: Pool, name: str) -> int:
    """The process of a runtime; 0 where it does not answer."""
    rows = json.loads(pool.tide("runtime", "ls", "-o", "json"))["runtimes"]
    return next((row["pid"] for row in rows if row["name"] == name and row["state"] == "up"), 0)


def log(pool: Pool, number: int) -> str:
    return pool.tide("logs", str(number))


def test_clients_find_their_runtime_and_end_well(pool: Pool) -> None:
    host = runtime(pool, "alpha")
    best, fast = client(pool, "alpha", end="over"), client(pool, "alpha", "rt", "rt", "over")
    until(lambda: "queue" in log(pool, best) and "queue" in log(pool, fast))
    cores = job(pool, host)["where"][0]
    assert "devices '' cores" in log(pool, best)
    assert "attempt 1 queue be" in log(pool, best)
    assert "attempt 1 queue rt" in log(pool, fast)
    shown = job(pool, best)
    assert (shown["held"], shown["devices"], shown["where"][0]["node"]) == (0, 0, cores["node"])
    text = pool.tide("top", "--once")
    assert "PREEMPTIONS/S" in text and f"be-job (job {best})" in text and f"rt-job (job {fast})" in text
    found = json.loads(pool.tide("top", "-o", "json"))
    assert {(row["runtime"], row["class"]) for row in found["clients"]} == {("alpha", "be"), ("alpha", "rt")}
    assert "best-effort client" in pool.tide("show", str(best))
    (pool.state / "over").touch()
    pool.tide("wait", str(best), str(fast))
    assert "done" in log(pool, best) and "done" in log(pool, fast)
    pool.tide("runtime", "down", "alpha")


def test_clients_follow_a_runtime_that_is_suspended_and_end_with_it(pool: Pool) -> None:
    host = runtime(pool, "beta")
    mine = client(pool, "beta")
    until(lambda: "attempt 1" in log(pool, mine))
    pool.tide("suspend", str(host))
    until(lambda: job(pool, mine)["state"] == "held")
    assert "waits for runtime beta" in pool.tide("why", str(mine))
    pool.tide("resume", str(host))
    until(lambda: "attempt 2" in log(pool, mine))
    pool.tide("runtime", "down", "beta")
    until(lambda: job(pool, mine)["state"] == "cancelled")
    assert f"its runtime (job {host}) has ended" in job(pool, mine)["why"]


def test_a_client_does_not_fail_for_a_runtime_that_is_killed(pool: Pool) -> None:
    host = runtime(pool, "gamma")
    mine = client(pool, "gamma")
    until(lambda: "attempt 1" in log(pool, mine))
    (pid,) = [
        row["pid"] for row in json.loads(pool.tide("runtime", "ls", "-o", "json"))["runtimes"] if row["state"] == "up"
    ]
    os.kill(pid, signal.SIGKILL)
    until(lambda: job(pool, host)["state"] == "failed")
    until(lambda: job(pool, mine)["state"] == "cancelled")


def test_a_best_effort_job_asks_for_no_real_time(pool: Pool) -> None:
    runtime(pool, "delta")
    mine = client(pool, "delta", "be", "rt")
    pool.tide("wait", str(mine), code=1)
    assert "this job is a best-effort client" in log(pool, mine)
    pool.tide("runtime", "up", "--name", "delta", code=4)
    pool.tide("runtime", "down", "delta")


def test_a_runtime_that_hangs_hides_nothing_else(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    host = runtime(pool, "epsilon")
    until(lambda: "up" in pool.tide("runtime", "ls"))
    (pid,) = [
        row["pid"] for row in json.loads(pool.tide("runtime", "ls", "-o", "json"))["runtimes"] if row["state"] == "up"
    ]
    monkeypatch.setattr(app_runtime, "ANSWER_S", 0.2)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "silent" in pool.tide("runtime", "ls")
        assert "devices held" in pool.tide("top", "--once")
        assert "tide cancel" in pool.tide("runtime", "top", "epsilon", "--once", code=5)
    finally:
        os.kill(pid, signal.SIGCONT)
    pool.tide("cancel", str(host))
    until(lambda: job(pool, host)["state"] == "cancelled")


def test_clients_are_left_out_of_a_replay(pool: Pool) -> None:
    pool.tide("run", "--wait", "--", "sleep", "0.2")
    assert "only for a device runtime, and are left out" in pool.tide("replay", str(pool.state))


def test_what_cannot_be_is_refused(pool: Pool) -> None:
    run = ("run", "--", "true")
    assert "start one with tide runtime up" in pool.tide("run", "--runtime", "nothere", "--", "true", code=3)
    assert "--runtime" in pool.tide("run", "--class", "rt", *run[1:], code=2)
    assert "devices" in pool.tide("run", "--runtime", "x", "-g", "2", *run[1:], code=2)
    (pool.state / "job.yaml").write_text("command: 'true'\nclass: rt\n")
    assert "job.yaml:2: class" in pool.tide("submit", str(pool.state / "job.yaml"), code=2)
    assert "names no runtime" in pool.tide("run", "--runtime", "", *run[1:], code=2)
    (pool.state / "job.yaml").write_text("command: 'true'\nruntime: ''\n")
    assert "job.yaml:2: runtime" in pool.tide("submit", str(pool.state / "job.yaml"), code=2)
    (pool.state / "job.yaml").write_text("command: 'true'\nruntime: x\ndevice_types: [cpu]\n")
    assert "job.yaml:3: device_types" in pool.tide("submit", str(pool.state / "job.yaml"), code=2)
