"""A state directory with real daemons, typed at as a user does, and a way to kill each of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.agent.agent_bench import groups
from tests.command import Finished, tide
from tidewright.app.start import controller_pid
from tidewright.base.errors import TideError
from tidewright.checkpoint.cgroup import remove, wait_until
from tidewright.checkpoint.processes import PROC, grouped, send
from tidewright.model.job import JobSpec
from tidewright.wire.client import Client

ENV = {"PATH": os.environ["PATH"]}
PATIENCE_S = 60.0
POLICY = "sla:min_run=100ms"
"""Short jobs are frozen for premium ones, too."""


def processes(words: str) -> list[int]:
    """Live processes that have ``words`` in their command line or environment."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            if words.encode() in said and b") Z " not in (entry / "stat").read_bytes():
                found.append(int(entry.name))
    return sorted(found)


class Site:
    """``work`` is where jobs leave their lines, ``state`` the state directory; both below ``root``."""

    def __init__(self, root: Path, slots: int = 4) -> None:
        self.state, self.work, self.slots = root / "state", root / "work", slots
        self.names: dict[int, str] = {}
        self.work.mkdir()

    def tide(self, *arguments: str) -> Finished:
        return tide(self.state, *arguments, cwd=self.work)

    def up(self) -> None:
        done = self.tide("up", "--slots", str(self.slots), "--policy", POLICY)
        assert done.returncode == 0, done.stderr

    def client(self) -> Client:
        return Client(self.state, timeout=20)

    def submit(self, name: str, script: str, **more: object) -> int:
        """A job that runs ``script``; W is where it may write."""
        spec = JobSpec(name=name, command=("/bin/sh", "-c", script), env={**ENV, "W": str(self.work)}, **more)  # type: ignore[arg-type]
        job = self.client().submit([spec]).ids[0]
        self.names[job] = name
        return job

    def lines(self, name: str) -> list[str]:
        """What a job has written so far."""
        path = self.work / name
        return path.read_text().split() if path.exists() else []

    def until(self, true: Callable[[], bool], seconds: float = PATIENCE_S) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(TideError):
                if true():
                    return
            time.sleep(0.02)
        raise AssertionError(self.story())

    def story(self) -> str:
        """The ends of both logs, for a failure."""
        paths = [self.state / "controller.log", self.state / "agent.log"]
        return "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in paths if path.exists())

    # -- killing ----------------------------------------------------------------------------------------------------

    def kill_controller(self) -> bool:
        pid = controller_pid(self.state)
        if pid is None or pid < 0:
            return False
        os.kill(pid, signal.SIGKILL)
        return wait_until(lambda: controller_pid(self.state) is None, 10)

    def kill_agent(self) -> bool:
        found = [pid for pid in processes("tidewright.agent") if str(self.state) in _command(pid)]
        send(found, signal.SIGKILL)
        return bool(found)

    def shims(self) -> list[int]:
        """Shims of this state directory."""
        return [pid for pid in processes(str(self.state / "ranks")) if "shim.py" in _command(pid)]

    def kill_shim(self, dice: random.Random) -> bool:
        """Not one whose job has just said that it is done: nobody could know that such a job need not run again."""
        found = self.shims()
        if not found:
            return False
        shim = dice.choice(found)
        directory = Path(_command(shim).split()[-1])
        both = [shim, *_pid_in(directory / "started")]
        send(both, signal.SIGSTOP)
        name = self.names.get(int(directory.parent.name.partition(".")[0]), "")
        guilty = self.lines(name) == []
        send([shim] if guilty else both, signal.SIGKILL if guilty else signal.SIGCONT)
        return guilty

    # -- the end ----------------------------------------------------------------------------------------------------

    def main(self, job: int) -> int:
        """The host's pid of the main process of a job's last attempt; in a namespace of its own it has another."""
        pattern = f"ranks/{job}.{self.client().job(job).attempt}/0*/started"
        self.until(lambda: any(self.state.glob(pattern)))
        started = max(self.state.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
        return int(json.loads(started.read_text())["pid"])

    def left(self) -> list[int]:
        """Every process that this site ever started and that still lives."""
        return processes(str(self.state))

    def groups(self) -> list[str]:
        """Freezer groups of this site."""
        return [str(group) for group in groups(self.state)]

    def clean(self) -> None:
        """Kill whatever is left, by id, also what is frozen."""
        send(self.left(), signal.SIGKILL)
        for group in self.groups():
            for file, text in (("cgroup.freeze", "0"), ("freezer.state", "THAWED")):
                if (path := Path(group) / file).exists():
                    path.write_text(text)
            send(grouped([group]), signal.SIGKILL)
            wait_until(lambda group=group: remove((group,)), 5)  # type: ignore[misc]


def _pid_in(path: Path) -> list[int]:
    try:
        return [int(msgspec.json.decode(path.read_bytes())["pid"])]
    except OSError:
        return []


def _command(pid: int) -> str:
    with contextlib.suppress(OSError):
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
