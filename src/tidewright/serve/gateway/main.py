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
from starlette.types import ASGIApp

from ...base.atomic import write_atomically
from ...base.errors import Conflict
from ...wire.connections import Limits, raise_open_files
from ...wire.state_files import open_own
from .connections import KEEP_ALIVE_S, bounded_protocol, gateway_limits
from .gateway import Gateway
from .http import GatewayRoutes
from .scaling import ServiceController

log = logging.getLogger("tidewright.gateway")
SOCKET, LOCK, ADDRESS = "serve.sock", "serve.lock", "serve.address"
Guard = Callable[[ASGIApp], ASGIApp]
GRACE_S = 10


class _Server(uvicorn.Server):
    """Signals are this module's."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.contextmanager
def _only_one(state: Path) -> Iterator[None]:
    file = open_own(state / LOCK, os.O_RDWR | os.O_CREAT)
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


def serve_gateway(
    state: Path,
    listening: socket.socket,
    controller: ServiceController | None,
    guard: Guard,
    max_body: int,
    limits: Limits | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT. ``guard`` wraps the application: who may ask. ``limits`` None: as open
    files allow. Raises UsageError, Conflict."""
    raise_open_files()
    with _only_one(state), asyncio.Runner(loop_factory=_fastest_loop()) as runner:
        runner.run(_serve(state, listening, controller, guard, max_body, limits))


def _fastest_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed (the extra ``serve``), which carries half as many requests again; None: asyncio's own."""
    try:
        return import_module("uvloop").new_event_loop  # type: ignore[no-any-return]
    except ImportError:
        return None


async def _serve(
    state: Path,
    listening: socket.socket,
    controller: ServiceController | None,
    guard: Guard,
    max_body: int,
    limits: Limits | None = None,
) -> None:
    gateway = Gateway(state / SOCKET, controller)
    app = guard(GatewayRoutes(gateway, version("tidewright"), max_body).application())
    server = _Server(
        uvicorn.Config(
            app, http=bounded_protocol(limits or gateway_limits()), ws="none", lifespan="off", log_level="warning",
            access_log=False, proxy_headers=False, timeout_keep_alive=KEEP_ALIVE_S, timeout_graceful_shutdown=GRACE_S,
        )
    )  # fmt: skip
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
