"""A CRIU at work on one rank: what it is told, how long it may take, and what it leaves when it is killed."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from .cgroup import wait_until
from .processes import Stat, bears, everything, members, send
from .program import ENVIRON
from .protocol import RankHandle
from .shared import MARK

GHOST_LIMIT = 2**30
"""Largest deleted file (shared memory of data loaders) that goes into an image; CRIU's own limit is 1 MiB."""
SWEEP_S = 2.0
FINISH_S = 30.0
"""How long the CRIU of an agent that died may go on before it is killed."""


def tasks(handle: RankHandle) -> list[int]:
    """The processes that are the rank's own: all but init, which belongs to the house."""
    return [pid for pid in members(handle) if pid != handle.init]


def dump_arguments(pid: int, directory: Path, work: Path) -> list[str]:
    """CRIU's for a dump. Connections between the rank's own processes are kept; nobody else has one (see ``barred``)."""
    return [
        *("dump", "--tree", str(pid), "--images-dir", str(directory), "--work-dir", str(work)),
        *("--log-file", "dump.log", "-v1", "--leave-stopped", "--manage-cgroups=ignore", "--file-locks"),
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


def within(limit_s: float, command: Sequence[str], marked: str, plugins: str, said: IO[bytes]) -> int | None:
    """Run a command to its end, apart from our session; its exit code. None: it took too long."""
    name, _, value = marked.partition("=")
    process = subprocess.Popen(
        command,
        env={**ENVIRON, "CRIU_LIBS_DIR": plugins, name: value},
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=said,
        start_new_session=True,
    )
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def at_work(handle: RankHandle) -> list[Stat]:
    """Processes of a CRIU that somebody started on this rank, and whatever it left."""
    return [each for each in everything() if each.state not in "ZX" and bears(each.pid, mark(handle))]


def settle(handle: RankHandle) -> None:
    """Let the CRIU of an agent that died finish, and sweep."""
    wait_until(lambda: not [each for each in at_work(handle) if each.parent != handle.init], FINISH_S)
    sweep(handle)


def sweep(handle: RankHandle) -> None:
    """End what is left of a CRIU that was killed or took too long: itself, and helpers that stay behind, stopped."""

    def swept() -> bool:
        found = [each.pid for each in at_work(handle)]
        send(found, signal.SIGKILL)
        return not found

    wait_until(swept, SWEEP_S)
