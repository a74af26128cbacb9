"""The end of whatever a host of this machine still runs, before its jobs go on elsewhere.

An agent may be away for long while its ranks live: two copies of a job would then write to the same files. Goes by the
records that shims leave (``ranks/JOB.ATTEMPT/RANK/shim`` and ``started``); knows nothing of hosts on other machines.
An agent that is there but does not answer is ended first: asleep in the middle of a launch, it would wake and go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
from pathlib import Path

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)
LIMIT_S = 5.0
"""Longest wait for the dead to be gone; what hangs in the kernel writes nothing."""
_LOOK_S = 0.02
_STATE, _START = 0, 19
"""Fields of /proc/PID/stat behind the command (proc(5): 3 and 22)."""


class _Process(Struct, frozen=True):
    pid: int
    start: int


async def fence(state: Path) -> None:
    """Kill what is left of an agent, then every rank below its state directory, its shim first, which then restarts and
    reports nothing."""
    if (agent := _agent(state)) is not None:
        log.warning("the agent %d of %s does not answer and is ended", agent.pid, state)
        await _end([agent])
    found = [process for name in ("shim", "started") for process in _recorded(state, name) if _alive(process)]
    if found:
        log.warning("ranks below %s outlive their agent and are ended: their jobs go on elsewhere", state)
    await _end(found)


async def _end(found: list[_Process]) -> None:
    for process in found:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    end = asyncio.get_running_loop().time() + LIMIT_S
    while any(map(_alive, found)) and asyncio.get_running_loop().time() < end:
        await asyncio.sleep(_LOOK_S)


def _agent(state: Path) -> _Process | None:
    """The process that holds an agent's lock; pid files alone may be of the dead."""
    try:
        with (state / "agent.lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        with contextlib.suppress(OSError, ValueError):
            pid = int((state / "agent.pid").read_text())
            return _Process(pid, int(_fields(pid)[_START]))
    except OSError:
        pass  # no directory, no agent
    return None


def _recorded(state: Path, name: str) -> list[_Process]:
    found = []
    for path in sorted(state.glob(f"ranks/[0-9]*.*/*/{name}")):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            found.append(msgspec.json.decode(path.read_bytes(), type=_Process))
    return found


def _alive(process: _Process) -> bool:
    """Pids are reused: it is the same process only if it began then."""
    try:
        fields = _fields(process.pid)
    except OSError:
        return False
    return int(fields[_START]) == process.start and fields[_STATE] not in (b"Z", b"X")


def _fields(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
