"""A host of this machine that is taken for dead: nothing of it runs on, and its next agent begins nothing again."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

from tidewright.agent.processes.attempt import clear_partial
from tidewright.checkpoint.processes import stat
from tidewright.live.reconcile import fence as module
from tidewright.live.reconcile.fence import fence


def made(state: Path, name: str, phase: str) -> Path:
    directory = state / "ranks" / name
    (directory / "0").mkdir(parents=True)
    (directory / "memo.json").write_text(json.dumps({"phase": phase, "serial": 3}))
    return directory


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_only_images_and_ends_are_left_for_the_next_agent(tmp_path: Path) -> None:
    phases = ("starting", "running", "suspending", "resuming", "stopping", "suspended", "exited", "failed")
    for job, phase in enumerate(phases):
        made(tmp_path, f"{job}.1", phase)
    (tmp_path / "ranks" / "9.1").mkdir()  # no record that can be read
    asyncio.run(fence(tmp_path))
    seen = [path.name for path in (tmp_path / "ranks").iterdir() if not path.name.startswith(".")]
    assert sorted(seen) == ["5.1", "6.1", "7.1"]
    clear_partial(tmp_path / "ranks")
    assert len(list((tmp_path / "ranks").iterdir())) == 3


def test_ranks_and_an_agent_that_does_not_answer_are_ended_first(tmp_path: Path) -> None:
    rank, agent = sleeper(), sleeper()
    directory = made(tmp_path, "1.1", "running")
    found = stat(rank.pid)
    assert found is not None
    (directory / "0" / "started").write_text(json.dumps({"pid": rank.pid, "start": found.start}))
    (tmp_path / "agent.lock").write_text(f"{agent.pid} {stat(agent.pid).start}\n")  # type: ignore[union-attr]
    (tmp_path / "agent.pid").write_text(str(os.getpid()))  # of an agent long ago; this pid is another's by now

    async def body() -> None:
        with (tmp_path / "agent.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            fencing = asyncio.create_task(fence(tmp_path))
            assert await asyncio.to_thread(agent.wait, 10) == -9
        await fencing

    asyncio.run(body())
    assert rank.wait(10) == -9 and not directory.exists()


def test_a_lock_that_is_never_given_back_is_not_waited_for(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "LIMIT_S", 0.1)
    directory = made(tmp_path, "1.1", "running")
    with (tmp_path / "agent.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        asyncio.run(fence(tmp_path))
    assert not directory.exists()


def test_a_host_without_a_directory_is_no_trouble(tmp_path: Path) -> None:
    asyncio.run(fence(tmp_path / "none"))
