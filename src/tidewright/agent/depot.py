"""The depot: what agents are to each other over TCP. Parts of a cut, where ranks meet, and the bytes of images.

One JSON line asks, one JSON line answers, followed by as many raw bytes as it announces. Every request carries the
cluster's token; whoever does not know it learns nothing but that.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..base.errors import TideError, UsageError, WorldError
from ..wire.agent import Peer

log = logging.getLogger(__name__)

MAX_LINE = 4 * 2**20
"""Bytes of a request or answer line; the page tables of a thousand ranks fit."""
CHUNK = 2**20
CONNECT_S = 5.0
SILENCE_S = 60.0
"""Longest wait for the next bytes of a peer that has accepted a request."""


class Body:
    """An answer with bytes behind it: the part of a file from ``offset``, ``size`` bytes long. ``sent`` is called when
    it is with its reader, or lost."""

    def __init__(self, path: Path, offset: int, size: int, sent: Callable[[], None] = lambda: None) -> None:
        self.path, self.offset, self.size, self.sent = path, offset, size, sent


Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class Depot:
    """``handlers`` take the request's ``args`` and return what is sent back: JSON, or a ``Body``."""

    def __init__(self, token: str, handlers: dict[str, Handler]) -> None:
        self._token, self._handlers = token, handlers
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self, address: str, port: int = 0) -> None:
        """Listen on ``port`` of ``address``, or on a free one when that is taken. Raises WorldError."""
        try:
            self._server = await asyncio.start_server(self._serve, address, port, limit=MAX_LINE)
        except OSError as error:
            if port:
                await self.open(address)
                return
            raise WorldError(f"cannot listen on {address}: {error.strerror}") from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut every connection."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._clients):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        try:
            while line := await reader.readline():
                await self._answer(line, writer)
        except (ConnectionError, ValueError, asyncio.IncompleteReadError):
            log.info("a peer's connection broke")
        finally:
            self._clients.discard(writer)
            writer.close()

    async def _answer(self, line: bytes, writer: asyncio.StreamWriter) -> None:
        try:
            found = await self._handle(line)
        except UsageError as error:
            found = {"error": str(error), "fault": "usage"}
        except (TideError, OSError) as error:
            found = {"error": str(error), "fault": "world"}
        except Exception as error:
            log.exception("a peer's request failed")
            found = {"error": f"{type(error).__name__}: {error}", "fault": "world"}
        if isinstance(found, Body):
            try:
                await self._send_file(found, writer)
            finally:
                found.sent()
            return
        writer.write(json.dumps(found).encode() + b"\n")
        await writer.drain()

    async def _handle(self, line: bytes) -> Any:
        try:
            request = json.loads(line)
            token, verb, args = str(request["token"]), str(request["verb"]), dict(request["args"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError("not a request of this protocol", "speak one JSON object per line") from error
        if not hmac.compare_digest(token.encode(), self._token.encode()):
            raise UsageError("a wrong token", "give all agents of a cluster the same --token-file")
        handler = self._handlers.get(verb)
        if handler is None:
            raise UsageError(f"no verb {verb!r}", "run the same version everywhere")
        found = await handler(args)
        return found if isinstance(found, Body) else {"ok": found}

    async def _send_file(self, body: Body, writer: asyncio.StreamWriter) -> None:
        with body.path.open("rb") as file:
            writer.write(json.dumps({"ok": None, "bytes": body.size}).encode() + b"\n")
            await writer.drain()
            if body.size:
                await asyncio.get_running_loop().sendfile(writer.transport, file, body.offset, body.size)


class Silent(WorldError):
    """A peer did not answer, or broke off; what it holds is not known."""


class DepotClient:
    """Blocking calls to one peer's depot over one connection; used in threads, one at a time."""

    def __init__(self, peer: Peer, token: str) -> None:
        self.peer, self._token = peer, token
        self._socket: socket.socket | None = None
        self._file: IO[bytes] | None = None

    def ask(self, verb: str, args: dict[str, Any], timeout: float = SILENCE_S) -> Any:
        """The answer to one request. Raises Silent, and WorldError when it failed over there."""
        return self._talk(verb, args, timeout)["ok"]

    def read(self, verb: str, args: dict[str, Any]) -> Iterator[bytes]:
        """The bytes of an answer, in pieces. Raises Silent when they break off."""
        left = int(self._talk(verb, args, SILENCE_S).get("bytes", 0))
        while left:
            piece = self._receive(min(left, CHUNK))
            left -= len(piece)
            yield piece

    def _talk(self, verb: str, args: dict[str, Any], timeout: float) -> dict[str, Any]:
        line = json.dumps({"token": self._token, "verb": verb, "args": args}).encode() + b"\n"
        try:
            connection, file = self._connect()
            connection.settimeout(timeout)
            connection.sendall(line)
            answer: dict[str, Any] = json.loads(file.readline(MAX_LINE))
        except (OSError, ValueError) as error:
            self.close()
            raise Silent(f"node {self.peer.node} does not answer {verb}: {error}") from error
        if "error" in answer:
            raise WorldError(f"node {self.peer.node}: {answer['error']}")
        return answer

    def _connect(self) -> tuple[socket.socket, IO[bytes]]:
        if self._socket is None or self._file is None:
            self._socket = socket.create_connection((self.peer.address, self.peer.port), CONNECT_S)
            self._file = self._socket.makefile("rb")
        return self._socket, self._file

    def _receive(self, most: int) -> bytes:
        assert self._file is not None
        try:
            piece = self._file.read(most)
        except OSError as error:
            self.close()
            raise Silent(f"node {self.peer.node} fell silent: {error}") from error
        if not piece:
            self.close()
            raise Silent(f"node {self.peer.node} closed the connection")
        return piece

    def close(self) -> None:
        """Drop the connection; the next call makes another."""
        for end in (self._file, self._socket):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()
        self._file = self._socket = None
