"""The rendezvous server: sockets, timers and journal files for its machine (machine.py), which decides everything.

A rank that hosted the keys could not be moved without the others noticing, so the agent does. Keys belong to a job and,
within it, to a world (a process group of torch with all its groups). Bytes in, bytes out: nothing that arrives is evaluated.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec

from ...base.errors import WorldError
from ...launch.inject._tidewright.rendezvous import frames as fr
from ...wire.connections import room_for
from . import messages as ms
from .framing import FrameBuffer
from .journal import RendezvousJournal
from .machine import RendezvousMachine
from .store import KeyValueStore, decode, encode

MOST_UNKNOWN = 1024
"""Connections that have not shown a token yet, at most. A gang's ranks come all at once."""
IDLE_S = 60
"""After so long without data the kernel asks whether a rank's machine is still there."""
READ_AHEAD = 128 * 1024
"""Bytes of further requests that are read while one waits, or while answers are not taken."""


class RendezvousServer:
    """``directory``: where jobs' keys survive the agent; None keeps them in memory only."""

    def __init__(self, directory: Path | None = None, *, most_unknown: int = MOST_UNKNOWN) -> None:
        self._directory, self._most_unknown = directory, most_unknown
        self._machine = RendezvousMachine(journals=directory is not None, most_unknown=most_unknown)
        self._server: asyncio.Server | None = None
        self._connections: dict[int, _Connection] = {}
        self._opened = 0
        self._timers: dict[int, asyncio.TimerHandle] = {}
        self._journals: dict[str, RendezvousJournal] = {}
        self._events: deque[ms.Event] = deque()
        self._stepping = False
        self.port = 0

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> int:
        """Listen; returns the port. Raises ``WorldError`` when the address is not available."""
        if self._directory is not None:
            self._directory.mkdir(exist_ok=True, mode=0o700)
        self._machine.most_unknown = room_for(0.25, self._most_unknown)
        try:
            self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), host, port)
        except OSError as error:
            raise WorldError(f"the rendezvous store cannot listen on {host}:{port}: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        return self.port

    async def stop(self) -> None:
        """Stop listening and close all connections; keys stay in their files."""
        if self._server is not None:
            self._server.close()
        for connection in list(self._connections.values()):
            connection.close()
        await asyncio.sleep(0)
        for journal in self._journals.values():
            journal.close()

    # Jobs

    def open_job(self, job: str, *tokens: str) -> str:
        """Let ranks of ``job`` connect that show one of ``tokens``; returns the first. Without any those that it has stay, and
        a job that is not open yet gets a new one."""
        known = self._machine.tokens(job)
        if not known:
            journal = self._journal(job)
            self.handle(ms.JobOpened(job, tokens or (secrets.token_hex(16),), journal.read() if journal else b""))
        elif tokens and tokens != known:
            self.handle(ms.JobOpened(job, tokens))
        return self._machine.tokens(job)[0]

    def close_job(self, job: str) -> None:
        """Forget the job and its keys."""
        self.handle(ms.JobClosed(job))
        self._journals.pop(job, None)

    def dump(self, job: str) -> bytes:
        """All keys of a job, to travel with its image. Raises ``WorldError`` when there is no such job."""
        store = self._machine.store(job)
        if store is None:
            raise WorldError(f"no rendezvous keys of job {job} here")
        return encode(store)

    def generation(self, job: str) -> str:
        """What the keys of a job here are for (``KeyValueStore.generation``); empty when there are none."""
        store = self._machine.store(job)
        return "" if store is None else store.generation

    def own_token(self, job: str) -> bool:
        """Whether the ranks of a job that is here have a token of their generation (``KeyValueStore.own_token``)."""
        store = self._machine.store(job)
        return store is not None and store.own_token

    def load(self, job: str, data: bytes = b"", generation: str = "") -> None:
        """Replace a job's keys by those that were dumped, or by none. Ranks that are connected belong to those that were
        here before, and are cut off. Raises ``WorldError`` when ``data`` is damaged."""
        self.open_job(job)
        try:
            store = decode(data) if data else KeyValueStore()
        except msgspec.DecodeError as error:
            raise WorldError(f"the rendezvous keys of job {job} are damaged: {error}") from error
        store.generation, store.own_token = generation, bool(generation)
        # A node may have resumed its ranks before this dump was made. Those that had joined a round by then are no more:
        # were they counted, the round would end without the ranks that come now, which would wait without end.
        store.abandon_rounds()
        self.handle(ms.StoreReplaced(job, store))

    def name_generation(self, job: str, generation: str) -> None:
        """Say what the keys of an open job are for, where that is not known any more or ranks have the job's token."""
        self.handle(ms.GenerationNamed(job, generation))

    # The machine

    def opened(self, connection: _Connection) -> int:
        """A new connection; its number."""
        self._opened += 1
        self._connections[self._opened] = connection
        self.handle(ms.ConnectionOpened(self._opened, os.urandom(fr.NONCE)))
        return self._opened

    def closed(self, connection: int) -> None:
        """A connection is gone, or about to be."""
        if self._connections.pop(connection, None) is not None:
            self.handle(ms.ConnectionClosed(connection))

    def accepts(self, connection: int) -> bool:
        """Whether the machine takes the next frame."""
        return self._machine.accepts(connection)

    def longest_frame(self, connection: int) -> int:
        """Bytes that the next frame may have."""
        return self._machine.longest_frame(connection)

    def handle(self, event: ms.Event) -> None:
        """Tell the machine, and carry out what follows, before the next event."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                for action in self._machine.step(self._events.popleft()):
                    _RUN[type(action)](self, action)
        finally:
            self._stepping = False

    def _send(self, action: ms.SendFrame) -> None:
        if (connection := self._connections.get(action.connection)) is not None:
            connection.send(action.data)

    def _close(self, action: ms.CloseConnection) -> None:
        if (connection := self._connections.pop(action.connection, None)) is not None:
            connection.close()

    def _abort(self, action: ms.AbortConnection) -> None:
        if (connection := self._connections.pop(action.connection, None)) is not None:
            connection.abort()

    def _arm(self, action: ms.ArmWait) -> None:
        expired = ms.WaitExpired(action.connection, action.serial)
        loop = asyncio.get_running_loop()
        self._timers[action.connection] = loop.call_later(action.delay_ms / 1000, self.handle, expired)

    def _cancel(self, action: ms.CancelWait) -> None:
        if (timer := self._timers.pop(action.connection, None)) is not None:
            timer.cancel()

    def _append(self, action: ms.AppendJournal) -> None:
        self._written(action.job, self._journals[action.job].append(action.record))

    def _rewrite(self, action: ms.RewriteJournal) -> None:
        self._written(action.job, self._journals[action.job].rewrite(action.snapshot))

    def _written(self, job: str, written: bool) -> None:
        if not written:
            self.handle(ms.JournalFailed(job))

    def _delete(self, action: ms.DeleteJournal) -> None:
        if (journal := self._journal(action.job)) is not None:
            self._written(action.job, journal.delete())

    def _journal(self, job: str) -> RendezvousJournal | None:
        if self._directory is not None and job not in self._journals:
            self._journals[job] = RendezvousJournal(self._directory / f"{job.replace('/', '-')}.meet")
        return self._journals.get(job)


_RUN: dict[type, Callable[[RendezvousServer, Any], None]] = {
    ms.SendFrame: RendezvousServer._send,
    ms.CloseConnection: RendezvousServer._close,
    ms.AbortConnection: RendezvousServer._abort,
    ms.ArmWait: RendezvousServer._arm,
    ms.CancelWait: RendezvousServer._cancel,
    ms.AppendJournal: RendezvousServer._append,
    ms.RewriteJournal: RendezvousServer._rewrite,
    ms.DeleteJournal: RendezvousServer._delete,
}


class _Connection(asyncio.Protocol):
    """Bytes of one connection to frames, one at a time: the next once the last is answered and its answer is on its way."""

    def __init__(self, server: RendezvousServer) -> None:
        self._server, self._frames = server, FrameBuffer()
        self._number = 0
        self._full = self._ended = self._advancing = False
        """Answers are not taken; the peer sends no more; frames are being handed over."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        _keep_alive(self._transport.get_extra_info("socket"))
        self._number = self._server.opened(self)

    def data_received(self, data: bytes) -> None:
        self._frames.feed(data)
        self._advance()
        if len(self._frames) > READ_AHEAD and (self._full or not self._server.accepts(self._number)):
            self._transport.pause_reading()

    def eof_received(self) -> bool:
        self._ended = True
        self._advance()
        return True  # closed by ``_advance``, once what came before is answered

    def connection_lost(self, error: Exception | None) -> None:
        self._server.closed(self._number)

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._advance()

    def send(self, data: bytes) -> None:
        """A frame of the machine's."""
        self._transport.write(data)
        if not self._advancing:  # the answer to a request that has waited
            asyncio.get_running_loop().call_soon(self._advance)

    def close(self) -> None:
        """Once what was sent is out."""
        self._transport.close()

    def abort(self) -> None:
        """At once."""
        self._transport.abort()

    def _advance(self) -> None:
        self._advancing = True
        try:
            while not self._full and self._server.accepts(self._number):
                frame = self._frames.next(self._server.longest_frame(self._number))
                if frame is None:
                    break
                self._server.handle(ms.FrameReceived(self._number, frame))
        except ValueError:
            self._ended = True  # not a frame: the frames after it cannot be delimited
        finally:
            self._advancing = False
        if self._ended and not self._full:
            self._server.closed(self._number)
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.resume_reading()


def _keep_alive(line: socket.socket) -> None:
    """A rank whose node lost power is disconnected by the kernel (tcp(7))."""
    line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    line.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, IDLE_S)
