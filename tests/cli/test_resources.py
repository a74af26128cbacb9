"""CPUs and memory of jobs through the real commands: asked for, shown, kept to, and named where they end a job."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.test_up_down import Real
from tidewright.agent.layout import AgentLayout
from tidewright.checkpoint import limits
from tidewright.checkpoint.cgroup import detect

LIMITS = limits.detect(detect())
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(LIMITS.missing), reason=f"no limits here: {LIMITS.missing}"),
]


@pytest.fixture
def tide(tmp_path: Path) -> Iterator[Real]:
    real = Real(tmp_path / "state")
    assert real("up", "--slots", "2").returncode == 0
    yield real
    real("down", "--jobs")


def test_a_job_that_passes_its_memory_says_so_everywhere(tide: Real) -> None:
    eats = "x = [bytearray(b'1' * 2**20) for _ in range(4096)]"
    done = tide("run", "--mem", "64MiB", "--wait", "--", sys.executable, "-c", eats)
    said = "out of memory: rank 0 passed its limit of 64.0MiB (--mem)"
    assert done.returncode == 137 and said in done.stderr
    assert f"failed: {said}" in tide("show", "1").stdout
    view = json.loads(tide("show", "1", "-o", "json").stdout)["job"]
    assert view["cause"]["code"] == "OutOfMemory" and view["spec"]["memory"] == 2**26
    own = f"tidewright-{AgentLayout(tide.state).tag}-"
    assert not LIMITS.made(own), "its groups are gone"
    assert tide("run", "--mem", "64MiB", "--", "sleep", "600").returncode == 0
    until = time.monotonic() + 30
    while not LIMITS.made(own):  # that they are looked for by the right name
        assert time.monotonic() < until
        time.sleep(0.05)


def test_what_is_asked_for_is_shown_of_the_job_and_of_its_node(tide: Real) -> None:
    assert tide("run", "--cpus", "0.5", "--mem", "100MiB", "-g", "2", "--", "sleep", "600").returncode == 0
    assert tide("wait", "1", "--timeout", "0").returncode == 124
    (node,) = json.loads(tide("nodes", "-o", "json").stdout)["nodes"]
    while not node["cpus_milli_asked"]:
        (node,) = json.loads(tide("nodes", "-o", "json").stdout)["nodes"]
    assert (node["cpus_milli_asked"], node["memory_asked"]) == (1000, 200 * 2**20) and not node.get("unlimited")
    assert f"1/{node['cpus']}" in tide("nodes", "-o", "wide").stdout
    shown, until = "", time.monotonic() + 20
    while "enforced" not in shown and time.monotonic() < until:  # said by the agent once the ranks have started
        shown = next(line for line in tide("show", "1").stdout.splitlines() if line.startswith("host"))
    assert "0.5 CPUs and 100.0MiB of memory for each rank; enforced by cgroup v" in shown


def test_what_can_never_be_is_refused_with_what_to_do(tide: Real) -> None:
    most = json.loads(tide("nodes", "-o", "json").stdout)["nodes"][0]["cpus"]
    said = tide("run", "--cpus", str(most + 1), "--", "true")
    assert said.returncode == 2 and f"the nearest that fits: --cpus {most}" in said.stderr
    assert tide("run", "--mem", "1KiB", "--", "true").returncode == 2
    assert tide("run", "--cpus", "nan", "--", "true").returncode == 2
    few = tide("run", "--cpus", "2", "--ranks", "32", "-g", "2", "--", "true")
    assert few.returncode == 2 and "each of its 32 ranks needs 2 host CPUs" in few.stderr
