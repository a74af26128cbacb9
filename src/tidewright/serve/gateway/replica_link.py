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
    BatchDone,
    BecomeImage,
    Leaving,
    ReplicaHello,
    RunBatch,
    Tensors,
    ToGateway,
    frame,
    from_replica,
    length_of,
)

log = logging.getLogger("tidewright.gateway")
HELLO_WITHIN_S = 10.0
BACKLOG = 128


class ReplicaLink:
    """One replica that has said hello. ``send`` never waits: a replica has one batch at a time, and reads it whole."""

    def __init__(self, hello: ReplicaHello, writer: asyncio.StreamWriter) -> None:
        self.hello = hello
        self._writer = writer

    def send(self, requests: tuple[Tensors, ...]) -> None:
        """Have it run a batch."""
        self._writer.write(frame(RunBatch(requests)))

    def become_image(self) -> None:
        """Have it close the connection, and wait to be saved."""
        self._writer.write(frame(BecomeImage()))

    def close(self) -> None:
        """No further batch: a replica that is leaving ends then."""
        self._writer.close()


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
            self._server = await asyncio.start_unix_server(self._serve, sock=self._file.bind(BACKLOG))
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._file.path}: {error.strerror or error}", "give another directory with --state"
            ) from None

    async def close(self) -> None:
        """End all connections; replicas connect again when a gateway is back."""
        if self._server is not None:
            self._server.close()
        self._file.remove()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link: ReplicaLink | None = None
        try:
            hello = await asyncio.wait_for(_message(reader), HELLO_WITHIN_S)
            if not isinstance(hello, ReplicaHello):
                raise WorldError("it did not say hello")
            link = ReplicaLink(hello, writer)
            self._joined(link)
            while not isinstance(said := await _message(reader), ReplicaHello):
                self._said(link, said)
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass
        except (WorldError, UsageError) as error:
            log.warning("a replica is turned away: %s", error)
        finally:
            if link is not None:
                self._lost(link)
            writer.close()


async def _message(reader: asyncio.StreamReader) -> ToGateway:
    length = length_of(await reader.readexactly(HEAD.size))
    return from_replica(await reader.readexactly(length))
