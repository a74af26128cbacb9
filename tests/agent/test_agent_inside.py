"""The agent's parts without an agent process: bounded holds, damaged records, log names."""

from __future__ import annotations

import asyncio
import os

import pytest

from tests.agent.agent_bench import ENV
from tidewright.agent.layout import AgentLayout, expand
from tidewright.agent.machine import suspending
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.checkpoint.cgroup import Signals
from tidewright.checkpoint.fake import FakeDriver
from tidewright.devices.fake import FakeBackend
from tidewright.model.job import Level
from tidewright.wire.agent import JobReport, LaunchArgs, RankSeat, ResumeArgs, StopArgs, SuspendArgs

pytestmark = pytest.mark.processes


def args(**more) -> LaunchArgs:
    seats = tuple(RankSeat(rank, rank, (rank,)) for rank in range(more.get("world_size", 1)))
    return LaunchArgs(**{"job": 1, "attempt": 0, "command": ("sleep", "600"), "env": ENV, "ranks": seats, **more})


def play(tmp_path, body, driver):
    """Run ``body(supervisor, state)``; ``state`` waits for a report. Everything is ended afterwards."""

    async def whole():
        layout, heard = AgentLayout(tmp_path), asyncio.Queue()
        layout.prepare()
        house = NodeContext(layout, FakeBackend("n1"), Signals())
        supervisor = Supervisor(house, {Level.FREEZE: driver}, heard.put_nowait)

        async def state(wanted: str) -> JobReport:
            while (report := await asyncio.wait_for(heard.get(), 15)).state != wanted:
                pass
            return report

        try:
            await body(supervisor, state)
        finally:
            if not all(attempt.over for attempt in supervisor.attempts.values()):
                supervisor.stop(StopArgs(job=1, attempt=0, grace_us=0), "")
                await state("exited")
            await supervisor.close()

    asyncio.run(whole())


def test_a_bounded_hold_ends_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(suspending, "GANG_FREEZE_BOUND_US", 200_000)
    driver = FakeDriver(Level.FREEZE)

    async def body(supervisor, state):
        supervisor.launch(args(world_size=2), "")
        await state("running")
        supervisor.suspend(SuspendArgs(job=1, attempt=0, level=Level.FREEZE, bounded=True), "")
        await state("suspended")
        assert driver.held
        back = await state("running")
        assert back.verb == "resume" and "bounded" in back.why and not driver.held

    play(tmp_path, body, driver)


def test_failed_saves_and_restores_are_told_and_can_be_tried_again(tmp_path):
    driver = FakeDriver(Level.FREEZE)

    async def body(supervisor, state):
        supervisor.launch(args(), "")
        await state("running")
        driver.save_error = "no room"
        supervisor.suspend(SuspendArgs(job=1, attempt=0, level=Level.FREEZE), "")
        assert ((await state("running")).error, driver.held) == ("no room", {})
        driver.save_error = ""
        supervisor.suspend(SuspendArgs(job=1, attempt=0, level=Level.FREEZE), "")
        assert (await state("suspended")).error == ""
        driver.restore_error = "no such cores"
        supervisor.resume(ResumeArgs(job=1, attempt=0), "")
        failed = await state("suspended")
        assert (failed.verb, failed.error) == ("resume", "no such cores")
        driver.restore_error = ""
        supervisor.resume(ResumeArgs(job=1, attempt=0), "")
        assert (await state("running")).error == ""

    play(tmp_path, body, driver)


def test_damaged_records_are_moved_aside(tmp_path):
    (tmp_path / "ranks" / "1.0").mkdir(parents=True)
    (tmp_path / "ranks" / "1.0" / "args.json").write_text("{")

    async def body(supervisor, state):
        supervisor.adopt()
        assert supervisor.reports() == ()
        supervisor.launch(args(command=("true",)), "")
        assert (await state("exited")).code == 0
        assert any(name.startswith(".damaged.1.0") for name in os.listdir(tmp_path / "ranks"))

    play(tmp_path, body, FakeDriver())


@pytest.mark.parametrize(
    ("pattern", "path"),
    [("%x-%j.log", "a_b-1.log"), ("%a", "0"), ("100%%", "100%"), ("%%j", "%j"), ("%q%", "%q%"), ("plain", "plain")],
)
def test_log_names(pattern, path):
    assert expand(pattern, args(name="a/b")) == path
    assert expand("%a", args(array_index=5)) == "5"
