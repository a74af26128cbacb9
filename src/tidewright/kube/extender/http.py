"""The scheduler extender's HTTP face: gpushare's paths, and health, readiness and metrics beside them.

Sources: gpushare-scheduler-extender's routes; kube-scheduler's HTTP extender, which ignores the body of an answer that is
not 200, so refusals travel in ``Error`` of a 200. (gpushare answers a failed bind with 500: the scheduler does the same
with it, but the pod's event then lacks the reason.)
"""

from __future__ import annotations

import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

import msgspec

from ...base.errors import UsageError
from ..objects.schema import decode_json
from .binder import Binder
from .cluster_cache import ClusterCache
from .metrics import ExtenderMetrics
from .shares import shares

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""Source: ASGI 3.0, HTTP connection scope."""
Verb = Callable[[Any], Awaitable[tuple[int, Any]]]
"""(arguments) -> (HTTP status, answer)."""
PREFIX = "/gpushare-scheduler"
VERSION = "0.1.0"
"""What gpushare answers; its tools compare nothing else."""
LONGEST_BODY = 256 << 20
"""Bytes; five thousand full Node objects are about 100 MB."""


class ExtenderApp:
    """Answers from ``site`` once there is one. Cheap and synchronous, but for bind.

    Filter and prioritize need no lead, only knowledge: while the API server is away they answer from what was known.
    """

    def __init__(self, measures: ExtenderMetrics, token: str = "") -> None:
        self.measures = measures
        self.cluster_cache: ClusterCache | None = None
        self.binder: Binder | None = None
        self._token = token.encode()

    def begin(self, cluster_cache: ClusterCache, binder: Binder) -> None:
        """``site`` has read the whole cluster."""
        self.cluster_cache, self.binder = cluster_cache, binder

    def end(self) -> None:
        """Another replica leads."""
        self.cluster_cache = self.binder = None

    def app(self) -> App:
        """The ASGI application. kube-scheduler waits for one verb after the other before it looks at the next pod, so verbs are
        answered without a framework in between."""
        verbs = {"filter": self._filter, "prioritize": self._prioritize, "preempt": self._preempt, "bind": self._bind}
        by_path = {f"{PREFIX}/{name}": (name, verb) for name, verb in verbs.items()}
        rest = self._rest()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and scope["path"] in by_path:
                status, found = await self._timed(*by_path[scope["path"]], scope, receive)
                text = _encoded(found)
                head = [(b"content-type", b"application/json"), (b"content-length", str(len(text)).encode())]
                if status == 405:
                    head.append((b"allow", b"POST"))
                await send({"type": "http.response.start", "status": status, "headers": head})
                await send({"type": "http.response.body", "body": text})
            else:
                await rest(scope, receive, send)

        return app

    def _rest(self) -> Starlette:
        from starlette.applications import Starlette
        from starlette.routing import Route

        routes = [Route(f"{PREFIX}/inspect", self._inspect), Route(f"{PREFIX}/inspect/{{node}}", self._inspect)]
        routes += [Route("/version", self._version), Route("/healthz", self._health), Route("/readyz", self._readiness)]
        return Starlette(routes=[*routes, Route("/metrics", self._metrics)])

    async def _timed(self, name: str, verb: Verb, scope: Scope, receive: Receive) -> tuple[int, Any]:
        began = time.perf_counter()
        status, found = await self._guarded(verb, scope, receive)
        self.measures.answered(name, status, time.perf_counter() - began)
        return status, found

    async def _guarded(self, verb: Verb, scope: Scope, receive: Receive) -> tuple[int, Any]:
        """405, 401, 413 and 400 with a reason; else what ``verb`` says."""
        if scope["method"] != "POST":
            return 405, {"Error": "ask with POST"}
        if not self._allowed(next((value for key, value in scope["headers"] if key == b"authorization"), b"")):
            return 401, {"Error": "the bearer token is missing or wrong"}
        body, more = bytearray(), True
        while more:
            part = await receive()
            if part["type"] == "http.disconnect":
                return 400, {"Error": "the body ended early"}
            body += part.get("body", b"")
            more = part.get("more_body", False)
            if len(body) > LONGEST_BODY:
                return 413, {"Error": f"a body of more than {LONGEST_BODY} bytes"}
        try:
            return await verb(_args(bytes(body)))
        except UsageError as error:
            return 400, {"Error": f"{error.message}: {error.remedy}" if error.remedy else error.message}

    async def _filter(self, args: Any) -> tuple[int, Any]:
        if self.cluster_cache is None:
            return 200, {
                "Nodes": None,
                "NodeNames": None,
                "FailedNodes": {},
                "FailedAndUnresolvableNodes": {},
                "Error": NOT_NOW,
            }
        return 200, self.cluster_cache.handler.filter(args, self.cluster_cache.clock(), self.cluster_cache.stale_s())

    async def _prioritize(self, args: Any) -> tuple[int, Any]:
        return 200, self.cluster_cache.handler.prioritize(
            args, self.cluster_cache.clock()
        ) if self.cluster_cache else []

    async def _preempt(self, args: Any) -> tuple[int, Any]:
        return 200, self.cluster_cache.handler.preempt(args) if self.cluster_cache else {"NodeNameToMetaVictims": {}}

    async def _bind(self, args: Any) -> tuple[int, Any]:
        return 200, {"Error": await self.binder.bind(args) if self.binder else NOT_NOW}

    async def _inspect(self, request: Request) -> Response:
        if not self._allowed(request.headers.get("authorization", "").encode()):
            return _json({"error": "the bearer token is missing or wrong"}, 401)
        if self.cluster_cache is None:
            return _json({"nodes": [], "error": NOT_NOW}, 503)
        node = request.path_params.get("node", "")
        found = shares(self.cluster_cache.handler.chooser.pool, node)
        if node and not found["nodes"]:
            return _json({"nodes": [], "error": f"node {node} shares no GPU"}, 404)
        return _json(found)

    async def _version(self, request: Request) -> Response:
        return _text(VERSION)

    async def _health(self, request: Request) -> Response:
        return _text("ok")

    async def _readiness(self, request: Request) -> Response:
        return _text("ok") if self.cluster_cache else _text(NOT_NOW, 503)

    async def _metrics(self, request: Request) -> Response:
        self.measures.look(self.cluster_cache, self.binder is not None and self.binder.may_act())
        return _text(self.measures.text())

    def _allowed(self, authorization: bytes) -> bool:
        """Compared in constant time; without a token every client is served (gpushare's way, on a node port)."""
        return not self._token or hmac.compare_digest(authorization.removeprefix(b"Bearer "), self._token)


NOT_NOW = "this replica stands by: it does not lead, or has not read the cluster yet"


def _args(body: bytes) -> Any:
    try:
        return decode_json(body)
    except ValueError as error:
        raise UsageError(f"the body is no JSON: {error}") from error


def _json(found: Any, status: int = 200) -> Response:
    from starlette.responses import Response

    return Response(_encoded(found), status, media_type="application/json")


def _encoded(found: Any) -> bytes:
    try:
        return msgspec.json.encode(found)
    except UnicodeEncodeError:
        # JSON within an annotation may name half a character, and a node's reason is passed on unchanged; Go reads the escape.
        return json.dumps(found).encode()


def _text(found: str, status: int = 200) -> Response:
    from starlette.responses import PlainTextResponse

    return PlainTextResponse(found, status)
