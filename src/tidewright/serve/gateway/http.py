"""The gateway's HTTP interface: Open Inference Protocol, version 2, health, metrics, and what ``tide serve top`` shows."""

from __future__ import annotations

from typing import Any

import msgspec
from prometheus_client import generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ...base.errors import NotFound, UsageError
from ..protocol.metadata import model_metadata, server_metadata
from .gateway import Gateway
from .infer import InferenceEndpoint, error_answer, find_pool
from .pool import Unavailable

_MODELS, _INFER = "/v2/models/", "/infer"


class GatewayRoutes:
    """Handlers. ``max_body``: bytes."""

    def __init__(self, gateway: Gateway, version: str, max_body: int) -> None:
        self._gateway, self._version = gateway, version
        self._inference = InferenceEndpoint(gateway, max_body)

    def application(self) -> ASGIApp:
        """The ASGI application. Inference goes past the router of Starlette, whose work is most of what a refusal costs."""
        others = self._others()

        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            named = _inference_of(scope)
            if named is None:
                await others(scope, receive, send)
            else:
                await self._inference.serve(*named, scope, receive, send)

        return application

    def _others(self) -> Starlette:
        model = "/v2/models/{model}"
        routes = [
            Route("/v2/health/live", self.live), Route("/v2/health/ready", self.live), Route("/v2", self.server),
            Route("/metrics", self.metrics), Route("/v1/gateway", self.status),
        ]  # fmt: skip
        for path in (model, model + "/versions/{version}"):
            # That of inference is here for the answer to other methods, 405.
            routes += [Route(path, self._guard(self.model)), Route(path + "/ready", self._guard(self.ready)),
                       Route(path + "/infer", self.live, methods=["POST"])]  # fmt: skip
        return Starlette(routes=routes)

    def _guard(self, handler: Any) -> Any:
        async def guarded(request: Request) -> Response:
            try:
                return await handler(request)  # type: ignore[no-any-return]
            except (Unavailable, NotFound, UsageError) as error:
                status, body, headers = error_answer(error)
                return Response(body, status, headers={name.decode(): value.decode() for name, value in headers})

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
        version = request.path_params.get("version", "1")
        pool = find_pool(self._gateway, request.path_params["model"], version)
        return _json(model_metadata(pool.name, version, pool.signature))

    async def ready(self, request: Request) -> Response:
        pool = find_pool(self._gateway, request.path_params["model"], request.path_params.get("version", "1"))
        return Response(status_code=200 if pool.replicas else 503)


def _inference_of(scope: Scope) -> tuple[str, str] | None:
    """(model, version) of an inference request; None for all others."""
    path: str = scope.get("path", "")
    if not (path.startswith(_MODELS) and path.endswith(_INFER) and scope["method"] == "POST"):
        return None
    parts = path[len(_MODELS) : -len(_INFER)].split("/")
    if len(parts) == 1:
        return parts[0], "1"
    return (parts[0], parts[2]) if len(parts) == 3 and parts[1] == "versions" else None


def _json(value: Any) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
