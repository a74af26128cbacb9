"""Inference requests over HTTP, straight from ASGI: a request that is refused costs no more than reading its JSON object.

Admission comes before tensors are read, which are most of a request and most of the work that it makes.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec
from starlette.types import Message, Receive, Scope, Send

from ...base.errors import NotFound, UsageError
from ..protocol.inference import LENGTH_HEADER, MAX_TIMEOUT_US, read_call, write_answer
from .gateway import Gateway
from .pool import ClientGone, ModelError, PendingRequest, ServicePool, Unavailable

TIMEOUT_HEADER, CLASS_HEADER = "tide-timeout-ms", "tide-class"
BODY_WITHIN_S = 30.0
COLD_START_S = 60.0
"""How long the first request waits for the first replica of a service that is scaled to none."""
_JSON, _BINARY = (b"content-type", b"application/json"), (b"content-type", b"application/octet-stream")


class RequestTooLarge(UsageError):
    """413."""


class RequestTooSlow(UsageError):
    """408."""


@dataclass(frozen=True, slots=True)
class RequestHeaders:
    """The headers that an inference request is served by. ``timeout_us`` 0: the service's objective."""

    content_length: int
    json_length: int | None
    timeout_us: int
    best_effort: bool


def read_headers(scope: Scope) -> RequestHeaders:
    """Raises UsageError for values that are none."""
    found = {name: value for name, value in scope["headers"] if name in _HEADERS}
    length = found.get(b"content-length", b"0")
    return RequestHeaders(
        int(length) if length.isdigit() else 0,
        _json_length(found.get(LENGTH_HEADER.encode())),
        _timeout(found.get(TIMEOUT_HEADER.encode())),
        _best_effort(found.get(CLASS_HEADER.encode())),
    )


_HEADERS = frozenset((b"content-length", *(one.encode() for one in (LENGTH_HEADER, TIMEOUT_HEADER, CLASS_HEADER))))


def _json_length(value: bytes | None) -> int | None:
    if value is None:
        return None
    if not value.isdigit() or len(value) > 12:
        raise UsageError(f"{LENGTH_HEADER}: {_shown(value)} is no length", "send the length of the JSON object")
    return int(value)


def _timeout(value: bytes | None) -> int:
    if value is None:
        return 0
    if not value.isdigit() or not int(value[:12]) * 1000 <= MAX_TIMEOUT_US:
        raise UsageError(f"{TIMEOUT_HEADER}: {_shown(value)} is not a number of milliseconds", "give up to a day")
    return int(value) * 1000


def _best_effort(value: bytes | None) -> bool:
    if value not in (None, b"rt", b"be"):
        raise UsageError(f"{CLASS_HEADER}: {_shown(value or b'')} is neither rt nor be", "leave it out for rt")
    return value == b"be"


def _shown(value: bytes) -> str:
    return repr(value[:100].decode("latin-1"))


class InferenceEndpoint:
    """``POST /v2/models/MODEL[/versions/1]/infer``. ``max_body``: bytes."""

    def __init__(self, gateway: Gateway, max_body: int) -> None:
        self._gateway, self._max_body = gateway, max_body

    async def serve(self, model: str, version: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        try:
            body, headers = await self._infer(model, version, scope, receive)
            status = 200
        except ClientGone:
            return
        except (Unavailable, ModelError, UsageError, NotFound) as error:
            status, body, headers = error_answer(error)
        headers.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _infer(
        self, model: str, version: str, scope: Scope, receive: Receive
    ) -> tuple[bytes, list[tuple[bytes, bytes]]]:
        pool = find_pool(self._gateway, model, version)
        headers = read_headers(scope)
        if headers.content_length > self._max_body:
            raise RequestTooLarge(f"a body of {headers.content_length} bytes; {self._max_body} at most")
        body = await self._body(receive)
        if not pool.replicas and await self._gateway.scaling.wake(pool.name):
            await pool.first_replica(COLD_START_S)
        call = read_call(body, headers.json_length, pool.signature)
        pending = pool.admit(call.batch, len(body), headers.timeout_us or call.timeout_us, headers.best_effort)
        try:
            pool.start(pending, call.tensors())
            watch = asyncio.ensure_future(_watch(receive, pool, pending))
            try:
                outputs = await pending.answer
            finally:
                watch.cancel()
        finally:
            pool.end(pending)
        data, head = write_answer(call, pool.name, version, outputs)
        return (data, [_JSON]) if head is None else (data, [_BINARY, (LENGTH_HEADER.encode(), b"%d" % head)])

    async def _body(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                while True:
                    message = await receive()
                    part = _part(message)
                    size += len(part)
                    if size > self._max_body:
                        raise RequestTooLarge(f"a body of more than {self._max_body} bytes")
                    parts.append(part)
                    if not message.get("more_body"):
                        return b"".join(parts) if len(parts) > 1 else part
        except TimeoutError:
            raise RequestTooSlow(f"the body did not come within {BODY_WITHIN_S:.0f} s") from None


def _part(message: Message) -> bytes:
    if message["type"] == "http.disconnect":
        raise ClientGone
    found: bytes = message.get("body", b"")
    return found


async def _watch(receive: Receive, pool: ServicePool, pending: PendingRequest) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    pool.client_gone(pending)


def find_pool(gateway: Gateway, model: str, version: str) -> ServicePool:
    """Raises NotFound; Unavailable while it is not known whether there is such a service."""
    pool = gateway.pool(model)
    if pool is None and gateway.scaling.is_asked:
        raise Unavailable("the controller has not listed its services yet", "no_replica", 1)
    if pool is None or version != "1":
        raise NotFound(f"no model {model!r}{'' if pool is None else f' of version {version}'}")
    return pool


def error_answer(
    error: Unavailable | ModelError | UsageError | NotFound,
) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    """Status, body and headers of an answer of the protocol, ``{"error": ...}``."""
    if isinstance(error, Unavailable):
        body = msgspec.json.encode({"error": str(error), "code": error.code})
        return 503, body, [_JSON, (b"retry-after", b"%d" % max(1, error.retry_after_s))]
    text, status = str(error), 500
    if isinstance(error, NotFound):
        text, status = error.message, 404
    elif isinstance(error, UsageError):
        text = f"{error.message}; {error.remedy}" if error.remedy else error.message
        status = 413 if isinstance(error, RequestTooLarge) else 408 if isinstance(error, RequestTooSlow) else 400
    return status, msgspec.json.encode({"error": text}), [_JSON]
