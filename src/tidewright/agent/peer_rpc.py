"""RPC between agents over TCP: parts of a cut, endpoints of rendezvous, and the bytes of images.

A connection begins with both sides showing that they know the cluster's token (``peer_auth``), which is never sent. Then
one frame of JSON asks, one answers, followed by as many raw bytes as it announces.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import IO, Any

from ..base.errors import TideError, UsageError, WorldError
from ..wire.agent import Peer
from . import peer_auth
from .peer_auth import NotAuthentic, PeerSession

log = logging.getLogger(__name__)

MAX_LINE = 4 * 2**20
"""Bytes of a request or answer; the page tables of a thousand ranks fit."""
BUFFER = 2**16
"""Bytes read ahead of a connection, at most."""
CHUNK = 2**20
PROVE_S = 10.0
"""Longest time that a connection may take to show that it knows the token."""
MOST_UNPROVEN = 64
"""Connections that have not yet; one more ends the oldest of them."""
OTHER_VERSION = {
    "error": "other versions of the peer protocol are refused: run the same version everywhere",
    "fault": "usage",
}
WRONG_TOKEN = {"error": "a wrong token: give all agents of a cluster the same --token-file", "fault": "usage"}
CONNECT_S = 5.0
SILENCE_S = 60.0
"""Longest wait for the next bytes of a peer that has accepted a request."""


class FileBody:
    """An answer that is followed by bytes: the part of a file from ``offset``, ``size`` bytes long. ``sent`` is called when
    they are sent, or lost. ``secret``: few bytes, which are encrypted on the wire."""

    def __init__(
        self, path: Path, offset: int, size: int, sent: Callable[[], None] = lambda: None, *, secret: bool = False
    ) -> None:
        self.path, self.offset, self.size, self.sent, self.secret = path, offset, size, sent, secret


Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class PeerServer:
    """``handlers`` take the request's ``args`` and return what is sent back: JSON, or a ``FileBody``."""

    def __init__(self, token: str, handlers: dict[str, Handler]) -> None:
        self._token, self._handlers = token, handlers
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._unproven: dict[asyncio.StreamWriter, None] = {}
        """Connections that have not shown yet that they know the token, oldest first."""
        self.port = 0

    async def open(self, address: str, port: int = 0) -> None:
        """Listen on ``port`` of ``address``, or on a free one when that is taken. Raises WorldError."""
        try:
            self._server = await asyncio.start_server(self._serve, address, port, limit=BUFFER)
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
            session = await self._greet(reader, writer)
            while session is not None:
                mac, size = peer_auth.read_head(await reader.readexactly(peer_auth.HEAD_BYTES), MAX_LINE)
                payload = await reader.readexactly(size)
                session.number += 1
                session.check(b"request", mac, payload)
                await self._answer(payload, session, writer)
        except NotAuthentic as error:
            log.warning("a peer's connection is closed: %s", error)
        except asyncio.IncompleteReadError as error:
            if error.partial:
                log.info("a peer's connection broke")
        except (ConnectionError, ValueError, TimeoutError):
            log.info("a peer's connection broke")
        finally:
            self._clients.discard(writer)
            self._unproven.pop(writer, None)
            writer.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> PeerSession | None:
        """The session of a peer that knows the token; None for others, after an error frame. Raises what reading raises."""
        self._unproven[writer] = None
        if len(self._unproven) > MOST_UNPROVEN:
            oldest = next(iter(self._unproven))
            del self._unproven[oldest]  # at once: its task ends later, and more connections may be there by then
            oldest.transport.abort()
        async with asyncio.timeout(PROVE_S):
            try:
                theirs = peer_auth.read_client_hello(await reader.readuntil(b"\n"))
            except (NotAuthentic, asyncio.LimitOverrunError):
                await self._reject(OTHER_VERSION, writer)
                return None
            session = PeerSession(self._token, theirs, peer_auth.nonce())
            writer.write(session.server_hello())
            try:
                session.check_client(await reader.readuntil(b"\n"))
            except NotAuthentic:
                await self._reject(WRONG_TOKEN, writer)
                return None
        self._unproven.pop(writer, None)
        return session

    @staticmethod
    async def _reject(why: dict[str, str], writer: asyncio.StreamWriter) -> None:
        """As the first version of the protocol answers, which has no other way to hear of it."""
        writer.write(json.dumps(why).encode() + b"\n")
        await writer.drain()

    async def _answer(self, payload: bytes, session: PeerSession, writer: asyncio.StreamWriter) -> None:
        try:
            found = await self._handle(payload)
        except UsageError as error:
            found = {"error": str(error), "fault": "usage"}
        except (TideError, OSError) as error:
            found = {"error": str(error), "fault": "world"}
        except Exception as error:
            log.exception("a peer's request failed")
            found = {"error": f"{type(error).__name__}: {error}", "fault": "world"}
        if isinstance(found, FileBody):
            try:
                await self._send_file(found, session, writer)
            finally:
                found.sent()
            return
        writer.write(session.frame(b"answer", json.dumps(found).encode()))
        await writer.drain()

    async def _handle(self, payload: bytes) -> Any:
        try:
            request = json.loads(payload)
            verb, args = str(request["verb"]), dict(request["args"])
        except (ValueError, KeyError, TypeError) as error:
            raise UsageError("not a request of this protocol", "send one JSON object with verb and args") from error
        handler = self._handlers.get(verb)
        if handler is None:
            raise UsageError(f"no verb {verb!r}", "run the same version everywhere")
        found = await handler(args)
        return found if isinstance(found, FileBody) else {"ok": found}

    async def _send_file(self, body: FileBody, session: PeerSession, writer: asyncio.StreamWriter) -> None:
        with body.path.open("rb") as file:
            if body.secret:
                file.seek(body.offset)
                sealed = session.pad(file.read(body.size)).hex()
                writer.write(session.frame(b"answer", json.dumps({"ok": None, "sealed": sealed}).encode()))
                return
            writer.write(session.frame(b"answer", json.dumps({"ok": None, "bytes": body.size}).encode()))
            await writer.drain()
            if body.size:
                await asyncio.get_running_loop().sendfile(writer.transport, file, body.offset, body.size)


class PeerSilent(WorldError):
    """A peer did not answer, or broke off; what it holds is not known."""


class PeerClient:
    """Blocking calls to one peer's depot over one connection; used in threads, one at a time."""

    def __init__(self, peer: Peer, token: str) -> None:
        self.peer, self._token = peer, token
        self._socket: socket.socket | None = None
        self._file: IO[bytes] | None = None
        self._session: PeerSession | None = None

    def ask(self, verb: str, args: dict[str, Any], timeout: float = SILENCE_S) -> Any:
        """The answer to one request. Raises Silent, and WorldError when it failed over there."""
        return self._talk(verb, args, timeout)["ok"]

    def read(self, verb: str, args: dict[str, Any]) -> Iterator[bytes]:
        """The bytes of an answer, in pieces. Raises Silent when they break off."""
        answer = self._talk(verb, args, SILENCE_S)
        if "sealed" in answer and self._session is not None:
            yield self._session.pad(bytes.fromhex(answer["sealed"]))
            return
        left = int(answer.get("bytes", 0))
        while left:
            piece = self._receive(min(left, CHUNK))
            left -= len(piece)
            yield piece

    def _talk(self, verb: str, args: dict[str, Any], timeout: float) -> dict[str, Any]:
        payload = json.dumps({"verb": verb, "args": args}).encode()
        try:
            connection, file, session = self._connect()
            connection.settimeout(timeout)
            session.number += 1
            connection.sendall(session.frame(b"request", payload))
            answer = _read_answer(file, session)
        except (OSError, ValueError, NotAuthentic) as error:
            self.close()
            raise PeerSilent(f"node {self.peer.node} does not answer {verb}: {error}") from error
        if "error" in answer:
            raise WorldError(f"node {self.peer.node}: {answer['error']}")
        return answer

    def _connect(self) -> tuple[socket.socket, IO[bytes], PeerSession]:
        if self._socket is None or self._file is None or self._session is None:
            self._socket = socket.create_connection((self.peer.address, self.peer.port), CONNECT_S)
            # Proof and request are two small writes: by Nagle's algorithm the second waits 40 ms for a delayed ACK.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._file = self._socket.makefile("rb")
            self._session = self._greet(self._socket, self._file)
        return self._socket, self._file, self._session

    def _greet(self, connection: socket.socket, file: IO[bytes]) -> PeerSession:
        """Learn that the peer knows the token, then show that we do. Raises OSError, and WorldError for another token or
        version; such a peer has been sent no more than a random number."""
        ours = peer_auth.nonce()
        connection.sendall(peer_auth.client_hello(ours))
        line = file.readline(peer_auth.LONGEST_HELLO)
        if not line:
            raise OSError("it closed the connection")
        try:
            session = peer_auth.read_server_hello(line, self._token, ours)
        except NotAuthentic as error:
            self.close()
            why = WRONG_TOKEN if line.startswith(peer_auth.HELLO) else OTHER_VERSION
            raise WorldError(f"node {self.peer.node}: {why['error']}") from error
        connection.sendall(session.client_proof())
        return session

    def _receive(self, most: int) -> bytes:
        assert self._file is not None
        try:
            piece = self._file.read(most)
        except OSError as error:
            self.close()
            raise PeerSilent(f"node {self.peer.node} fell silent: {error}") from error
        if not piece:
            self.close()
            raise PeerSilent(f"node {self.peer.node} closed the connection")
        return piece

    def close(self) -> None:
        """Drop the connection; the next call makes another."""
        for end in (self._file, self._socket):
            if end is not None:
                with contextlib.suppress(OSError):
                    end.close()
        self._file = self._socket = self._session = None


def _read_answer(file: IO[bytes], session: PeerSession) -> dict[str, Any]:
    """The next answer. Raises NotAuthentic, OSError and ValueError."""
    head = file.read(peer_auth.HEAD_BYTES)
    if len(head) < peer_auth.HEAD_BYTES:
        raise OSError("it closed the connection")
    mac, size = peer_auth.read_head(head, MAX_LINE)
    payload = file.read(size)
    session.check(b"answer", mac, payload)
    answer: dict[str, Any] = json.loads(payload)
    return answer
