"""Shares of a device's memory on a node: the limit of a rank, jobs over it are warned, then evicted. Real processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.agent.agent_bench import ENV
from tidewright.agent.layout import AgentLayout
from tidewright.agent.main import standard_drivers
from tidewright.agent.processes.memory_guard import COUNTED_ONLY
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.checkpoint.cgroup import Signals
from tidewright.devices.excess import Rules
from tidewright.devices.fake import FakeBackend
from tidewright.model.job import Level
from tidewright.wire.agent import JobReport, LaunchArgs, RankSeat, StopArgs

pytestmark = pytest.mark.processes
GIB = 2**30
SLEEP = """
import signal, time
signal.signal(signal.SIGTERM, lambda *_: exit(0))
print("up", flush=True)
time.sleep(600)
"""
TELL = """
import os
print({name: value for name, value in os.environ.items() if "MEM" in name})
print(os.environ.get("PYTHONPATH"))
"""


class Node:
    """An agent without its process and its socket, on a node of two devices of 40 GiB."""

    def __init__(self, root: Path, kind: str = "h100", action: str = "evict") -> None:
        self.layout, self.heard = AgentLayout(root), list[JobReport]()
        self.layout.prepare()
        self.backend = FakeBackend("n1", 2, kind, 40 * GIB)
        house = NodeContext(self.layout, self.backend, Signals())
        self.supervisor = Supervisor(
            house, standard_drivers("n1"), self.heard.append, Rules(action, patience_s=30, grace_s=60)
        )

    def launch(self, program: str, share: int = 12 * GIB, **fields) -> JobReport:
        seats = (RankSeat(0, 0, (0,)),)
        args = LaunchArgs(
            job=1, attempt=1, command=(sys.executable, "-c", program), env=dict(ENV), workdir="/", ranks=seats,
            gpu_memory=share, grace_us=5_000_000, **fields,
        )  # fmt: skip
        return self.supervisor.launch(args, "op")

    async def until(self, true: Callable[[], object]) -> None:
        for _ in range(1500):
            if true():
                return
            await asyncio.sleep(0.01)
        raise AssertionError([report.state for report in self.heard])

    def log(self) -> str:
        path = Path(self.supervisor.attempts[1, 1].logs()[0][1])
        return path.read_text() if path.exists() else ""

    async def run(self, program: str, **fields) -> int:
        """Launch; the pid of its process."""
        self.launch(program, **fields)
        await self.until(lambda: "up" in self.log() and self.supervisor.attempts[1, 1].record.phase == "running")
        return self.supervisor.attempts[1, 1].ranks[0].main.pid  # type: ignore[union-attr]


def play(node: Node, body: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        try:
            await body()
        finally:
            for key, attempt in node.supervisor.attempts.items():
                if not attempt.over:
                    node.supervisor.stop(StopArgs(job=key[0], attempt=key[1], grace_us=0), "end")
            await node.until(lambda: all(each.over for each in node.supervisor.attempts.values()))
            await node.supervisor.close()

    asyncio.run(whole())


def test_who_goes_on_taking_too_much_is_warned_and_then_evicted(tmp_path: Path) -> None:
    node = Node(tmp_path)
    look = node.supervisor.memory.look

    async def body() -> None:
        pid = await node.run(SLEEP)
        assert "evicts" in node.heard[-1].memory_limit
        node.backend.held = {0: {pid: 13 * GIB, 1: 20 * GIB}}  # pid 1 is no rank
        await look(0.0)
        await look(29.0)
        assert not node.heard[-1].notice, "a short peak is tolerated"
        await look(31.0)
        assert "it uses 13312 MiB of device 0 and asked for 12288 MiB; it is evicted in 60s" in node.heard[-1].notice
        assert "tidewright: it uses 13312 MiB" in node.log()
        await look(95.0)
        await node.until(lambda: node.heard[-1].state == "exited")
        last = node.heard[-1]
        assert (last.code, last.fault, last.lost) == (137, "user", False), "though it exits with 0 on SIGTERM"
        assert last.why.startswith("evicted: it uses 13312 MiB")

    play(node, body)


def test_who_takes_less_again_is_left_alone_and_so_is_who_keeps_to_its_share(tmp_path: Path) -> None:
    node = Node(tmp_path)
    look = node.supervisor.memory.look

    async def body() -> None:
        pid = await node.run(SLEEP)
        for at, held in ((0.0, 13), (31.0, 13), (40.0, 12), (200.0, 12), (400.0, 12)):
            node.backend.held = {0: {pid: held * GIB}}
            await look(at)
        assert node.heard[-1].state == "running" and "within its 12288 MiB" in node.heard[-1].notice
        node.backend.silent = True
        await look(500.0)

    play(node, body)


def test_a_warning_goes_into_no_pipe_that_the_program_has_put_in_place_of_its_log(tmp_path: Path) -> None:
    node = Node(tmp_path)

    async def body() -> None:
        pid = await node.run(SLEEP)
        path = node.supervisor.attempts[1, 1].logs()[0][1]
        os.unlink(path)
        os.mkfifo(path)
        reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # else a test that fails would hang
        node.backend.held = {0: {pid: 13 * GIB}}
        await node.supervisor.memory.look(0.0)
        await node.supervisor.memory.look(31.0)
        assert "it uses 13312 MiB" in node.heard[-1].notice
        assert os.read(reading, 4096) == b""
        os.close(reading)

    play(node, body)


def test_an_operator_may_have_them_warned_only_or_not_looked_at(tmp_path: Path) -> None:
    for action, said in (("warn", True), ("off", False)):
        node = Node(tmp_path / action, action=action)

        async def body(node: Node = node, said: bool = said) -> None:
            pid = await node.run(SLEEP)
            node.backend.held = {0: {pid: 30 * GIB}}
            for at in (0.0, 31.0, 500.0, 1000.0):
                await node.supervisor.memory.look(at)
            assert node.heard[-1].state == "running" and bool(node.heard[-1].notice) is said

        play(node, body)


@pytest.mark.parametrize("level", [Level.FREEZE, Level.NONE])
def test_a_rank_is_told_its_share_whether_it_can_be_suspended_or_not(tmp_path: Path, level: Level) -> None:
    node = Node(tmp_path)

    async def body() -> None:
        node.launch(TELL, level=int(level))
        await node.until(lambda: node.heard and node.heard[-1].state == "exited")
        told = node.log()
        assert "'TIDE_GPU_MEMORY_FRACTION': '0.3'" in told and "'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.3'" in told
        assert "inject" in told.splitlines()[1]

    play(node, body)


def test_on_cpu_slots_a_share_is_counted_and_the_report_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path, kind="cpu")

    async def body() -> None:
        node.launch(TELL)
        await node.until(lambda: node.heard and node.heard[-1].state == "exited")
        assert node.log().startswith("{}") and node.heard[-1].memory_limit == COUNTED_ONLY

    play(node, body)
