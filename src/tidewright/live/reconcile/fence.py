"""The end of whatever a host of this machine still runs, before its jobs go on elsewhere.

An agent may be away for long while its ranks live: two copies of a job would then write to the same files. Goes by the
records that shims leave (``ranks/JOB.ATTEMPT/RANK/shim`` and ``started``); knows nothing of hosts on other machines.
An agent that is there but does not answer is ended first: asleep in the middle of a launch, it would wake and go on. The
next agent would adopt it, too, from the records: they are renamed before it can start.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import time
from pathlib import Path
from typing import IO

import msgspec
from msgspec import Struct

from ...base.paths import matching
from ...wire.holder import Process, alive, end, holder
from ...wire.state_files import open_own

log = logging.getLogger(__name__)
LIMIT_S = 5.0
"""Longest wait for killed processes to disappear; one that hangs in the kernel writes nothing."""
STAY = ("suspended", "exited", "failed")
"""Phases of attempts of which nothing runs, nor will by itself."""
_LOOK_S = 0.02


class _Memo(Struct, frozen=True):
    phase: str = "starting"


class _Record(Struct, frozen=True):
    pid: int
    start: int


async def fence(state: Path) -> None:
    """Kill what is left of an agent, then every rank below its state directory, its shim first, which then restarts and
    reports nothing. No attempt that ran there will go on there; one that is but an image is left as it is."""
    if not state.is_dir():
        return
    with os.fdopen(open_own(state / "agent.lock", os.O_WRONLY | os.O_CREAT | os.O_APPEND), "a") as lock:
        until = asyncio.get_running_loop().time() + LIMIT_S
        while not _locked(lock) and asyncio.get_running_loop().time() < until:
            if (agent := holder(state / "agent.lock")) is not None:
                log.warning("the agent %d of %s does not answer and is ended", agent.pid, state)
                await _end([agent])
            await asyncio.sleep(_LOOK_S)
        await _end_ranks(state)
        for directory in matching(state, "ranks/[0-9]*.*"):
            if _phase(directory) not in STAY:
                _mark_removed(directory)


async def _end_ranks(state: Path) -> None:
    found = [process for name in ("shim", "started") for process in _recorded(state, name) if alive(process)]
    if found:
        log.warning("ranks below %s outlive their agent and are ended: their jobs go on elsewhere", state)
    await _end(found)


async def _end(found: list[Process]) -> None:
    for process in found:
        end(process, signal.SIGKILL)
    until = asyncio.get_running_loop().time() + LIMIT_S
    while any(map(alive, found)) and asyncio.get_running_loop().time() < until:
        await asyncio.sleep(_LOOK_S)


def _locked(lock: IO[str]) -> bool:
    """Whether this process has the agent's lock, until the file is closed: no other process can be the agent."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _mark_removed(directory: Path) -> None:
    """Rename the attempt's directory as an agent does before it removes one; the next agent finishes the removal."""
    try:
        directory.rename(directory.with_name(f".{directory.name}.{time.time_ns()}.gone"))
    except OSError as error:
        log.error("%s stays, and its job may be started there once more: %s", directory, error.strerror)


def _phase(directory: Path) -> str:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((directory / "memo.json").read_bytes(), type=_Memo).phase
    return ""


def _recorded(state: Path, name: str) -> list[Process]:
    found = []
    for path in matching(state, f"ranks/[0-9]*.*/*/{name}"):
        with contextlib.suppress(OSError, msgspec.MsgspecError):
            record = msgspec.json.decode(path.read_bytes(), type=_Record)
            found.append(Process(record.pid, record.start))
    return found
