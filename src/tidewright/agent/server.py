"""The agent's server: a unix socket that only its owner may open, requests in, answers and reports out."""

from __future__ import annotations

import asyncio
import logging
import os
import select
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ..base.atomic import write_atomically
from ..base.errors import UsageError, WorldError
from ..wire.agent import ARGS, ErrorReply, HealthPush, JobReport, Push, RpcRequest, RpcResponse
from ..wire.framing import FrameError, Framer, decode, encode, raw
from ..wire.own_directory import OwnDirectory
from ..wire.socket_file import SocketFile
from ..wire.trust import peer_uid

log = logging.getLogger(__name__)

READING = ("inventory", "usage")
"""Methods that change nothing; an older controller may still ask."""
BACKLOG = 128
EPOCH_DIGITS = 20
MAX_BACKLOG = 64 * 2**20
"""Bytes waiting for a client that does not read; beyond this it is cut off."""

Handler = Callable[[Any, str], Awaitable[Any]]


class Epoch:
    """The highest controller epoch ever obeyed, on disk before the call that raised it is served."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self.value = int(path.read_text())
        except (OSError, ValueError):
            self.value = 0

    def admit(self, epoch: int) -> bool:
        """Whether a call of this epoch may act."""
        if epoch > self.value:
            self._note(epoch)
            self.value = epoch
        return epoch == self.value

    def _note(self, epoch: int) -> None:
        """Raises WorldError. On a full disk the number is written over the one before: both fit into one sector."""
        text = str(epoch).rjust(EPOCH_DIGITS, "0").encode()
        try:
            try:
                write_atomically(self._path, text, durable=True)
            except OSError:
                handle = os.open(self._path, os.O_WRONLY | os.O_CLOEXEC)
                try:
                    os.pwrite(handle, text, 0)
                    os.fsync(handle)
                finally:
                    os.close(handle)
        except OSError as error:
            raise WorldError(f"cannot note the controller's epoch in {self._path}: {error.strerror}") from error


class AgentServer:
    """``handlers`` by method name take (args, op_id) and return what is encoded as the answer."""

    def __init__(self, epoch: Epoch, handlers: dict[str, Handler]) -> None:
        self._epoch, self._handlers = epoch, handlers
        self._clients: dict[asyncio.StreamWriter, asyncio.Task[None] | None] = {}
        self._server: asyncio.Server | None = None
        self._file: SocketFile | None = None

    async def open(self, path: Path, own: OwnDirectory | None = None) -> None:
        """Listen; the caller holds the lock, so a socket file found there is a dead agent's. Raises OSError."""
        self._file = SocketFile(path, own)
        self._server = await asyncio.start_unix_server(self._serve, sock=self._file.bind(BACKLOG))

    async def look(self) -> None:
        """Listen anew where the socket's file has vanished; connections stay. Raises OSError."""
        if self._file is not None and self._server is not None and self._file.gone:
            fresh = await asyncio.start_unix_server(self._serve, sock=self._file.bind(BACKLOG))
            self._server.close()
            self._server = fresh
            log.warning("%s had been removed; created again", self._file.path)

    async def close(self) -> None:
        if self._server is not None and self._file is not None:
            self._server.close()
            self._file.remove()
        for writer, task in list(self._clients.items()):
            writer.close()
            if task is not None:
                task.cancel()

    def publish(self, report: JobReport) -> None:
        """Send a report to every client."""
        self.push(Push(report))

    def push(self, news: Push | HealthPush) -> None:
        """Send news to every client."""
        frame = encode(news)
        for writer in list(self._clients):
            self._send(writer, frame)

    def _send(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        if writer.transport.get_write_buffer_size() > MAX_BACKLOG:
            log.warning("a client does not read; cut off")
            writer.transport.abort()
        elif not writer.is_closing():
            writer.write(frame)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if (uid := peer_uid(writer.get_extra_info("socket"))) not in (0, os.geteuid()):
            log.warning("a connection of user %d is refused", uid)
            writer.close()
            return
        self._clients[writer] = asyncio.current_task()
        framer = Framer()
        try:
            while data := await reader.read(2**16):
                for line in framer.feed(data):
                    request = decode(line, RpcRequest)
                    if hung_up(writer):
                        log.warning("%s of a caller that has hung up since is not carried out", request.method)
                        return
                    self._send(writer, encode(await self._answer(request)))
                await writer.drain()
        except FrameError as error:
            self._send(
                writer, encode(RpcResponse(-1, error=ErrorReply("usage", str(error), "speak one JSON per line")))
            )
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            self._clients.pop(writer, None)
            writer.close()

    async def _answer(self, request: RpcRequest) -> RpcResponse:
        try:
            return RpcResponse(request.id, ok=raw(await self._dispatch(request)))
        except FrameError as error:
            return RpcResponse(request.id, error=ErrorReply("usage", str(error)))
        except UsageError as error:
            return RpcResponse(request.id, error=ErrorReply("usage", error.message, error.remedy))
        except StaleEpoch as error:
            return RpcResponse(request.id, error=ErrorReply("fenced", str(error)))
        except (WorldError, OSError) as error:
            return RpcResponse(request.id, error=ErrorReply("world", str(error)))
        except Exception as error:
            log.exception("%s failed", request.method)
            return RpcResponse(request.id, error=ErrorReply("bug", f"{type(error).__name__}: {error}"))

    async def _dispatch(self, request: RpcRequest) -> Any:
        handler = self._handlers.get(request.method)
        if handler is None:
            raise UsageError(f"no method {request.method!r}", f"known: {', '.join(ARGS)}")
        if not self._epoch.admit(request.epoch) and request.method not in READING:
            raise StaleEpoch(f"epoch {request.epoch} is over; this agent obeys epoch {self._epoch.value}")
        return await handler(decode(bytes(request.args), ARGS[request.method]), request.op_id)


class StaleEpoch(Exception):
    """The caller is an older controller."""


def hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the other side has closed, although what it wrote before can still be read (poll(2), POLLHUP).

    A controller hangs up on an agent that sleeps, and gives its work to others: orders that were sent before are stale.
    """
    number: int = writer.get_extra_info("socket").fileno()
    if number < 0:
        return True
    line = select.poll()
    line.register(number, 0)
    return any(event & (select.POLLHUP | select.POLLNVAL) for _, event in line.poll(0))
