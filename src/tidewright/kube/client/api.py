"""Plain HTTP to a Kubernetes API server: eight endpoints, JSON dicts, no generated client.

Source: Kubernetes API concepts (watch, resourceVersion, patch types). The official client's informer retries without a
pause when the server is gone, and a generated model of all of Kubernetes is 126 MB; see docs/why/kube.md.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ...base.errors import UsageError, WorldError
from ..objects.names import UNHEALTHY_NAMESPACE
from ..objects.schema import decode_json
from .credentials import ApiCredentials, Cluster

if TYPE_CHECKING:
    import aiohttp

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
CONFIG_MAPS = f"/api/v1/namespaces/{UNHEALTHY_NAMESPACE}/configmaps"
TIMEOUT_S = 10.0
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
LONGEST_LINE = 16 << 20
"""Bytes of one watch event; objects in etcd are at most 1.5 MiB, and JSON may be a few times longer."""


class ApiError(WorldError):
    """The API server said no. ``status``: HTTP; ``reason``: the machine's word, such as ``Conflict`` or ``Expired``."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"the API server answered {status} {reason}: {message}")
        self.status = status
        self.reason = reason


class NoAnswer(WorldError):
    """The API server could not be reached or did not answer in time: whether it acted is unknown."""


class KubeClient:
    """One cluster. Use as an async context; requests may run at the same time."""

    def __init__(self, cluster: Cluster, timeout_s: float = TIMEOUT_S) -> None:
        self.cluster = cluster
        self.timeout_s = timeout_s
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        try:
            import aiohttp
        except ImportError as error:
            raise UsageError("talking to Kubernetes needs aiohttp", "pip install 'tidewright[kube]'") from error
        await self.cluster.proof()  # what is wrong with it is said at the start, with a remedy
        connector = aiohttp.TCPConnector(limit=64)
        self._session = aiohttp.ClientSession(connector=connector, read_bufsize=LONGEST_LINE)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def get(self, path: str, **query: str) -> dict[str, Any]:
        """One object, or a list of them."""
        return await self._ask("GET", path, query=query)

    async def pages(self, path: str, size: int = 500) -> AsyncIterator[dict[str, Any]]:
        """All objects of a kind, a list of at most ``size`` at a time; the last tells the version to watch from."""
        query = {"limit": str(size)}
        while True:
            page = await self.get(path, **query)
            yield page
            if not (more := (page.get("metadata") or {}).get("continue")):
                return
            query["continue"] = str(more)

    async def items(self, path: str) -> list[dict[str, Any]]:
        """All objects of a kind."""
        return [item async for page in self.pages(path) for item in page.get("items") or ()]

    async def post(self, path: str, body: Mapping[str, Any], within_s: float = 0.0) -> dict[str, Any]:
        """Create. ``within_s``: given up then, by the server as well, which counts from when it hears of it; 0: as usual."""
        query = {"timeout": f"{within_s:.3f}s"} if within_s else None
        return await self._ask("POST", path, body, query=query, within_s=within_s)

    async def put(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Replace; with ``metadata.resourceVersion`` only what was read."""
        return await self._ask("PUT", path, body)

    async def patch(self, path: str, body: Mapping[str, Any], kind: str = MERGE) -> dict[str, Any]:
        """Change; ``metadata.uid`` and ``resourceVersion`` in the body are preconditions."""
        return await self._ask("PATCH", path, body, kind)

    async def delete(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Delete; ``body``: DeleteOptions."""
        return await self._ask("DELETE", path, body)

    async def watch(
        self, path: str, version: str, for_s: int, opened: Callable[[], None] = lambda: None
    ) -> AsyncIterator[dict[str, Any]]:
        """Events after ``version`` until the server ends the stream; ``opened`` is called once it has begun. Raises
        ApiError (410 too), NoAnswer."""
        query = {"watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true", "timeoutSeconds": str(for_s)}
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self.timeout_s, sock_read=for_s + self.timeout_s)
        try:
            async with self._answer("GET", path, params=query, timeout=timeout) as answer:
                if answer.status != 200:
                    raise _error(answer.status, await answer.read())
                opened()
                async for line in answer.content:
                    event = _event(line)
                    if event["type"] == "ERROR":
                        raise _refusal(500, event.get("object"))
                    yield event
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise NoAnswer(f"the watch of {path} broke off: {_why(error)}") from error

    @property
    def _open(self) -> aiohttp.ClientSession:
        assert self._session is not None, "use Api as an async context"
        return self._session

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, kind: str = "", **more: Any
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Asked once more with another proof when this one is refused; nothing was done then."""
        proof = await self._proof(None)
        for other in (True, False):
            # A context per request: connections of an earlier client certificate are not used again.
            async with self._open.request(
                method, self.cluster.server + path, headers=_headers(proof, kind), ssl=proof.tls or True, **more
            ) as answer:
                if answer.status == 401 and other and (found := await self._proof(proof)) is not proof:
                    proof = found
                    continue
                yield answer
                return

    async def _proof(self, refused: ApiCredentials | None) -> ApiCredentials:
        """``refused`` again where there is no other. Raises NoAnswer: without a proof nothing is asked."""
        try:
            if refused is None:
                return await self.cluster.proof()
            return await self.cluster.other(refused) or refused
        except UsageError as error:
            raise NoAnswer(f"the API server is not asked: {error}") from error

    async def _ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        kind: str = "application/json",
        query: Mapping[str, str] | None = None,
        within_s: float = 0.0,
    ) -> dict[str, Any]:
        import aiohttp

        data, kind = (None, "") if body is None else (msgspec.json.encode(body), kind)
        timeout = aiohttp.ClientTimeout(total=within_s or self.timeout_s)
        try:
            # The limit holds for finding a proof as well, for which a program may have to be run.
            async with (
                asyncio.timeout(within_s or None),
                self._answer(method, path, kind, data=data, params=query, timeout=timeout) as answer,
            ):
                text = await answer.read()
                if answer.status >= 300:
                    raise _error(answer.status, text)
                found = decode_json(text) if text else {}
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise NoAnswer(f"no answer to {method} {path}: {_why(error)}") from error
        except ValueError as error:
            raise NoAnswer(f"the answer to {method} {path} is no JSON: {error}") from error
        if not isinstance(found, dict):
            raise NoAnswer(f"the answer to {method} {path} is no JSON object")
        return found


def _why(error: Exception) -> str:
    """In TLS 1.3 a client's certificate is refused after the handshake, by an alert where the answer should be."""
    text = str(error) or type(error).__name__
    refused = re.search(r"ALERT_\w*(CERTIFICATE|UNKNOWN_CA)", text)
    return f"the server wants another client certificate, check the kubeconfig ({text})" if refused else text


def _headers(proof: ApiCredentials, kind: str) -> dict[str, str]:
    """``kind``: of the body; empty: there is none."""
    found = {"User-Agent": "tidewright", "Accept": "application/json"}
    if kind:
        found["Content-Type"] = kind
    if proof.token:
        found["Authorization"] = f"Bearer {proof.token}"
    return found


def _event(line: bytes) -> dict[str, Any]:
    found = decode_json(line)
    if not isinstance(found, dict) or "type" not in found:
        raise ValueError("a line is no watch event")
    return found


def _error(status: int, text: bytes) -> ApiError:
    """From a v1 Status, or whatever a proxy put there."""
    try:
        return _refusal(status, decode_json(text))
    except ValueError:
        return ApiError(status, "", text[:200].decode("utf-8", "replace"))


def _refusal(status: int, found: Any) -> ApiError:
    """``found``: a v1 Status, perhaps."""
    if not isinstance(found, dict):
        return ApiError(status, "", str(found)[:200])
    code = found.get("code")
    return ApiError(
        code if isinstance(code, int) else status, str(found.get("reason", "")), str(found.get("message", ""))
    )
