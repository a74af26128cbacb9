"""Sockets and uvicorn: the unix socket of the state directory, and TCP with a token when asked for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ...base.errors import UsageError
from ...wire.connections import Connections, Limits, room_for
from ...wire.own_directory import OwnDirectory
from ...wire.socket_file import LOOK_EVERY_S, SocketFile
from .accept import BACKLOG, Acceptor, TimedProtocol

log = logging.getLogger(__name__)

UNIX_LIMITS = (0.5, 8192)
TCP_LIMITS = (0.25, 1024)
"""Share of this process's open files that each listener's connections may take, and their number at most. What is left is
for the journal, logs and agents; the socket has its own share, so that strangers on TCP cannot keep its users out."""


def limits(share: float, most: int) -> Limits:
    """The limits of one listener; a single peer gets a quarter of it over TCP, three quarters of the socket's (a user)."""
    total = room_for(share, most)
    each = total // 4 if (share, most) == TCP_LIMITS else 3 * total // 4
    return Limits(total, max(2, each))


class ApiServer(uvicorn.Server):
    """uvicorn, but it leaves signals alone, sleeps until ``end`` instead of polling ten times a second, and accepts
    connections by ``accept.Acceptor``. ``tls`` encrypts them."""

    def __init__(self, app: ASGIApp, limits: Limits, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(
            uvicorn.Config(
                app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                date_header=False, timeout_graceful_shutdown=1, timeout_keep_alive=75,
            )
        )  # fmt: skip
        self.limits = limits
        self._tls = tls
        self._stop = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The controller handles signals itself."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept."""
        await self.lifespan.startup()
        self.acceptors = [Acceptor(one, self.limits, self._protocol, self._tls) for one in sockets or []]
        self.servers = self.acceptors  # type: ignore[assignment]  # closed and awaited in the end, as uvicorn's own
        self.started = True

    def _protocol(self, connections: Connections) -> TimedProtocol:
        return TimedProtocol(
            connections, config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )

    async def main_loop(self) -> None:
        """Sleep; connections are served by the event loop."""
        await self._stop.wait()

    def end(self) -> None:
        """Stop serving; open streams are cut after a second."""
        self.should_exit = True
        self._stop.set()


class UnixServer:
    """A server on the unix socket ``path``, which is made anew when its file vanishes. The caller holds the state
    directory's lock; ``own`` says whether the directory is still the one that was locked."""

    def __init__(self, app: ASGIApp, path: Path, own: OwnDirectory | None = None) -> None:
        self.server = ApiServer(app, limits(*UNIX_LIMITS))
        self._file = SocketFile(path, own)
        self._listener = self._file.bind(BACKLOG)

    async def serve(self) -> None:
        """Until ``end``."""
        watch = asyncio.create_task(self._watch())
        try:
            await self.server.serve(sockets=[self._listener])
        finally:
            watch.cancel()
            self._file.remove()

    async def _watch(self) -> None:
        """Bind again when the file was removed (a clean-up job): no client could connect any more, not even to stop us."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._file.gone and self.server.started:
                self._bind_again()

    def _bind_again(self) -> None:
        try:
            self.server.acceptors[0].listen_on(self._file.bind(BACKLOG))
            log.warning("%s was gone; it has been made again", self._file.path)
        except OSError as error:
            log.warning("%s is gone and cannot be made again: %s", self._file.path, error.strerror)

    def end(self) -> None:
        """Stop serving."""
        self.server.end()


class TcpServer:
    """A server on a listening TCP socket."""

    def __init__(self, app: ASGIApp, listener: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.server = ApiServer(app, limits(*TCP_LIMITS), tls)
        self._listener = listener

    async def serve(self) -> None:
        """Until ``end``."""
        await self.server.serve(sockets=[self._listener])

    def end(self) -> None:
        """Stop serving."""
        self.server.end()


def tcp_socket(listen: str) -> socket.socket:
    """A listening socket on ``HOST:PORT``. Raises UsageError when it cannot be had."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"not an address to listen on: {listen!r}", "write it like 127.0.0.1:7700")
    try:
        family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0][0]
        # asyncio turns Nagle's algorithm off only where the protocol is named; with it each answer waits 40 ms for an ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(BACKLOG)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen}: {error.strerror or error}", "choose another port with --listen"
        ) from None
    return listener
