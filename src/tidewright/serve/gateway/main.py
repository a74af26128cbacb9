"""The gateway's process: HTTP on a loopback address, replicas on ``STATE/serve.sock``; one gateway for each state directory."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import signal
import socket
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import uvicorn

from ...base.atomic import write_atomically
from ...base.errors import Conflict, UsageError
from .gateway import Gateway
from .http import GatewayRoutes
from .scaling import ServiceController

log = logging.getLogger("tidewright.gateway")
SOCKET, LOCK, ADDRESS = "serve.sock", "serve.lock", "serve.address"
MAX_BODY = 64 * 2**20
GRACE_S = 10


class _Server(uvicorn.Server):
    """Signals are this module's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listener(listen: str) -> socket.socket:
    """A listening socket on a loopback ``HOST:PORT``. Raises UsageError."""
    host, _, port = listen.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"not an address to listen on: {listen!r}", "write it like 127.0.0.1:8700")
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"cannot listen on {listen}: {error}", "write it like 127.0.0.1:8700") from None
    if not (str(address[0]).startswith("127.") or address[0] == "::1"):
        raise UsageError(
            f"{listen} is not a loopback address, and requests would go in clear", "put a proxy with TLS before it"
        )
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(address)
        made.listen(1024)
    except OSError as error:
        made.close()
        raise UsageError(f"cannot listen on {listen}: {error.strerror}", "choose another port with --listen") from None
    return made


@contextlib.contextmanager
def _only_one(state: Path) -> Iterator[None]:
    file = os.open(state / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise Conflict(
            f"a gateway of {state} runs already", "stop it first, or use its address (tide serve top)"
        ) from None
    else:
        yield
    finally:
        os.close(file)


def run_gateway(
    state: Path, listen: str, controller: ServiceController | None, token: str = "", max_body: int = MAX_BODY
) -> None:
    """Serve until SIGTERM or SIGINT. Raises UsageError, Conflict."""
    with _only_one(state), listener(listen) as listening, asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        runner.run(_serve(state, listening, controller, token, max_body))


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (the extra ``serve``), which carries half as many requests again; None: asyncio's own."""
    try:
        return import_module("uvloop").new_event_loop  # type: ignore[no-any-return]
    except ImportError:
        return None


async def _serve(
    state: Path, listening: socket.socket, controller: ServiceController | None, token: str, max_body: int
) -> None:
    gateway = Gateway(state / SOCKET, controller)
    app = GatewayRoutes(gateway, version("tidewright"), max_body, token).application()
    server = _Server(
        uvicorn.Config(app, log_level="warning", access_log=False, lifespan="off", timeout_graceful_shutdown=GRACE_S)
    )
    loop = asyncio.get_running_loop()
    for one in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(one, lambda: setattr(server, "should_exit", True))
    await gateway.replicas.start()
    scaling = asyncio.create_task(gateway.scaling.run())
    host, port = listening.getsockname()[:2]
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    write_atomically(state / ADDRESS, address.encode(), draft=state / f"{ADDRESS}.part")
    log.info("serving on http://%s", address)
    try:
        await server.serve(sockets=[listening])
    finally:
        scaling.cancel()
        await gateway.replicas.close()
        with contextlib.suppress(FileNotFoundError):
            (state / ADDRESS).unlink()
