"""The gateway's end of the connections of replicas: a unix socket that only this account can open."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path

from ...base.errors import UsageError, WorldError
from ..replica.link import (
    HEAD,
    BatchDone,
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


class ReplicaLink:
    """One replica that has said hello. ``send`` never waits: a replica has one batch at a time, and reads it whole."""

    def __init__(self, hello: ReplicaHello, writer: asyncio.StreamWriter) -> None:
        self.hello = hello
        self._writer = writer

    def send(self, batch: int, requests: tuple[Tensors, ...]) -> None:
        """Have it run a batch."""
        self._writer.write(frame(RunBatch(batch, requests)))

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
        self._path, self._joined, self._said, self._lost = path, joined, said, lost
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Raises UsageError where that cannot be done; the caller holds a lock that no other gateway has."""
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        before = os.umask(0o177)
        try:
            self._server = await asyncio.start_unix_server(self._serve, self._path)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {self._path}: {error.strerror or error}", "choose a shorter path with --state"
            ) from None
        finally:
            os.umask(before)

    async def close(self) -> None:
        """End all connections; replicas connect again when a gateway is back."""
        if self._server is not None:
            self._server.close()
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()

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
