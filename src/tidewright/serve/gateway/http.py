"""The gateway's HTTP interface: Open Inference Protocol, version 2, health, metrics, and what ``tide serve top`` shows."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ...base.errors import NotFound, UsageError
from ..protocol.inference import LENGTH_HEADER, MAX_TIMEOUT_US, read_call, write_answer
from ..protocol.metadata import model_metadata, server_metadata
from .gateway import Gateway
from .pool import ModelError, ServicePool, Unavailable

TIMEOUT_HEADER, CLASS_HEADER = "tide-timeout-ms", "tide-class"
BODY_WITHIN_S = 30.0
COLD_START_S = 60.0
"""How long the first request waits for the first replica of a service that is scaled to none."""


class _TooLarge(UsageError):
    """413."""


class _TooSlow(UsageError):
    """408."""


class GatewayRoutes:
    """Handlers. ``max_body``: bytes."""

    def __init__(self, gateway: Gateway, version: str, max_body: int) -> None:
        self._gateway, self._version, self._max_body = gateway, version, max_body

    def application(self) -> Starlette:
        """The ASGI application."""
        model = "/v2/models/{model}"
        routes = [
            Route("/v2/health/live", self._guard(self.live)), Route("/v2/health/ready", self._guard(self.live)),
            Route("/v2", self._guard(self.server)), Route("/metrics", self._guard(self.metrics)),
            Route("/v1/gateway", self._guard(self.status)),
        ]  # fmt: skip
        for path in (model, model + "/versions/{version}"):
            routes += [
                Route(path, self._guard(self.model)), Route(path + "/ready", self._guard(self.ready)),
                Route(path + "/infer", self._guard(self.infer), methods=["POST"]),
            ]  # fmt: skip
        return Starlette(routes=routes)

    def _guard(self, handler: Any) -> Any:
        """Errors become answers of the protocol: ``{"error": ...}``."""

        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)  # type: ignore[no-any-return]
            except Unavailable as error:
                headers = {"retry-after": str(max(1, error.retry_after_s))}
                return _error(503, str(error), {"code": error.code}, headers)
            except ModelError as error:
                return _error(500, str(error))
            except NotFound as error:
                return _error(404, error.message)
            except UsageError as error:
                status = 413 if isinstance(error, _TooLarge) else 408 if isinstance(error, _TooSlow) else 400
                return _error(status, f"{error.message}; {error.remedy}" if error.remedy else error.message)
            except ClientDisconnect:
                return Response(status_code=499)

        return guarded

    # -- handlers ---------------------------------------------------------------------------------------------------

    async def live(self, request: Request) -> Response:
        return Response()

    async def server(self, request: Request) -> Response:
        return _json(server_metadata(self._version))

    async def metrics(self, request: Request) -> Response:
        return Response(generate_latest(self._gateway.measures.registry), media_type="text/plain; version=0.0.4")

    async def status(self, request: Request) -> Response:
        return _json(self._gateway.status())

    async def model(self, request: Request) -> Response:
        pool, version = self._pool(request)
        if pool.signature is None:
            raise Unavailable(f"service {pool.name} has no replica yet", "no_replica", 1)
        return _json(model_metadata(pool.name, version, pool.signature))

    async def ready(self, request: Request) -> Response:
        pool, _ = self._pool(request)
        return Response(status_code=200 if pool.replicas else 503)

    async def infer(self, request: Request) -> Response:
        pool, version = self._pool(request)
        body = await self._body(request)
        if not pool.replicas and await self._gateway.scaling.wake(pool.name):
            await _first(pool)
        if pool.signature is None:
            raise Unavailable(f"service {pool.name} has no replica yet", "no_replica", 1)
        call = read_call(body, _length(request), pool.signature)
        best_effort = _class(request)
        outputs = await pool.infer(call.inputs, len(body), _timeout(request) or call.timeout_us, best_effort)
        data, head = write_answer(call, pool.name, version, outputs)
        if head is None:
            return Response(data, media_type="application/json")
        return Response(data, media_type="application/octet-stream", headers={LENGTH_HEADER: str(head)})

    def _pool(self, request: Request) -> tuple[ServicePool, str]:
        name, version = request.path_params["model"], request.path_params.get("version", "1")
        pool = self._gateway.pool(name)
        if pool is None or version != "1":
            raise NotFound(f"no model {name!r}{'' if pool is None else f' of version {version}'}")
        return pool, version

    async def _body(self, request: Request) -> bytes:
        declared = request.headers.get("content-length", "0")
        if declared.isdigit() and int(declared) > self._max_body:
            raise _TooLarge(f"a body of {declared} bytes; {self._max_body} at most")
        parts, size = [], 0
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                async for part in request.stream():
                    size += len(part)
                    if size > self._max_body:
                        raise _TooLarge(f"a body of more than {self._max_body} bytes")
                    parts.append(part)
        except TimeoutError:
            raise _TooSlow(f"the body did not come within {BODY_WITHIN_S:.0f} s") from None
        return b"".join(parts)


async def _first(pool: ServicePool) -> None:
    pool.awaiting_first += 1
    try:
        await asyncio.wait_for(pool.first.wait(), COLD_START_S)
    except TimeoutError:
        raise Unavailable(f"service {pool.name} is starting its first replica", "no_replica", 10) from None
    finally:
        pool.awaiting_first -= 1


def _length(request: Request) -> int | None:
    text = request.headers.get(LENGTH_HEADER)
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 12:
        raise UsageError(f"{LENGTH_HEADER}: {text!r} is no length", "send the length of the JSON object")
    return int(text)


def _timeout(request: Request) -> int:
    """Microseconds from now; 0: the service's objective."""
    text = request.headers.get(TIMEOUT_HEADER, "0")
    if not text.isascii() or not text.isdigit() or not int(text[:12]) * 1000 <= MAX_TIMEOUT_US:
        raise UsageError(f"{TIMEOUT_HEADER}: {text!r} is not a number of milliseconds", "give up to a day")
    return int(text) * 1000


def _class(request: Request) -> bool:
    text = request.headers.get(CLASS_HEADER, "rt")
    if text not in ("rt", "be"):
        raise UsageError(f"{CLASS_HEADER}: {text!r} is neither rt nor be", "leave it out for rt")
    return text == "be"


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


def _error(
    status: int, text: str, more: dict[str, str] | None = None, headers: dict[str, str] | None = None
) -> Response:
    body = msgspec.json.encode({"error": text, **(more or {})})
    return Response(body, status, headers=headers, media_type="application/json")
