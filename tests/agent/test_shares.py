"""Shares of one CPU slot with real processes: who gets its time, what is left of a share when an agent or a rank is not."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_bench import ENV, Bench
from tests.criu_here import criu_here
from tidewright.agent.layout import AgentLayout
from tidewright.agent.main import standard_drivers
from tidewright.agent.processes import attempt
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.base.errors import UsageError, WorldError
from tidewright.checkpoint import limits
from tidewright.checkpoint.cgroup import Signals, detect
from tidewright.checkpoint.criu.driver import Criu
from tidewright.devices.cpu import CpuBackend
from tidewright.fabric.protocol import Refused
from tidewright.model.job import Level
from tidewright.wire.agent import ForgetArgs, JobReport, LaunchArgs, RankSeat, StopArgs

pytestmark = pytest.mark.processes
LIMITS = limits.detect(detect())
needs_weights = pytest.mark.skipif(
    limits.WEIGHTS not in LIMITS.offers, reason=f"no CPU weights here: {LIMITS.missing or 'no cpu controller'}"
)
needs_criu = pytest.mark.skipif(not isinstance(criu_here(), Criu), reason=f"no full images here: {criu_here()}")
BUSY = """
import os, time
print("up", flush=True)
while True:
    if os.path.exists("rest"):
        time.sleep(0.5)
    else:
        sum(range(20000))
"""
QUIET = "import time; print('up', flush=True); time.sleep(600)"
TICK = os.sysconf("SC_CLK_TCK")


def cpu_s(pid: int) -> float:
    """CPU time of a process, seconds (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICK


def pid_of(state: Path, job: int, generation: int = 0) -> int:
    rank = state / "ranks" / f"{job}.0" / (f"0.{generation}" if generation else "0")
    return int(json.loads((rank / "started").read_text())["pid"])


async def spent(
    pids: tuple[int, int], enough: Callable[[float, float], bool], patience_s: float = 60
) -> tuple[float, float]:
    """CPU seconds that two processes use from now until it is ``enough``."""
    before = [cpu_s(pid) for pid in pids]
    for _ in range(int(patience_s / 0.05)):
        await asyncio.sleep(0.05)
        first, second = (cpu_s(pid) - was for pid, was in zip(pids, before, strict=True))
        if enough(first, second):
            break
    return first, second


async def launch(bench: Bench, job: int, program: str = QUIET, **more: Any) -> JobReport:
    """On slot 0, until it is up."""
    seats = [{"rank": 0, "local_rank": 0, "devices": [0]}]
    await bench.launch(sys.executable, "-c", program, job=job, ranks=seats, **more)
    await bench.logged("up", job)
    return await bench.state_is("running", job=job)


@needs_weights
def test_two_busy_shares_get_cpu_time_in_proportion(play) -> None:
    async def body(bench: Bench) -> None:
        first = await launch(bench, 1, BUSY, gpu_milli=700)
        await launch(bench, 2, BUSY, gpu_milli=300)
        assert "CPU weights of control groups" in first.share_limits
        pids = pid_of(bench.state, 1), pid_of(bench.state, 2)
        seven, three = await spent(pids, lambda one, other: one + other > 1.5)
        assert 0.6 < seven / (seven + three) < 0.8

    play(body)


async def beside(pids: tuple[int, int], rest: Path) -> None:
    """A busy best-effort share next to a busy rt one, and next to one that sleeps."""
    first, best_effort = await spent(pids, lambda one, other: one > 0.6)
    assert first > 0.6 and best_effort < 0.1 * first
    rest.touch()
    await asyncio.sleep(0.5)
    # Only what the two use counts: work of others on this machine goes before best effort, too.
    first, best_effort = await spent(pids, lambda one, other: other > 0.1)
    assert best_effort > 4 * first


@needs_weights
def test_best_effort_runs_in_what_the_others_leave(play) -> None:
    async def body(bench: Bench) -> None:
        best = await launch(bench, 2, BUSY.replace("rest", "never"), share_class="be")
        await launch(bench, 1, BUSY, gpu_milli=300)
        assert best.share_limits.startswith("best effort: runs in CPU time that nothing else wants")
        await beside((pid_of(bench.state, 1), pid_of(bench.state, 2)), bench.state / "rest")

    play(body)


SAVES = """
import signal, sys, time

def save(*_):
    began = time.process_time()
    while time.process_time() - began < 0.3:
        pass
    print("saved", flush=True)
    sys.exit(85)

signal.signal(signal.SIGTERM, save)
print("up", flush=True)
while True:
    sum(range(20000))
"""


@needs_weights
def test_a_best_effort_share_that_is_to_save_its_state_is_not_starved(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 2, SAVES, share_class="be")
        await launch(bench, 1, BUSY, gpu_milli=1000)
        await bench.verb("suspend", job=2, level=int(Level.COOPERATIVE), grace_us=10_000_000)
        await bench.state_is("exited", job=2)
        assert "saved" in bench.log(2), "within its grace, next to busy work"

    play(body)


@needs_weights
def test_what_runs_again_is_best_effort_again(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 2, BUSY, share_class="be")
        await launch(bench, 1, BUSY, gpu_milli=1000)
        for level, serial in (
            ((Level.FREEZE, 0), (Level.FULL, 1)) if isinstance(criu_here(), Criu) else ((Level.FREEZE, 0),)
        ):
            verb = {"level": int(level)} if level == Level.FREEZE else {"serial": serial}
            await bench.verb("suspend" if level == Level.FREEZE else "checkpoint", job=2, **verb)
            if level == Level.FREEZE:
                await bench.state_is("suspended", job=2)
                await bench.verb("resume", job=2)
            else:
                await bench.until(lambda report: report.image is not None, job=2)
            await bench.state_is("running", job=2)
            first, best_effort = await spent(
                (pid_of(bench.state, 1), pid_of(bench.state, 2)), lambda one, other: one > 0.7
            )
            assert first > 0.7 and best_effort < 0.1 * first, level

    play(body)


class Node:
    """An agent in this process, on a host that offers no control groups."""

    def __init__(self, root: Path) -> None:
        self.layout, self.heard = AgentLayout(root), list[JobReport]()
        self.layout.prepare()
        self.backend = CpuBackend("n1", (min(os.sched_getaffinity(0)),), 1, 2**33)
        context = NodeContext(self.layout, self.backend, Signals())
        self.supervisor = Supervisor(context, standard_drivers("n1"), self.heard.append)

    def launch(self, job: int, program: str, **more: Any) -> None:
        args = LaunchArgs(
            job=job, attempt=0, command=(sys.executable, "-c", program), env=dict(ENV), workdir=str(self.layout.root),
            ranks=(RankSeat(0, 0, (0,)),), grace_us=0, **more,
        )  # fmt: skip
        self.supervisor.launch(args, f"op{job}")

    async def until(self, true: Callable[[], object]) -> None:
        for _ in range(1500):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError([report.state for report in self.heard])

    async def end(self) -> None:
        for key, each in self.supervisor.attempts.items():
            if not each.over:
                self.supervisor.stop(StopArgs(job=key[0], attempt=key[1], grace_us=0), "end")
        await self.until(lambda: all(each.over for each in self.supervisor.attempts.values()))
        await self.supervisor.close()


def test_without_control_groups_best_effort_still_runs_in_what_the_others_leave(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def body() -> None:
        try:
            node.launch(2, BUSY.replace("rest", "never"), share_class="be")
            node.launch(1, BUSY, gpu_milli=300)
            await node.until(lambda: {1, 2} == {each.job for each in node.heard if each.state == "running"})
            limited = {each.job: each.share_limits for each in node.heard}
            assert "compute counted, not enforced" in limited[1] and "SCHED_IDLE" in limited[2]
            pids = pid_of(tmp_path, 1), pid_of(tmp_path, 2)
            assert [os.sched_getscheduler(pid) for pid in pids] == [os.SCHED_OTHER, os.SCHED_IDLE]
            await beside(pids, tmp_path / "rest")
        finally:
            await node.end()
        assert not node.backend.shares(), "what is over has no share"

    asyncio.run(body())


def holders(node: Node) -> list[str]:
    return [part.holder for part in node.backend.shares()]


def test_what_never_ran_or_lives_elsewhere_has_no_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path)

    async def body() -> None:
        try:
            with monkeypatch.context() as patch:
                patch.setattr(attempt, "make_ranks", lambda *rest: (_ for _ in ()).throw(OSError(28, "No space left")))
                with pytest.raises(WorldError, match="cannot record the launch"):
                    node.launch(1, QUIET, gpu_milli=1000)
            assert holders(node) == []
            node.launch(2, QUIET, gpu_milli=1000, output="/proc/none/log")
            assert holders(node) == ["2.0"]
            await node.until(lambda: any(each.state == "failed" for each in node.heard))
            assert holders(node) == []
            node.launch(3, QUIET, gpu_milli=1000)
            await node.until(lambda: node.heard[-1].job == 3 and node.heard[-1].state == "running")
            with pytest.raises(UsageError, match="compute"):
                node.launch(4, QUIET, gpu_milli=1)
            node.supervisor.forget(ForgetArgs(job=3, attempt=0, left=True), "leave")
            node.launch(4, QUIET, gpu_milli=1000)
            assert holders(node) == ["4.0"], "the controller may place others at once"
            await node.until(lambda: (3, 0) not in node.supervisor.attempts)
            assert holders(node) == ["4.0"]
        finally:
            await node.end()
        assert holders(node) == []

    asyncio.run(body())


def test_an_agent_that_is_killed_neither_loses_a_share_nor_doubles_it(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 1, gpu_milli=700)
        await launch(bench, 2, share_class="be")
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        await bench.state_is("running")
        with pytest.raises(Refused, match=r"400/1000 of compute of device 0, which has 300/1000"):
            await launch(bench, 3, gpu_milli=400)
        await launch(bench, 4, gpu_milli=300)
        await bench.verb("stop", grace_us=0)
        await bench.state_is("exited")
        await launch(bench, 5, gpu_milli=700)
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        await bench.state_is("running", job=5)
        with pytest.raises(Refused):
            await launch(bench, 6, gpu_milli=1)

    play(body)


def test_a_frozen_attempt_gives_up_its_compute_and_asks_for_it_again(play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 1, gpu_milli=700)
        await bench.verb("suspend", level=int(Level.FREEZE))
        await bench.state_is("suspended")
        await launch(bench, 2, gpu_milli=800)
        with pytest.raises(Refused, match="has 200/1000"):
            await bench.verb("resume")
        await bench.verb("resume", ranks=[{"rank": 0, "devices": [1]}])
        await bench.state_is("running")
        bench.kill()
        bench.start("--backend", "cpu", "--slots", "4")
        await launch(bench, 3, gpu_milli=200)
        seats = [{"rank": 0, "local_rank": 0, "devices": [1]}]
        with pytest.raises(Refused, match="device 1, which has 300/1000"):
            await bench.launch("true", job=4, ranks=seats, gpu_milli=400)

    play(body)


def test_a_share_of_two_devices_is_no_share(play) -> None:
    async def body(bench: Bench) -> None:
        report = await bench.launch("true", world=2, gpu_milli=500)
        assert (report.state, report.fault) == ("failed", "user") and "share of several devices" in report.error

    play(body)


@needs_criu
@needs_weights
@pytest.mark.parametrize("asked", [{"share_class": "be"}, {"gpu_milli": 300}], ids=["be", "rt"])
def test_a_restored_rank_has_its_share_and_class_again(asked: dict[str, Any], play) -> None:
    async def body(bench: Bench) -> None:
        await launch(bench, 1, **asked)
        await bench.verb("suspend", level=int(Level.FULL), serial=1)
        await bench.state_is("suspended")
        await launch(bench, 2, gpu_milli=1000)
        back = {
            "job": 1, "attempt": 0, "name": "t", "command": (sys.executable, "-c", QUIET), "workdir": str(bench.state),
            "env": dict(ENV), "world_size": 1, "ranks": [{"rank": 0, "local_rank": 0, "devices": [0]}], **asked,
        }  # fmt: skip
        if "gpu_milli" in asked:
            with pytest.raises(Refused, match="has 0/1000"):
                await bench.verb("resume", serial=1, launch=back)
            await bench.verb("stop", job=2, grace_us=0)
            await bench.state_is("exited", job=2)
        await bench.verb("resume", serial=1, launch=back)
        report = await bench.state_is("running")
        assert report.share_limits
        pid = pid_of(bench.state, 1, generation=1)
        groups = [Path(group) for group in LIMITS.made(f"tidewright-{AgentLayout(bench.state).tag}-1.0.0.1")]
        if "gpu_milli" in asked:
            assert os.sched_getscheduler(pid) == os.SCHED_OTHER
            weights = {"cpu.shares": "307", "cpu.weight": "30"}
        else:
            assert os.sched_getscheduler(pid) == os.SCHED_IDLE, "CRIU keeps the policy"
            weights = (
                {"cpu.idle": "1"} if limits.IDLE_GROUPS in LIMITS.offers else {"cpu.shares": "2", "cpu.weight": "1"}
            )
        found = {
            name: (group / name).read_text().strip() for group in groups for name in weights if (group / name).exists()
        }
        assert found and found.items() <= weights.items()

    play(body)
