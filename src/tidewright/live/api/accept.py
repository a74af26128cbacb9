"""Accepting connections: each listener in a task of its own, with limits on their number and on the time for a request to arrive.

asyncio's own servers accept whatever comes, and once descriptors are short they log each failure of a whole backlog.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Any

import h11
import msgspec
from uvicorn.protocols.http.h11_impl import H11Protocol

from ...wire import api
from ...wire.connections import Connections, Limits, TooManyConnections, peer_of
from .identity import client_of

log = logging.getLogger(__name__)
SHORT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
RETRY_S = 0.2
"""Pause before accepting again when the kernel is short of descriptors or memory; those who connect wait in the backlog."""
BACKLOG = 512


class TimedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 protocol, with deadlines for the parts of a request (slowloris). Reports idle and busy."""

    def __init__(self, connections: Connections, **given: Any) -> None:
        super().__init__(**given)
        self._counted = connections
        self._deadline: asyncio.TimerHandle | None = None
        self._stage: Any = None
        self._began, self._received = 0.0, 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.client = client_of(transport) or self.client
        self._enter(h11.IDLE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel()
        self._counted.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        super().data_received(data)
        stage = self.conn.their_state
        # A kept connection is uvicorn's to time while nothing comes; with the next request's first byte the time runs.
        if stage != self._stage or (stage is h11.IDLE and self._deadline is None):
            self._enter(stage)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._cancel()
        stage = self._stage = self.conn.their_state
        if stage is h11.IDLE:
            self._counted.silent(self)
        elif stage is h11.SEND_BODY and self.conn.our_state is h11.DONE:
            # It was answered (401, say) before its body had come; the rest is read and dropped, but not for long.
            self._deadline = self.loop.call_later(self._counted.limits.header_s, self.transport.abort)
        elif stage is h11.SEND_BODY:
            self._enter(stage)  # the next request was there already

    def _enter(self, stage: Any) -> None:
        """The request has reached another part: its header, its body, or its end."""
        self._cancel()
        self._stage, self._began, self._received = stage, self.loop.time(), 0
        limits = self._counted.limits
        if stage is h11.IDLE:
            self._deadline = self.loop.call_later(limits.header_s, self._late)
            return
        self._counted.busy(self)
        if stage is h11.SEND_BODY:
            self._deadline = self.loop.call_later(limits.body_s, self._late)

    def _late(self) -> None:
        """Time is up; a body that comes steadily is given more."""
        limits = self._counted.limits
        if self._stage is h11.SEND_BODY:
            left = self._began + limits.body_s + self._received / limits.body_rate - self.loop.time()
            if left > 0:
                self._deadline = self.loop.call_later(left, self._late)
                return
        log.info("a connection is closed: no whole request came on it in time")
        self.transport.abort()

    def _cancel(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Acceptor:
    """Serves one listening socket until ``close``. ``protocol`` makes the protocol of a new connection."""

    def __init__(
        self, listener: socket.socket, limits: Limits, protocol: Callable[[Connections], TimedProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> None:  # fmt: skip
        self.connections = Connections(limits)
        self._protocol, self._tls = protocol, tls
        self._opening: dict[TimedProtocol, asyncio.Task[None]] = {}
        self._listen(listener)

    def _listen(self, listener: socket.socket) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._task = asyncio.get_running_loop().create_task(self._run(listener))

    def listen_on(self, listener: socket.socket) -> None:
        """Another listening socket instead of the one so far; connections stay."""
        self.close()
        self._listen(listener)

    def close(self) -> None:
        """Accept no more; connections stay."""
        self._task.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Once nothing is being accepted any more."""
        await asyncio.wait({self._task, *self._opening.values()})

    async def _run(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                sock, address = await loop.sock_accept(listener)
            except OSError as error:
                if listener.fileno() < 0:
                    return
                if error.errno in SHORT_OF_FILES:
                    log.warning("no connection can be accepted: %s; tried again", error.strerror)
                    await asyncio.sleep(RETRY_S)
                continue
            self._accept(sock, address)
            # A connection that is there already is accepted without a pause: the others on this loop must get their turn.
            await asyncio.sleep(0)

    def _accept(self, sock: socket.socket, address: Any) -> None:
        sock.setblocking(False)
        protocol = self._protocol(self.connections)

        def close() -> None:
            if protocol.transport is None:
                self._opening[protocol].cancel()
                sock.close()  # a task that is cancelled before its first step does nothing
            else:
                protocol.transport.abort()

        try:
            self.connections.admit(protocol, peer_of(sock, address), close)
        except TooManyConnections:
            self._refuse(sock)
        except OSError:  # gone already
            sock.close()
        else:
            self._opening[protocol] = asyncio.get_running_loop().create_task(self._connect(sock, protocol))

    async def _connect(self, sock: socket.socket, protocol: TimedProtocol) -> None:
        more = (
            {} if self._tls is None else {"ssl": self._tls, "ssl_handshake_timeout": self.connections.limits.header_s}
        )
        try:
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, sock, **more)  # type: ignore[arg-type]
        except (OSError, asyncio.CancelledError):
            # Also a failed TLS handshake (ssl.SSLError); the protocol has not heard of the connection then.
            sock.close()
            self.connections.closed(protocol)
        finally:
            del self._opening[protocol]

    def _refuse(self, sock: socket.socket) -> None:
        """Answer without having read the request; whether it arrives is up to the network."""
        log.warning("a connection is refused: %d are open", len(self.connections))
        body = msgspec.json.encode(
            api.ErrorBody(error="too many connections", remedy="try again in a moment", code="busy")
        )
        head = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nconnection: close\r\nretry-after: 1\r\n"
        if self._tls is None:
            with contextlib.suppress(OSError):
                sock.send(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        sock.close()
