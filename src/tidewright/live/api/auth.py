"""Authentication over TCP: by the token in ``STATE/token``, a file that only its owner can read."""

from __future__ import annotations

import os
import secrets
import stat
from hmac import compare_digest
from pathlib import Path

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from ...base.errors import UsageError
from ...wire import api
from ..controller.lock import write_whole


def load_token(state: Path) -> str:
    """The token, made on first use. Raises UsageError when others could read the file."""
    path = state / api.TOKEN_NAME
    if not path.exists():
        write_whole(path, secrets.token_urlsafe(32) + "\n")
    return read_token(path, ", or delete it to get a new token", "delete it to get a new one")


def read_token(path: Path, instead: str = "", longer: str = "use one of at least 16") -> str:
    """The token in a file. Raises UsageError when others could read it (``instead``: what else to do), or it is short."""
    info = path.lstat()
    if not stat.S_ISREG(info.st_mode) or stat.S_IMODE(info.st_mode) & 0o077 or info.st_uid != os.geteuid():
        raise UsageError(f"{path} can be read or replaced by others", f"chmod 600 {path}{instead}")
    token = path.read_text().strip()
    if len(token) < 16:
        raise UsageError(f"{path} holds a token of {len(token)} characters", longer)
    return token


DRAINED = 8 * api.MAX_BODY
"""Bytes of an oversized body that are read and thrown away before the connection is cut."""


class TokenAuth:
    """Lets a request through when it carries ``Authorization: Bearer TOKEN``; compared in constant time."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._allowed(scope):
            await self._app(scope, receive, send)
            return
        given = any(name == b"authorization" for name, _ in scope["headers"])
        error = "the token that was given is not this controller's" if given else "this address asks for a token"
        body = api.ErrorBody(error=error, remedy="give it with --token-file (STATE/token)", code="unauthorized")
        await send_json(send, 401, body, [(b"www-authenticate", b"Bearer")])

    def _allowed(self, scope: Scope) -> bool:
        given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
        kind, _, token = given.partition(b" ")
        return compare_digest(token.strip(), self._wanted) and kind.lower() == b"bearer"


class BodyLimit:
    """Refuses request bodies above ``limit`` bytes, also when they come without a length."""

    def __init__(self, app: ASGIApp, limit: int = api.MAX_BODY) -> None:
        self._app, self._limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body, size = bytearray(), 0
        while True:
            message = await receive()
            if message["type"] != "http.request":
                return
            part = message.get("body", b"")
            size += len(part)
            if size <= self._limit:
                body += part
            else:
                # Read on for a while, or the sender would see a broken pipe instead of the answer.
                body.clear()
            if not message.get("more_body") or size > DRAINED:
                break
        if size > self._limit:
            await self._refuse(send)
        else:
            await self._app(scope, _replayed(bytes(body), receive), send)

    async def _refuse(self, send: Send) -> None:
        text = f"the request's body is larger than {self._limit // 2**20} MiB"
        body = api.ErrorBody(error=text, remedy="submit fewer jobs at a time", code="toolarge")
        await send_json(send, 413, body, [(b"connection", b"close")])


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives the collected body once, then whatever comes after it."""
    given = False

    async def again() -> dict[str, object]:
        nonlocal given
        if given:
            return dict(await receive())
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def send_json(send: Send, status: int, body: msgspec.Struct, headers: list[tuple[bytes, bytes]]) -> None:
    """A whole answer on a bare ASGI channel."""
    data = msgspec.json.encode(body)
    base = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*base, *headers]})
    await send({"type": "http.response.body", "body": data})
