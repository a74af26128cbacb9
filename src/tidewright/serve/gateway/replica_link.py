"""The gateway's end of the connections of replicas: a unix socket that only this account can open."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from ...base.errors import UsageError, WorldError
from ...wire.socket_file import SocketFile
from ..replica.link import (
    HEAD,
    MAX_HELLO,
    MAX_MESSAGE,
    BatchDone,
    BecomeImage,
    Leaving,
    ReplicaHello,
    RunBatch,
    Tensors,
    frame,
    from_replica,
    length_of,
)

log = logging.getLogger("tidewright.gateway")
HELLO_WITHIN_S = 10.0
BACKLOG = 128


class ReplicaLink:
    """One replica that has said hello. ``send`` never waits: a replica has one batch at a time, and reads it whole."""

    def __init__(self, hello: ReplicaHello, transport: asyncio.Transport) -> None:
        self.hello = hello
        self._transport = transport

    def send(self, requests: tuple[Tensors, ...]) -> None:
        """Have it run a batch."""
        self._transport.write(frame(RunBatch(requests)))

    def become_image(self) -> None:
        """Have it close the connection, and wait to be saved."""
        self._transport.write(frame(BecomeImage()))

    def close(self) -> None:
        """No further batch: a replica that is leaving ends then."""
        self._transport.close()


class ReplicaServer:
    """Accepts replicas. ``joined`` is called with each, ``said`` with what it says, ``lost`` when its connection ends."""

    def __init__(
        self,
        path: Path,
        joined: Callable[[ReplicaLink], None],
        said: Callable[[ReplicaLink, BatchDone | Leaving], None],
        lost: Callable[[ReplicaLink], None],
    ) -> None:
        self._file, self._joined, self._said, self._lost = SocketFile(path), joined, said, lost
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises UsageError where that cannot be done; the caller holds a lock that no other gateway has."""
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(
                lambda: _ReplicaConnection(self._joined, self._said, self._lost), sock=self._file.bind(BACKLOG)
            )
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._file.path}: {error.strerror or error}", "give another directory with --state"
            ) from None

    async def close(self) -> None:
        """End all connections; replicas connect again when a gateway is back."""
        if self._server is not None:
            self._server.close()
        self._file.remove()


class _ReplicaConnection(asyncio.Protocol):
    """One connection. A protocol rather than a stream: the answer to a batch is acted on as soon as it is read, however many
    requests the event loop has to refuse, and the replica gets its next batch at once."""

    def __init__(
        self,
        joined: Callable[[ReplicaLink], None],
        said: Callable[[ReplicaLink, BatchDone | Leaving], None],
        lost: Callable[[ReplicaLink], None],
    ) -> None:
        self._joined, self._said, self._lost = joined, said, lost
        self._link: ReplicaLink | None = None
        self._data = bytearray()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._unnamed = asyncio.get_running_loop().call_later(HELLO_WITHIN_S, transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unnamed.cancel()
        if self._link is not None:
            self._lost(self._link)

    def data_received(self, data: bytes) -> None:
        self._data += data
        try:
            while not self._transport.is_closing() and (message := self._next()) is not None:
                self._take(from_replica(message))
        except (WorldError, UsageError) as error:
            log.warning("a replica is turned away: %s", error)
            self._transport.close()

    def _next(self) -> bytes | None:
        """A message that has come whole."""
        if len(self._data) < HEAD.size:
            return None
        most = MAX_HELLO if self._link is None else MAX_MESSAGE
        end = HEAD.size + length_of(bytes(self._data[: HEAD.size]), most)
        if len(self._data) < end:
            return None
        message = bytes(memoryview(self._data)[HEAD.size : end])
        del self._data[:end]
        return message

    def _take(self, message: ReplicaHello | BatchDone | Leaving) -> None:
        if isinstance(message, ReplicaHello) != (self._link is None):
            raise WorldError("it did not say hello first, and once")
        if isinstance(message, ReplicaHello):
            self._unnamed.cancel()
            self._link = ReplicaLink(message, self._transport)
            self._joined(self._link)
        elif self._link is not None:
            self._said(self._link, message)
