"""The user of a request: on the unix socket by SO_PEERCRED (unix(7)); over TCP only holders of the token are known.

What a client says of its user is believed on neither. Until people have identities of their own, a name that comes with
the token is kept as a remark on it.
"""

from __future__ import annotations

import asyncio
import os
import socket

from msgspec.structs import replace
from starlette.types import ASGIApp, Receive, Scope, Send

from ...base.ids import valid_name
from ...wire import api
from ...wire.connections import peer_of
from ...wire.state_files import name_of
from .auth import send_json

_UNIX = "uid "
"""Begins the ``client`` of a request that came over a unix socket; no address of TCP has a blank in it."""
TOKEN = "[token]"
"""Marks users known by the token only. No name of a unix user has a bracket in it."""


def client_of(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """The ASGI ``client`` of a connection over a unix socket; None for others."""
    sock = transport.get_extra_info("socket")
    if sock is None or sock.family != socket.AF_UNIX:
        return None
    return f"{_UNIX}{peer_of(sock, None)}", 0


def uid_of(scope: Scope) -> int | None:
    """The user id of the caller; None over TCP."""
    host = (scope.get("client") or ("", 0))[0]
    return int(host.removeprefix(_UNIX)) if host.startswith(_UNIX) else None


def caller(scope: Scope) -> str:
    """The user of a request, as histories of jobs name them."""
    uid = uid_of(scope)
    return TOKEN if uid is None else name_of(uid)


def signed(body: api.SubmitRequest, scope: Scope, run_as: str) -> api.SubmitRequest:
    """The jobs with their true user, and the account that they are to run as, now and after restarts."""
    uid = uid_of(scope)
    known = None if uid is None else name_of(uid)
    specs = tuple(replace(spec, user=known or remark(spec.user), run_as=run_as) for spec in body.specs)
    return replace(body, specs=specs)


def remark(claimed: str) -> str:
    """The user of a job that came with the token, by the name that came with it."""
    return f"{claimed}{TOKEN}" if valid_name(claimed + TOKEN) and TOKEN not in claimed else TOKEN


class SocketAuth:
    """Admits the user who runs this controller, and root: the socket's mode says the same, until it is changed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or uid_of(scope) in (0, os.geteuid()):
            await self._app(scope, receive, send)
            return
        body = api.ErrorBody(
            error="this socket is for the user who runs the controller, and root",
            remedy="ask that user, or have the controller serve TCP for holders of its token (tide up --listen)",
            code="forbidden",
        )
        await send_json(send, 403, body, [(b"connection", b"close")])
