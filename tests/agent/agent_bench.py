"""A real agent process on a temporary state directory, driven through the local fabric."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tests.forked import Forked, forks
from tidewright.agent.layout import AgentLayout
from tidewright.checkpoint.cgroup import places, remove, wait_until
from tidewright.checkpoint.processes import PROC, grouped, send
from tidewright.fabric.local import LocalFabric
from tidewright.fabric.protocol import Unknown
from tidewright.wire.agent import Inventory, JobReport, Usage

PATIENCE_S = 40.0
ENV = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}


def bearing(text: str) -> list[int]:
    """Live processes with ``text`` in their environment."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if text.encode() in (entry / "environ").read_bytes() and b") Z " not in (entry / "stat").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def groups(state: Path) -> list[Path]:
    """Groups made for ranks of this state directory, for freezing and for limits."""
    bases = dict.fromkeys(base for _, _, base in places())
    return [path for base in bases for path in base.glob(f"tidewright-{AgentLayout(state).tag}-*")]


class Bench:
    """Agent, fabric and the reports heard so far."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.process: Forked | subprocess.Popen[bytes] | None = None
        self.fabric = LocalFabric(state / "agent.sock")
        self.heard: list[JobReport] = []
        self.nodes: list[bool] = []
        self.epoch = 1
        self.patience_s = PATIENCE_S
        """Of a call."""

    def start(self, *options: str) -> None:
        """An agent that has what a new process has, and its modules already."""
        self.state.mkdir(exist_ok=True)
        self.process = forks("tidewright.agent.__main__").start(*self._named(options))

    def execute(self, *options: str) -> None:
        """An agent as a user starts it, which takes half a second."""
        command = [sys.executable, "-m", "tidewright.agent", *self._named(options)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
        )

    def _named(self, options: tuple[str, ...]) -> tuple[str, ...]:
        return "--state", str(self.state), "--name", "n1", *options

    def kill(self, number: int = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(PATIENCE_S)

    async def call(self, method: str, args: dict[str, Any], op_id: str = "") -> dict[str, Any]:
        while True:
            try:
                return await self.fabric.call(
                    "n1", method, args, op_id=op_id, epoch=self.epoch, timeout=self.patience_s
                )
            except Unknown as error:
                if "did not answer" in str(error):
                    raise  # else the connection broke: repeat, as a controller does

    async def launch(self, *command: str, job: int = 1, attempt: int = 0, **more: Any) -> JobReport:
        world = more.pop("world", 1)
        args = {
            "job": job,
            "attempt": attempt,
            "name": "t",
            "command": command,
            "env": {**ENV, **more.pop("env", {})},
            "workdir": str(self.state),
            "world_size": world,
            "ranks": [{"rank": rank, "local_rank": rank, "devices": [rank]} for rank in range(world)],
            **more,
        }
        return msgspec.convert(await self.call("launch", args), JobReport)

    async def verb(self, method: str, job: int = 1, attempt: int = 0, op_id: str = "", **more: Any) -> JobReport:
        args = {"job": job, "attempt": attempt, **more}
        return msgspec.convert(await self.call(method, args, op_id), JobReport)

    async def inventory(self) -> Inventory:
        return msgspec.convert(await self.call("inventory", {}), Inventory)

    async def usage(self) -> Usage:
        return msgspec.convert(await self.call("usage", {}), Usage)

    async def until(self, good: Callable[[JobReport], bool], job: int = 1) -> JobReport:
        """The next state of a job that is ``good``, by inventory (so that restarts of the agent lose nothing)."""

        async def look() -> JobReport:
            while True:
                for report in (await self.inventory()).jobs:
                    if report.job == job and good(report):
                        return report
                await asyncio.sleep(0.02)

        return await asyncio.wait_for(look(), PATIENCE_S)

    async def state_is(self, *states: str, job: int = 1) -> JobReport:
        return await self.until(lambda report: report.state in states, job)

    def log(self, job: int = 1, rank: int = 0, attempt: int = 0) -> str:
        path = self.state / "logs" / str(job) / f"rank{rank}.{attempt}.log"
        return path.read_text() if path.exists() else ""

    async def logged(self, text: str, job: int = 1, rank: int = 0) -> str:
        """A job's log once ``text`` is in it and its launch is over."""
        await self.until(lambda report: report.state != "starting", job)

        async def look() -> str:
            while text not in self.log(job, rank):
                await asyncio.sleep(0.02)
            return self.log(job, rank)

        return await asyncio.wait_for(look(), PATIENCE_S)

    def clean(self) -> None:
        """Kill the agent and everything it ever started, by id, and remove its freezer groups."""
        if self.process is not None and self.process.poll() is None:
            self.kill()
        send((pid for pid in bearing(str(self.state)) if pid != os.getpid()), signal.SIGKILL)
        for group in groups(self.state):
            for number in (signal.SIGKILL, signal.SIGCONT):
                send(grouped([str(group)]), number)
            for file, text in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                if (group / file).exists():
                    (group / file).write_text(text)
            wait_until(lambda group=group: remove((str(group),)), 5)
