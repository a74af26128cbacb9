"""Sockets and uvicorn: the unix socket of the state directory, and TCP with a token when asked for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from ..base.errors import UsageError


class Server(uvicorn.Server):
    """uvicorn, but it leaves signals alone and sleeps until told to stop instead of looking ten times a second."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, server_header=False,
                date_header=False, timeout_graceful_shutdown=1, timeout_keep_alive=75,
            )
        )  # fmt: skip
        self._told = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The controller handles signals itself."""
        yield

    async def main_loop(self) -> None:
        """Sleep; connections are served by the event loop."""
        await self._told.wait()

    def end(self) -> None:
        """Stop serving; open streams are cut after a second."""
        self.should_exit = True
        self._told.set()


def unix_socket(path: Path) -> socket.socket:
    """A listening socket that only its owner can open. The caller holds the state directory's lock, so a file that is
    there is a leftover."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    before = os.umask(0o177)
    try:
        # Through the directory's descriptor: sockaddr_un holds 108 bytes (unix(7)), state directories may be deeper.
        listener.bind(f"/proc/self/fd/{folder}/{path.name}")
    finally:
        os.umask(before)
        os.close(folder)
    listener.listen(512)
    return listener


def tcp_socket(listen: str) -> socket.socket:
    """A listening socket on ``HOST:PORT``. Raises UsageError when it cannot be had."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"not an address to listen on: {listen!r}", "write it like 127.0.0.1:7700")
    try:
        family = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0][0]
        # asyncio turns Nagle's algorithm off only where the protocol is named; with it each answer waits 40 ms for an ACK.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
        listener.listen(512)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {listen}: {error.strerror or error}", "choose another port with --listen"
        ) from None
    return listener
