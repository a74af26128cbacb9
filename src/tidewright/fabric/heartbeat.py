"""Heartbeats: whether the agent behind a connection still runs. A stopped process keeps its sockets open.

Knows nothing of calls: a thread of the agent answers on a socket of its own, whatever the agent is busy with.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from ..base.errors import WorldError
from ..base.units import SECOND
from ..wire.trust import peer_uid

MISSES = 5
"""Heartbeats missed in a row. They are counted, not timed: a controller that was itself stopped for long has missed one."""
LEAST_S, MOST_S = 3.0, 10.0
"""A busy machine may keep a process waiting for a second or two; ten are far beyond what a thread that sleeps needs."""


def silence_s(node_timeout_us: int) -> float:
    """How long an agent may be silent, seconds: a third of the time after which its node is down, within limits."""
    return min(MOST_S, max(LEAST_S, node_timeout_us / SECOND / 3))


async def wait_until_silent(socket: Path, bound_s: float) -> None:
    """Return once the agent at ``socket`` has not answered for ``bound_s`` seconds, however often it did before."""
    interval_s, missed = bound_s / MISSES, 0
    while missed < MISSES:
        answer = asyncio.ensure_future(_answers(socket))
        try:
            while missed < MISSES:
                await asyncio.wait({answer}, timeout=interval_s)
                if answer.done():
                    break
                missed += 1  # a late answer is one, too: it is waited for to the end
        finally:
            answer.cancel()
        if answer.done() and not answer.cancelled():
            missed = 0 if answer.result() else missed + 1
            await asyncio.sleep(interval_s)


async def _answers(socket: Path) -> bool:
    try:
        reader, writer = await connect(socket)
    except (OSError, WorldError):
        return False
    try:
        return bool(await reader.read(1))
    except OSError:
        return False
    finally:
        writer.close()


async def connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a unix socket on which root or this user listens. Raises WorldError for others, and OSError.

    A path beyond the 107 bytes of unix(7) goes through a descriptor of its directory.
    """
    reader, writer = await _connect(path)
    uid = peer_uid(writer.get_extra_info("socket"))
    if uid not in (0, os.geteuid()):
        writer.close()
        raise WorldError(f"what listens on {path} belongs to user {uid}; nothing is sent to it")
    return reader, writer


async def _connect(path: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if len(os.fsencode(path)) < 108:
        return await asyncio.open_unix_connection(str(path))
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        return await asyncio.open_unix_connection(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
