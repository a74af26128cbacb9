"""Ranks on GPUs through the agent's own parts: real processes and real CRIU, a stand-in for the driver of the devices."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from tests.agent.agent_bench import ENV, bearing
from tests.criu_here import criu_here
from tidewright.agent.layout import AgentLayout
from tidewright.agent.machine.record import AttemptRecord
from tidewright.agent.node_services import NodeServices
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.checkpoint.cgroup import Signals
from tidewright.checkpoint.criu.driver import Criu
from tidewright.checkpoint.cuda.checkpoint import CudaState
from tidewright.checkpoint.cuda.fake import FakeCuda
from tidewright.checkpoint.processes import alive
from tidewright.devices.fake import FakeBackend
from tidewright.model.job import Level
from tidewright.wire.agent import CheckpointArgs, JobReport, LaunchArgs, RankSeat, ResumeArgs, StopArgs, SuspendArgs

FOUND = criu_here()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not isinstance(FOUND, Criu), reason=f"no full images here: {FOUND}"),
]
A, B = "FAKE-0000", "FAKE-0001"
MIB = 2**20
MEMORY, NEED = 160 * MIB, 100 * MIB
COUNT = """
import itertools, os, sys, time
from _tidewright import splice
goal = sys.argv[1]
for i in range(int(goal)) if goal.isdigit() else itertools.takewhile(lambda _: not os.path.exists(goal), itertools.count()):
    splice.reset()
    turn = splice._share
    if turn is not None:
        turn._patience_s = 3  # who is saved while it waits, which the wrapper never does, waits for what may be no more
    had = turn is None or turn.acquire()
    print(i, "in turn" if had else "beside", flush=True)
    splice.release()
    time.sleep(0.005)
sys.exit(7)
"""
"""Counts to a number, or until there is a file of that name."""


def who(pid: int) -> object:
    """What a process is to the driver, also after CRIU has brought it back: its rank, and its pid in there."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return pid
    rank = next((each for each in environ if each.startswith(b"RANK=")), b"")
    return rank, next(line.split()[-1] for line in lines if line.startswith("NSpid:"))


class Node:
    """An agent without its process and its socket, on a node of two GPUs."""

    def __init__(self, root: Path, api: FakeCuda) -> None:
        self.layout, self.api, self.heard = AgentLayout(root), api, list[JobReport]()
        self.closed, self.next = False, None
        self.layout.prepare()
        self.backend = FakeBackend("n1", 2, "h100", MEMORY)
        self.node_services = NodeServices(self.layout, self.backend, "127.0.0.1", None, lambda: api)
        house = NodeContext(self.layout, self.backend, Signals(), full=True)
        drivers: dict = {}
        self.supervisor = Supervisor(house, drivers, self.heard.append)
        self.node_services.attach_to(self.supervisor, drivers, "", 0)

    async def open(self) -> Node:
        await self.node_services.open()
        self.supervisor.adopt()
        return self

    async def close(self) -> None:
        self.closed = True
        await self.supervisor.close()
        await self.node_services.close()

    async def heir(self) -> Node:
        """The next agent of this node; this one is no more."""
        if not self.closed:
            await self.close()
        self.next = await Node(self.layout.root, self.api).open()
        return self.next

    @property
    def attempt(self):
        return self.supervisor.attempts[1, 0]

    def pid(self, rank: int = 0) -> int:
        return self.attempt.ranks[rank].handle.pid

    def state(self, rank: int = 0) -> CudaState | None:
        return self.api.state(self.pid(rank))

    def log(self, rank: int = 0) -> str:
        return (self.layout.logs / "1" / f"rank{rank}.0.log").read_text()

    def reach(self, rank: int = 0) -> dict:
        return json.loads((self.attempt.rank_dirs()[rank] / "reach.json").read_text())

    async def hear(self, wanted: Callable[[JobReport], bool]) -> JobReport:
        async with asyncio.timeout(30):
            while not any(wanted(report) for report in self.heard):
                await asyncio.sleep(0.01)
        at = next(at for at, report in enumerate(self.heard) if wanted(report))
        found = self.heard[at]
        del self.heard[: at + 1]
        return found

    async def phase(self, wanted: str) -> JobReport:
        return await self.hear(lambda report: report.state == wanted and report.verb not in ("checkpoint", "fetch"))

    async def grows(self, rank: int = 0, by: int = 5) -> None:
        least = self.log(rank).count("\n") + by
        async with asyncio.timeout(30):
            while self.log(rank).count("\n") < least:
                await asyncio.sleep(0.01)

    async def launch(self, count: int | Path, *devices: int) -> None:
        """One rank per device, each with NEED bytes of it."""
        self.supervisor.launch(args(count, *devices), "")
        await self.phase("running")
        for rank, device in enumerate(devices):
            self.api.start(self.pid(rank), ((A, B)[device],), need=NEED)
            self.backend.held.setdefault(device, {})[self.pid(rank)] = NEED
            await self.grows(rank)

    async def suspend(self, serial: int) -> JobReport:
        self.heard.clear()
        self.supervisor.suspend(SuspendArgs(job=1, attempt=0, level=Level.FULL, serial=serial), "")
        return await self.hear(lambda report: report.state != "suspending" and report.verb == "suspend")

    async def resume(self, serial: int, count: int | Path, *devices: int) -> JobReport:
        self.heard.clear()
        launch = args(count, *devices)
        self.supervisor.resume(ResumeArgs(job=1, attempt=0, serial=serial, launch=launch), "")
        return await self.hear(lambda report: report.state != "resuming" and report.verb == "resume")


def args(count: int | Path, *devices: int) -> LaunchArgs:
    seats = tuple(RankSeat(rank, rank, (device,)) for rank, device in enumerate(devices))
    return LaunchArgs(
        job=1, attempt=0, command=(sys.executable, "-c", COUNT, str(count)), env=ENV, workdir="/",
        world_size=len(devices), ranks=seats,
    )  # fmt: skip


def whole(count: int) -> str:
    return "".join(f"{i} in turn\n" for i in range(count))


async def ended(node: Node) -> None:
    """The ranks count a little further, and are told to end; none has missed or repeated a number."""
    ranks = range(len(node.attempt.ranks))
    for rank in ranks:
        await node.grows(rank)
    enough(node).touch()
    assert (await node.phase("exited")).code == 7
    for rank in ranks:
        assert (log := node.log(rank)) == whole(log.count("\n"))


def enough(node: Node) -> Path:
    """Where this is, ranks that were launched with it end."""
    return node.layout.root / "enough"


@pytest.fixture
def play(tmp_path: Path):
    """Run ``body`` on a node; it may take another agent in its place."""

    def run(body: Callable[[Node], Awaitable[None]]) -> None:
        api = FakeCuda((A, B), memory=MEMORY, identity=who)

        async def whole_life() -> None:
            node = await Node(tmp_path, api).open()
            try:
                await body(node)
            finally:
                while node.next is not None:
                    node = node.next
                if (1, 0) in node.supervisor.attempts and not node.attempt.over:
                    node.supervisor.stop(StopArgs(job=1, attempt=0, grace_us=0), "")
                    await node.phase("exited")
                await node.close()

        asyncio.run(whole_life())
        assert not bearing(AgentLayout(tmp_path).tag)

    return run


def test_into_an_image_and_back_on_another_device(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(enough(node), 0)
        report = await node.suspend(1)
        assert (report.state, report.error) == ("suspended", "")
        assert [call for call, _ in node.api.calls] == ["lock", "checkpoint"]
        report = await node.resume(1, enough(node), 1)
        assert (report.state, report.error) == ("running", "")
        assert [call for call, _ in node.api.calls][2:] == ["restore", "unlock"]
        assert (node.state(), node.api.on(node.pid())) == (CudaState.RUNNING, (B,))
        await ended(node)

    play(body)


def test_an_image_of_ranks_that_run_on(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(400, 0, 1)
        node.supervisor.checkpoint(CheckpointArgs(job=1, attempt=0, serial=1), "")
        report = await node.hear(lambda report: report.verb == "checkpoint")
        assert not report.error and [node.state(rank) for rank in (0, 1)] == [CudaState.RUNNING] * 2
        calls = [call for call, _ in node.api.calls]
        assert calls == sorted(calls, key=["lock", "checkpoint", "restore", "unlock"].index), (
            "all of one, then the next"
        )
        await node.grows(1)

    play(body)


def test_a_rank_that_does_not_lock_runs_on_and_is_saved_later(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(3000, 0, 1)
        node.api.stuck.add(node.pid(1))
        report = await node.suspend(1)
        assert report.state == "running" and "did not come out of its CUDA calls" in report.error
        assert [node.state(rank) for rank in (0, 1)] == [CudaState.RUNNING] * 2
        await node.grows(0)
        node.api.stuck.clear()
        report = await node.suspend(2)
        assert (report.state, report.error) == ("suspended", "")

    play(body)


def test_no_room_for_the_record_of_a_suspension_is_told_in_plain_words(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(400, 0)
        save = node.attempt.save

        def full() -> None:
            if node.attempt.record.image is not None or node.attempt.record.checkpointing:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            save()

        node.attempt.save = full
        report = await node.suspend(1)
        assert report.state == "running" and "no room on the file system" in report.error
        assert "the record of image 1" in report.error and "Errno" not in report.error
        node.supervisor.checkpoint(CheckpointArgs(job=1, attempt=0, serial=2), "")
        report = await node.hear(lambda report: report.verb == "checkpoint")
        assert "no room on the file system" in report.error and "the record of image 2" in report.error
        node.attempt.save = save
        assert (await node.suspend(3)).error == ""

    play(body)


def test_devices_that_are_refused_leave_the_image_good(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(enough(node), 0)
        await node.suspend(1)
        node.api.devices = (A,)
        report = await node.resume(1, enough(node), 1)
        assert report.state == "suspended" and "device memory not restored" in report.error
        assert not alive(node.pid(), node.attempt.ranks[0].handle.start), "nothing of the try is left"
        node.api.devices = (A, B)
        assert (await node.resume(1, enough(node), 1)).state == "running"
        await ended(node)

    play(body)


def test_ranks_whose_devices_are_lost_are_ended(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(1000, 0, 1)
        node.api.unsavable.add(node.pid(1))
        report = await node.suspend(1)
        if report.state == "running":
            report = await node.phase("exited")
        assert report.lost and "the driver has lost process" in report.why

    play(body)


@pytest.mark.parametrize("broken", [False, True])
def test_an_agent_that_died_in_the_middle_of_a_save(play, broken: bool) -> None:
    async def body(node: Node) -> None:
        await node.launch(1000, 0, 1)
        await node.close()
        file = node.attempt.directory / "memo.json"
        memo = msgspec.json.decode(file.read_bytes(), type=AttemptRecord)
        memo.checkpointing = True
        file.write_bytes(msgspec.json.encode(memo))
        for rank in (0, 1):
            node.api.lock(node.pid(rank), 0)
            os.kill(node.pid(rank), signal.SIGSTOP)
        node.api.checkpoint(node.pid(1))
        if broken:
            node.api.broken.add(node.pid(1))
        heir = await node.heir()
        if broken:
            report = await heir.phase("exited")
            assert report.lost and "device memory not restored" in report.why
        else:
            async with asyncio.timeout(30):  # a stand-in's process runs on before its device is given back to it
                while [heir.state(rank) for rank in (0, 1)] != [CudaState.RUNNING] * 2:
                    await asyncio.sleep(0.01)
            await heir.grows(0)
            await heir.grows(1)

    play(body)


def test_two_ranks_on_one_device_that_does_not_hold_both(play) -> None:
    """From two devices onto one, saved meanwhile, taken over by another agent, and apart again."""

    async def body(node: Node) -> None:
        end = enough(node)
        await node.launch(end, 0, 1)
        assert "turns" not in node.reach()
        await node.suspend(1)
        assert node.attempt.record.needs == {0: NEED, 1: NEED}
        assert (await node.resume(1, end, 0, 0)).error == ""
        assert [node.reach(rank)["turns"] for rank in (0, 1)] == ["swap"] * 2
        await both(node)
        assert sum(call == "restore" for call, _ in node.api.calls) > 6
        node.supervisor.checkpoint(CheckpointArgs(job=1, attempt=0, serial=2), "")
        assert not (await node.hear(lambda report: report.verb == "checkpoint")).error
        await both(node)
        node = await node.heir()
        await both(node)
        assert (await node.suspend(3)).error == ""
        assert (await node.resume(3, end, 0, 1)).error == "" and "turns" not in node.reach()
        assert [node.api.on(node.pid(rank)) for rank in (0, 1)] == [(A,), (B,)]
        end.touch()
        report = await node.phase("exited")
        assert (report.code, report.lost) == (7, False)
        for rank in (0, 1):
            lines = node.log(rank).splitlines()
            assert [int(line.split()[0]) for line in lines] == list(range(len(lines)))
            assert sum("beside" in line for line in lines) <= 2, "two saves"

    async def both(node: Node) -> None:
        for _ in range(2):
            await node.grows(0)
            await node.grows(1)

    play(body)


def test_ranks_that_fit_stay_on_their_device(play) -> None:
    async def body(node: Node) -> None:
        await node.launch(enough(node), 0, 1)
        for held in node.backend.held.values():
            held.update(dict.fromkeys(held, 70 * MIB))
        await node.suspend(1)
        node.api.memory = 0
        await node.resume(1, enough(node), 1, 1)
        assert [node.reach(rank)["turns"] for rank in (0, 1)] == ["lock"] * 2
        assert [node.state(rank) for rank in (0, 1)] == [CudaState.RUNNING] * 2
        await ended(node)

    play(body)


def test_when_no_turn_can_be_passed_on_the_ranks_are_ended(play, monkeypatch) -> None:
    monkeypatch.setattr("tidewright.agent.processes.time_slicer.PATIENCE_US", 0)
    monkeypatch.setattr("tidewright.agent.processes.time_slicer.RETRY_S", 0.01)

    async def body(node: Node) -> None:
        await node.launch(1000, 0, 1)
        await node.suspend(1)
        await node.resume(1, 1000, 0, 0)
        node.api.host_full.update(node.pid(rank) for rank in (0, 1))
        report = await node.phase("exited")
        assert report.lost and "no swap has succeeded" in report.why and "not enough memory" in report.why

    play(body)


def test_criu_finds_no_plugins(play, tmp_path_factory, monkeypatch) -> None:
    """Its plugin for CUDA would be in the way, wherever the system has it."""
    directory = tmp_path_factory.mktemp("criu")
    script, seen = directory / "criu.sh", directory / "seen"
    script.write_text(f'#!/bin/sh\n[ -d "$CRIU_LIBS_DIR" ] && ls -A "$CRIU_LIBS_DIR" | wc -l >> {seen}\nexec "$@"\n')
    script.chmod(0o700)
    assert isinstance(FOUND, Criu)
    found = Criu((str(script), *FOUND.command), FOUND.version)
    monkeypatch.setattr("tidewright.agent.node_services.find_criu", lambda: found)

    async def body(node: Node) -> None:
        await node.launch(enough(node), 0)
        await node.suspend(1)
        await node.resume(1, enough(node), 0)
        await ended(node)
        assert seen.read_text().split() == ["0", "0"], "one dump, one restore"

    with contextlib.suppress(FileNotFoundError):
        seen.unlink()
    play(body)
