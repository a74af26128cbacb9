"""CPUs and memory of ranks held to what was asked for, with real groups and real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.agent.agent_bench import Bench
from tests.criu_here import criu_here
from tidewright.agent.layout import AgentLayout
from tidewright.checkpoint import limits
from tidewright.checkpoint.cgroup import detect
from tidewright.checkpoint.criu.driver import Criu
from tidewright.model.job import Level

LIMITS = limits.detect(detect())
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(bool(LIMITS.missing), reason=f"no limits here: {LIMITS.missing}"),
]
MIB = 2**20
EAT = """
import os, sys, time
print("up", flush=True)
while not os.path.exists("eat"):
    time.sleep(0.01)
held = []
for i in range(1, 1000):
    held.append(bytearray(os.urandom(1 << 20)))
    if i % 16 == 0:
        print(i, flush=True)
"""
BURN = """
import os, time
print("up", flush=True)
wall, used = time.monotonic(), time.process_time()
for second in range(3):
    while time.monotonic() < wall + second + 1:
        sum(range(1000))
    print("share", (time.process_time() - used) / (time.monotonic() - wall), flush=True)
print("done", flush=True)
time.sleep(600)
"""


def made(bench: Bench) -> list[str]:
    return list(LIMITS.made(f"tidewright-{AgentLayout(bench.state).tag}-"))


def test_a_rank_that_passes_its_memory_is_killed_and_its_failure_names_it(play) -> None:
    async def body(bench: Bench) -> None:
        assert not (await bench.inventory()).unlimited
        seats = {"world": 2, "memory": 96 * MIB}
        await bench.launch(
            "sh", "-c", 'test "$RANK" = 1 && exec "$0" "$@"; exec sleep 600', sys.executable, "-c", EAT, **seats
        )
        await bench.logged("up", rank=1)
        assert len(made(bench)) == 2
        (bench.state / "eat").touch()
        report = await bench.until(lambda r: r.first_failure is not None)
        failure = report.first_failure
        assert failure is not None and (failure.rank, failure.code) == (1, 137)
        assert failure.memory_limit == 96 * MIB and "out of memory: passed its limit of 96.0MiB (--mem)" in failure.why
        assert failure.lines and int(failure.lines[-1]) < 96, "it was killed at its limit"
        assert report.host_limits.startswith("enforced by cgroup v")
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        await bench.verb("forget")
        await bench.call("inventory", {})
        while made(bench):
            await asyncio.sleep(0.02)

    play(body)


def test_memory_within_the_limit_is_nobodys_failure(play) -> None:
    async def body(bench: Bench) -> None:
        await bench.launch("sh", "-c", "exit 3", memory=64 * MIB)
        report = await bench.state_is("exited")
        assert report.first_failure is not None and report.first_failure.memory_limit == 0
        assert "memory" not in report.first_failure.why and not made(bench)

    play(body)


def test_half_a_cpu_is_half_a_core(play) -> None:
    async def body(bench: Bench) -> None:
        bench.patience_s = 30
        await bench.launch(sys.executable, "-c", BURN, cpus_milli=500)
        await bench.logged("done")
        share = float(bench.log().splitlines()[-2].split()[1])
        assert 0.2 < share < 0.7, bench.log()

    play(body)


@pytest.mark.skipif(not isinstance(criu_here(), Criu), reason=f"no full images here: {criu_here()}")
def test_a_restored_rank_is_under_its_limits_again(play) -> None:
    async def body(bench: Bench) -> None:
        asked = {"cpus_milli": 500, "memory": 256 * MIB}
        await bench.launch(sys.executable, "-c", EAT, **asked)
        await bench.logged("up")
        before = made(bench)
        await bench.verb("suspend", level=int(Level.FULL), serial=1)
        await bench.state_is("suspended")
        back = {
            "job": 1, "attempt": 0, "name": "t", "command": (sys.executable, "-c", EAT), "workdir": "/",
            "env": {"PATH": "/usr/bin:/bin"}, "world_size": 1,
            "ranks": [{"rank": 0, "local_rank": 0, "devices": [1]}], **asked,
        }  # fmt: skip
        await bench.verb("resume", serial=1, launch=back)
        await bench.state_is("running")
        now = [group for group in made(bench) if group not in before]
        assert now, "it has groups of its own"
        for group in map(Path, now):
            assert (group / "cgroup.procs").read_text().split(), group
            quota = group / "cpu.cfs_quota_us"
            assert not quota.exists() or quota.read_text().strip() == "50000"
        (bench.state / "eat").touch()
        report = await bench.until(lambda r: r.first_failure is not None)
        assert report.first_failure is not None and report.first_failure.memory_limit == 256 * MIB
        while made(bench):
            await asyncio.sleep(0.02)

    play(body)


def test_groups_of_an_agent_that_was_killed_are_removed_by_the_next(play) -> None:
    async def body(bench: Bench) -> None:
        await bench.launch("sleep", "600", cpus_milli=1000, memory=64 * MIB)
        await bench.state_is("running")
        assert made(bench)
        bench.kill()
        bench.start()
        await bench.state_is("running")
        assert made(bench), "its rank lives on within its limits"
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        await bench.verb("forget")
        while made(bench):
            await asyncio.sleep(0.02)

    play(body)


@pytest.mark.parametrize(("uid", "remedy"), [(1000, limits.REMEDY), (0, limits.REMEDY_OF_ROOT)])
def test_where_nothing_can_be_limited_it_says_so_and_what_to_do(
    uid: int, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    none = limits.HostLimits({}, "/sys/fs/cgroup: Permission denied")
    assert none.create("x", 500, MIB) == limits.RankLimits()
    assert none.describe(0, 0) == ""
    assert none.describe(0, MIB) == f"memory not enforced: /sys/fs/cgroup: Permission denied; {remedy}"
    assert none.missing.startswith("CPUs and memory not enforced")
