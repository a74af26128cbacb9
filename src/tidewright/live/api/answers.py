"""Answers of the HTTP API: bodies, errors, and what no handler is there for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from math import ceil

import msgspec
from msgspec import Struct
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from ...base.errors import Busy, TideError, UsageError
from ...wire import api
from ..controller.loop import NotDurable
from .cause_views import cause_view_or_none

Handler = Callable[[Request], Awaitable[Response]]
_CODES = {404: "notfound", 409: "conflict", 413: "toolarge", 503: "busy", 507: "full"}


def answer(body: Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A body as JSON."""
    return Response(msgspec.json.encode(body), status, headers, media_type="application/json")


def guard(handler: Handler) -> Handler:
    """A handler whose errors become ErrorBody."""

    async def guarded(request: Request) -> Response:
        try:
            return await handler(request)
        except NotDurable as error:
            text = "free some disk space, then ask again; running jobs go on meanwhile"
            return answer(api.ErrorBody(error=f"not accepted: {error}", remedy=text, code="full"), 507)
        except UsageError as error:
            code = _CODES.get(error.http_status, "usage")
            body = api.ErrorBody(
                error=error.message, remedy=error.remedy, code=code, cause=cause_view_or_none(error.cause)
            )
            again = {"retry-after": str(ceil(error.retry_s))} if isinstance(error, Busy) else None
            return answer(body, error.http_status, again)
        except TideError as error:
            return answer(api.ErrorBody(error=str(error), code="bug"), error.http_status)
        except (asyncio.CancelledError, ClientDisconnect):
            body = api.ErrorBody(error="the controller is stopping", remedy="start it with tide up", code="conflict")
            return answer(body, 503)

    return guarded


def by_method(handlers: dict[str, Handler]) -> Handler:
    """One route for all methods of a path, so that the answer to others names all of them (RFC 9110, 15.5.6)."""

    async def handle(request: Request) -> Response:
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle


async def no_route(request: Request, error: Exception) -> Response:
    """The answer where no handler is; RFC 9110 wants the methods that are possible."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    what = "no such address" if status == 404 else "not possible with this method" if status == 405 else "refused"
    text = f"{what}: {request.method} {request.url.path}"
    allowed = (error.headers or {}).get("Allow", "") if isinstance(error, HTTPException) else ""
    remedy = f"possible here: {allowed}; see /openapi.json" if allowed else "see /openapi.json"
    found = answer(api.ErrorBody(error=text, remedy=remedy, code="notfound" if status == 404 else "usage"), status)
    if allowed:
        found.headers["allow"] = allowed
    return found


async def bug(request: Request, error: Exception) -> Response:
    """The answer where a handler has failed."""
    text = f"a mistake of the controller's own: {type(error).__name__}: {error}"
    return answer(api.ErrorBody(error=text, remedy="please report it with controller.log", code="bug"), 500)
