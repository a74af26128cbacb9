"""Freezer groups of attempts that have left go, also those that could not be removed when they left."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from tests.agent.agent_bench import ENV, groups
from tidewright.agent.layout import AgentLayout
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.checkpoint.cgroup import Signals, detect
from tidewright.devices.fake import FakeBackend
from tidewright.wire.agent import ForgetArgs, JobReport, LaunchArgs, RankSeat, StopArgs

FREEZER = detect()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(isinstance(FREEZER, Signals), reason="no freezer groups can be made here"),
]


@pytest.mark.parametrize("left", [False, True], ids=["ended", "moved-away"])
def test_a_group_that_is_still_busy_when_its_rank_leaves_is_removed_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, left: bool
) -> None:
    real, busy = os.rmdir, [True]

    def rmdir(path: Any, **more: Any) -> None:
        if busy[0] and "tidewright-" in str(path):  # a process in it is dying
            raise OSError(errno.EBUSY, "busy")
        real(path, **more)

    async def body(supervisor: Supervisor, heard: asyncio.Queue[JobReport]) -> None:
        seats = tuple(RankSeat(rank, rank, (rank,)) for rank in range(2))
        supervisor.launch(
            LaunchArgs(job=3, attempt=1, command=("sleep", "600"), env=ENV, ranks=seats, world_size=2), ""
        )
        while (await asyncio.wait_for(heard.get(), 15)).state != "running":
            pass
        assert len(groups(tmp_path)) == 2
        if not left:
            supervisor.stop(StopArgs(job=3, attempt=1, grace_us=0), "")
            while (await asyncio.wait_for(heard.get(), 15)).state != "exited":
                pass
        supervisor.forget(ForgetArgs(job=3, attempt=1, left=left), "")
        while supervisor.attempts:
            await asyncio.sleep(0.01)
        assert len(groups(tmp_path)) == 2
        busy[0] = False
        supervisor.health_check()
        assert not groups(tmp_path)

    async def whole() -> None:
        layout, heard = AgentLayout(tmp_path), asyncio.Queue[JobReport]()
        layout.prepare()
        supervisor = Supervisor(NodeContext(layout, FakeBackend("n1"), FREEZER), {}, heard.put_nowait)
        try:
            await body(supervisor, heard)
        finally:
            busy[0] = False
            await supervisor.close()
            supervisor.clear_groups()

    monkeypatch.setattr(os, "rmdir", rmdir)
    asyncio.run(whole())
    assert not groups(tmp_path), "an agent that ends leaves none that are empty"


def test_groups_that_are_being_made_for_a_rank_are_left_alone(tmp_path: Path) -> None:
    async def whole() -> None:
        layout, heard = AgentLayout(tmp_path), asyncio.Queue[JobReport]()
        layout.prepare()
        supervisor = Supervisor(NodeContext(layout, FakeBackend("n1"), FREEZER), {}, heard.put_nowait)
        seats = (RankSeat(0, 0, (0,)),)
        supervisor.launch(LaunchArgs(job=3, attempt=1, command=("sleep", "600"), env=ENV, ranks=seats), "")
        while (await asyncio.wait_for(heard.get(), 15)).state != "running":
            pass
        (coming,) = FREEZER.create(layout.mark(3, 1, 0, 1))
        line = supervisor._machine.attempts[3, 1].script_queue
        line.busy = True
        supervisor.health_check()
        assert Path(coming).exists() and len(groups(tmp_path)) == 2
        line.busy = False
        supervisor.health_check()
        assert not Path(coming).exists() and len(groups(tmp_path)) == 1, "its own stays"
        supervisor.stop(StopArgs(job=3, attempt=1, grace_us=0), "")
        while (await asyncio.wait_for(heard.get(), 15)).state != "exited":
            pass
        await supervisor.close()

    asyncio.run(whole())
    assert not groups(tmp_path)
