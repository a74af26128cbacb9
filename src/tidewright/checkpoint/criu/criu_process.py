"""A CRIU process for one rank: its arguments, its time limits, and the removal of what it leaves when it is killed."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ..cgroup import wait_until
from ..files.shared import MARK
from ..processes import Stat, bears, everything, members, send
from ..protocol import RankHandle
from . import nsenter
from .program import ENVIRON

GHOST_LIMIT = 2**30
"""Largest deleted file (shared memory of data loaders) that goes into an image; CRIU's own limit is 1 MiB."""
REAP_S = 2.0
FINISH_S = 30.0
"""How long the CRIU of an agent that died may go on before it is killed, and ours once it has heard how to end."""

MOMENT_S = 1.0
"""A CRIU that ends closes its pipes a moment before it is gone."""


def tasks(handle: RankHandle) -> list[int]:
    """The processes that are the rank's own: all but init, which is Tidewright's."""
    return [pid for pid in members(handle) if pid != handle.init]


def dump_arguments(pid: int, directory: Path, work: Path, *, leave_running: bool) -> list[str]:
    """CRIU's for a dump. Connections between the rank's own processes are kept; no other process has one (see ``blockers``).

    A rank that runs on is stopped and resumed by ptrace alone: it sees no SIGSTOP and no SIGCONT. One that is to end is left
    stopped.
    """
    return [
        *("dump", "--tree", str(pid), "--images-dir", str(directory), "--work-dir", str(work)),
        *("--log-file", "dump.log", "-v1", "--manage-cgroups=ignore", "--file-locks"),
        *("--leave-running" if leave_running else "--leave-stopped", "--action-script", nsenter.HOOK),
        *("--tcp-established", "--network-lock", "skip", "--ghost-limit", str(GHOST_LIMIT)),
    ]


def mark(handle: RankHandle) -> str:
    """``NAME=value`` in the environment of a CRIU at work on this rank."""
    return f"{MARK}={handle.pid}.{handle.start}"


def no_plugins(work: Path) -> str:
    """An empty directory for CRIU to load plugins from: its own for CUDA would do with the devices what we do, in an
    order that is not ours."""
    (work / "plugins").mkdir(mode=0o700, exist_ok=True)
    return str(work / "plugins")


class CriuDump:
    """CRIU dumping a rank, in a session of its own. ``said`` receives its error messages.

    Once ``written``, the rank stands still under ptrace, unseen by it and its parents, until ``keep`` or the end of the
    ``with``. Without ``keep`` it runs on, as it does when this process is killed: only we hold the other end of the pipe.
    """

    def __init__(self, handle: RankHandle, command: Sequence[str], plugins: str, said: IO[bytes]) -> None:
        self._written, written = os.pipe()
        answer, self._answer = os.pipe()
        name, _, value = mark(handle).partition("=")
        identity = map(str, (handle.init, handle.pid, handle.start, written, answer))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", nsenter.__file__, *identity, *command],
                env={**ENVIRON, "CRIU_LIBS_DIR": plugins, name: value},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,
                pass_fds=(written, answer),
            )
        except OSError:
            os.close(self._written)
            os.close(self._answer)
            raise
        finally:
            os.close(written)
            os.close(answer)

    def __enter__(self) -> CriuDump:
        return self

    def __exit__(self, *_: object) -> None:
        if self.close() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._written)

    def written(self, limit_s: float) -> bool:
        """Wait until the image is written. False: CRIU has ended, or is not that far within ``limit_s``."""
        gone = os.pidfd_open(self._process.pid)
        try:
            poll = select.poll()
            poll.register(gone, select.POLLIN)
            poll.register(self._written, select.POLLIN)
            ready = [number for number, _ in poll.poll(limit_s * 1000)]
            return self._written in ready and os.read(self._written, 1) != b""
        finally:
            os.close(gone)

    def keep(self) -> int | None:
        """Have CRIU end the dump as its options say; see ``ended``."""
        with contextlib.suppress(BrokenPipeError):  # it was killed, and says so by its end
            os.write(self._answer, f"{nsenter.KEEP}\n".encode())
        return self.close()

    def close(self) -> int | None:
        """Close its answer pipe and wait for its end. Without ``keep`` it undoes the dump; see ``ended``."""
        if self._answer >= 0:
            os.close(self._answer)
            self._answer = -1
        return self.ended(FINISH_S)

    def ended(self, limit_s: float) -> int | None:
        """Its exit code, once it has ended; None when that takes longer. Without the polling of Popen.wait, which sleeps
        for up to 50 ms at a time."""
        if self._process.poll() is None:
            gone = os.pidfd_open(self._process.pid)
            try:
                poll = select.poll()
                poll.register(gone, select.POLLIN)
                poll.poll(limit_s * 1000)
            finally:
                os.close(gone)
        return self._process.poll()


def criu_processes(handle: RankHandle) -> list[Stat]:
    """Processes of any CRIU started on this rank, by this agent or an earlier one, and the helpers that it left."""
    return [each for each in everything() if each.state not in "ZX" and bears(each.pid, mark(handle))]


def settle(handle: RankHandle) -> None:
    """Let the CRIU of an agent that died finish, and reap what is left of it."""
    wait_until(lambda: not [each for each in criu_processes(handle) if each.parent != handle.init], FINISH_S)
    reap(handle)


def reap(handle: RankHandle) -> None:
    """Kill what is left of a CRIU that was killed or took too long: itself, and helpers that it left stopped."""

    def reaped() -> bool:
        found = [each.pid for each in criu_processes(handle)]
        send(found, signal.SIGKILL)
        return not found

    wait_until(reaped, REAP_S)
