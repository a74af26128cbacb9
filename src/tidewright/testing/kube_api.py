"""A Kubernetes API server small enough to start in every test: what the kube room asks of one, with its refusals.

Source: Kubernetes API concepts (resourceVersion, watch, bookmarks, 410, patch types), ``BindingREST`` and the traffic
recorded from a v1.36 server. Misbehaves on request: see ``Mischief``.
"""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
import socket
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ..kube.objects.schema import decode_json
from . import kube_dra
from .kube_review import reviewed
from .kube_store import ApiRefused, Object, Store, check_notes, event, merged

KINDS = {
    "pods": "Pod", "nodes": "Node", "configmaps": "ConfigMap", "leases": "Lease", "events": "Event",
    "services": "Service", "endpointslices": "EndpointSlice", "deployments": "Deployment",
    "serviceaccounts": "ServiceAccount", "resourceclaimtemplates": "ResourceClaimTemplate", **kube_dra.KINDS,
}  # fmt: skip
PATCHES = ("application/merge-patch+json", "application/strategic-merge-patch+json")
BOOKMARK_S = 0.5
MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


@dataclass(slots=True)
class Mischief:
    """``decide(method, path)`` for each write: "" (well), "before" (503, nothing done), "after" (done, then no answer)."""

    decide: Callable[[str, str], str] = lambda method, path: ""
    down: bool = False
    """Every request is answered 503 and every watch cut."""
    forbidden: tuple[str, ...] = ()
    """Parts of paths that are answered 403, as without the right."""


class FakeApi:
    """``url`` once served. Tests may change ``store`` through ``create``, ``change`` and ``remove``."""

    def __init__(self) -> None:
        self.store, self.mischief = Store(), Mischief()
        self.url = ""
        self.requests: list[tuple[str, str, Any]] = []
        self.asked: set[tuple[str, str, bool]] = set()
        """(method, path, whether it is a watch) of everything that was ever asked."""
        self.refused: set[tuple[str, ...]] = set()
        """(verb, resource) that an access review denies, or (verb, resource, user)."""
        self.gates_off: set[str] = set()
        """Feature gates of kube_dra.GATES that are switched off."""
        self.release, self.groups = "v1.36.2", {"resource.k8s.io": ["v1"], "apps": ["v1"]}
        self._cut = 0

    async def create(self, kind: str, item: Object) -> Object:
        """As ``kubectl create``."""
        meta = item.setdefault("metadata", {})
        if not meta.get("name"):
            raise ApiRefused(422, "Invalid", "metadata.name: Required value")
        if (kind, meta.get("namespace", ""), meta["name"]) in self.store.objects:
            raise ApiRefused(409, "AlreadyExists", f'{kind} "{meta["name"]}" already exists')
        check_notes(meta)
        self._check(kind, item, None)
        meta.setdefault("uid", str(uuid.uuid4()))
        if kind == "pods":
            item["status"] = {"phase": "Pending", **(item.get("status") or {})}
        made = self.store.put(kind, copy.deepcopy(item), "ADDED")
        await self._wake()
        return made

    async def change(self, kind: str, namespace: str, name: str, patch: Object, *, status: bool = False) -> Object:
        """As a merge patch; nulls delete. ``status``: through the subresource."""
        old = self.store.found(kind, namespace, name)
        wanted = patch.get("metadata") or {}
        if wanted.get("uid") not in (None, old["metadata"]["uid"]):
            # Not a conflict: the API server applies the patch, and then a field has changed that must not.
            raise ApiRefused(422, "Invalid", f'metadata.uid: Invalid value: "{wanted["uid"]}": field is immutable')
        if wanted.get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            raise ApiRefused(409, "Conflict", MODIFIED)
        new = merged(old, patch)
        new["metadata"] = {**new["metadata"], "resourceVersion": old["metadata"]["resourceVersion"]}
        if kind == "pods" and (new.get("spec") or {}).get("nodeName") != (old.get("spec") or {}).get("nodeName"):
            raise ApiRefused(422, "Invalid", "spec: Forbidden: pod updates may not change fields other than a few")
        if not status and kind in ("pods", "nodes"):
            new["status"] = old.get("status")
        check_notes(new["metadata"])
        if new == old:
            return old
        made = self.store.put(kind, new, "MODIFIED")
        await self._wake()
        return made

    async def remove(self, kind: str, namespace: str, name: str) -> None:
        """Gone at once, as with a grace period of 0."""
        self.store.put(kind, copy.deepcopy(self.store.found(kind, namespace, name)), "DELETED")
        await self._wake()

    async def bind(self, namespace: str, name: str, binding: Object) -> None:
        """BindingREST: uid and resourceVersion are preconditions, a bound pod stays where it is, annotations are copied. What it
        refuses is a Conflict, whatever it is."""
        pod = self.store.found("pods", namespace, name)
        meta = binding.get("metadata") or {}
        if meta.get("uid") not in (None, "", pod["metadata"]["uid"]):
            raise ApiRefused(409, "Conflict", f"Precondition failed: UID in precondition: {meta['uid']}")
        if meta.get("resourceVersion") not in (None, "", pod["metadata"]["resourceVersion"]):
            raise ApiRefused(409, "Conflict", MODIFIED)
        if meta.get("name") != name:
            raise ApiRefused(400, "BadRequest", "name in URL does not match name in Binding object")
        check_notes(meta)
        node = (binding.get("target") or {}).get("name")
        if not node:
            raise ApiRefused(422, "Invalid", "target.name: Required value")
        if (pod.get("spec") or {}).get("nodeName"):
            raise ApiRefused(409, "Conflict", f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"')
        if (pod["metadata"]).get("deletionTimestamp"):
            raise ApiRefused(409, "Conflict", f"pod {name} is being deleted, cannot be assigned to a host")
        if pod["spec"].get("schedulingGates"):
            raise ApiRefused(409, "Conflict", f"pod {name} has non-empty .spec.schedulingGates")
        notes = {**(pod["metadata"].get("annotations") or {}), **(meta.get("annotations") or {})}
        self.store.put(
            "pods", merged(pod, {"metadata": {"annotations": notes}, "spec": {"nodeName": node}}), "MODIFIED"
        )
        await self._wake()

    async def cut_watches(self) -> None:
        """End every open watch in the middle."""
        self._cut += 1
        await self._wake()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[FakeApi]:
        """On a free port of the loopback."""
        with socket.socket(proto=socket.IPPROTO_TCP) as listening:
            listening.bind(("127.0.0.1", 0))
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            settings = uvicorn.Config(self._app(), log_level="error", lifespan="off", timeout_graceful_shutdown=1)
            server = _Server(settings)
            task = asyncio.create_task(server.serve(sockets=[listening]))
            while not server.started:
                await asyncio.sleep(0.01)
            try:
                yield self
            finally:
                server.should_exit = True
                await self.cut_watches()
                await task

    def _app(self) -> Starlette:
        core, named = "/api/v1", "/apis/{group}/v1/namespaces/{ns}"
        plain = ["GET", "POST", "PUT", "PATCH", "DELETE"]
        routes = [
            Route("/version", self._version),
            Route("/apis", self._groups),
            Route("/apis/authorization.k8s.io/v1/{kind}", self._review, methods=["POST"]),
            Route(core + "/namespaces/{ns}/pods/{name}/{sub}", self._serve, methods=plain),
            Route(core + "/nodes/{name}/{sub}", self._serve, methods=plain),
            Route(core + "/namespaces/{ns}/{kind}/{name}", self._serve, methods=plain),
            Route(core + "/namespaces/{ns}/{kind}", self._serve, methods=plain),
            Route(named + "/{kind}/{name}", self._serve, methods=plain),
            Route(named + "/{kind}", self._serve, methods=plain),
            Route("/apis/{group}/v1/{kind}/{name}", self._serve, methods=plain),
            Route("/apis/{group}/v1/{kind}", self._serve, methods=plain),
            Route(core + "/nodes/{name}", self._serve, methods=plain),
            Route(core + "/{kind}", self._serve, methods=plain),
        ]
        return Starlette(routes=routes)

    async def _version(self, request: Request) -> Response:
        return _json({"gitVersion": self.release})

    async def _groups(self, request: Request) -> Response:
        groups = [{"name": name, "versions": [{"version": one} for one in each]} for name, each in self.groups.items()]
        return _json({"kind": "APIGroupList", "groups": groups})

    async def _review(self, request: Request) -> Response:
        if any(part in request.url.path for part in self.mischief.forbidden):
            return _json(ApiRefused(403, "Forbidden", "access reviews are forbidden").status(), 403)
        return _json(reviewed(await _body(request), self.refused), 201)

    async def _serve(self, request: Request) -> Response:
        path = request.url.path
        self.asked.add((request.method, path, bool(request.query_params.get("watch"))))
        write = request.method != "GET"
        try:
            if self.mischief.down:
                raise ApiRefused(503, "ServiceUnavailable", "apiserver is shutting down")
            if any(part in path for part in self.mischief.forbidden):
                raise ApiRefused(403, "Forbidden", f"{path} is forbidden")
            todo = self.mischief.decide(request.method, path) if write else ""
            if todo == "before":
                raise ApiRefused(503, "ServiceUnavailable", "the server is currently unable to handle the request")
            answer = await self._answer(request)
            return _Nothing() if todo == "after" else answer
        except ApiRefused as error:
            return _json(error.status(), error.code)

    async def _answer(self, request: Request) -> Response:
        part, method = request.path_params, request.method
        kind = part.get("kind") or ("nodes" if "/nodes/" in request.url.path else "pods")
        namespace, name, sub = part.get("ns", ""), part.get("name", ""), part.get("sub", "")
        if kind not in KINDS:
            raise ApiRefused(404, "NotFound", "the server could not find the requested resource")
        if method == "GET":
            if request.query_params.get("watch"):
                return StreamingResponse(self._watch(kind, request), media_type="application/json")
            return _json(self.store.found(kind, namespace, name) if name else self._list(kind, namespace, request))
        body = await _body(request)
        self.requests.append((method, request.url.path, body))
        if sub == "binding" and method == "POST":
            await self.bind(namespace, name, body)
            return _json({"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}, 201)
        if (sub == "eviction" and method == "POST") or method == "DELETE":
            await self.remove(kind, namespace, name)
            return _json({"kind": "Status", "apiVersion": "v1", "status": "Success"})
        if method == "POST":
            body.setdefault("metadata", {}).setdefault("namespace", namespace)
            return _json(await self.create(kind, body), 201)
        if method == "PATCH":
            if request.headers.get("content-type") not in PATCHES:
                raise ApiRefused(415, "UnsupportedMediaType", "the body of the request was in an unknown format")
            return _json(await self.change(kind, namespace, name, body, status=sub == "status"))
        return _json(await self._replace(kind, namespace, name, body))

    async def _replace(self, kind: str, namespace: str, name: str, body: Object) -> Object:
        old = self.store.found(kind, namespace, name)
        if body["metadata"].get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
            raise ApiRefused(409, "Conflict", MODIFIED)
        body["metadata"]["uid"] = old["metadata"]["uid"]
        self._check(kind, body, old)
        made = self.store.put(kind, body, "MODIFIED")
        await self._wake()
        return made

    def _check(self, kind: str, item: Object, old: Object | None) -> None:
        if kind == "resourceslices" and (wrong := kube_dra.admit(item, old, self.gates_off)):
            raise ApiRefused(422, "Invalid", "; ".join(wrong))

    def _list(self, kind: str, namespace: str, request: Request) -> Object:
        """In pages, by name; a page asked for after a compaction is answered 410. Field selectors count for events alone: other
        kinds are watched, and a watch here sends all of its kind."""
        version, *after = json.loads(request.query_params.get("continue") or json.dumps([str(self.store.version)]))
        if after and int(version) < self.store.compacted:
            raise ApiRefused(410, "Expired", "The provided continue parameter is too old")
        limit = int(request.query_params.get("limit") or 0) or len(self.store.objects)
        selector = request.query_params.get("fieldSelector", "") if kind == "events" else ""
        chosen = (
            key
            for key in self.store.keys(kind, namespace, tuple(after))
            if _selected(self.store.objects[key], selector)
        )
        keys = list(itertools.islice(chosen, limit + 1))
        meta = {"resourceVersion": version}
        if len(keys) > limit:
            meta["continue"] = json.dumps([version, *keys[limit - 1]])
        return {"kind": f"{KINDS[kind]}List", "apiVersion": "v1", "metadata": meta,
                "items": [self.store.objects[key] for key in keys[:limit]]}  # fmt: skip

    async def _watch(self, kind: str, request: Request) -> AsyncIterator[bytes]:
        at, cut = int(request.query_params.get("resourceVersion") or 0), self._cut
        read = at
        ends = asyncio.get_running_loop().time() + int(request.query_params.get("timeoutSeconds") or 1800)
        while not self.mischief.down and asyncio.get_running_loop().time() < ends:
            if at < self.store.compacted:
                gone = ApiRefused(410, "Expired", f"too old resource version: {at} ({self.store.compacted})")
                yield event("ERROR", gone.status())
                return
            seen = self.store.woken
            news, read = self._since(kind, read), self.store.version
            for version, line in news:
                yield line
                at = version
            if self._cut != cut:
                yield b'{"type":"MODI'
                return
            try:
                async with asyncio.timeout(BOOKMARK_S), self.store.changed:
                    await self.store.changed.wait_for(lambda seen=seen: self.store.woken != seen)  # type: ignore[misc]
            except TimeoutError:
                if self._since(kind, read):
                    continue
                at = max(at, self.store.version)
                yield event("BOOKMARK", {"kind": KINDS[kind], "metadata": {"resourceVersion": str(at)}})

    def _since(self, kind: str, version: int) -> list[tuple[int, bytes]]:
        """Events after ``version``; the log is read from its end, so many watchers of a long one cost little."""
        news = itertools.takewhile(lambda event: event[0] > version, reversed(self.store.log))
        return [(at, line) for at, found, line in news if found == kind][::-1]

    async def _wake(self) -> None:
        self.store.woken += 1
        async with self.store.changed:
            self.store.changed.notify_all()


class _Server(uvicorn.Server):
    """Ends soon after it is asked to: tests start hundreds, and uvicorn looks every 0.1 s."""

    async def main_loop(self) -> None:
        await self.on_tick(0)
        while not self.should_exit:
            await asyncio.sleep(0.01)


class _Nothing(Response):
    """The connection is closed without an answer."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]})
        await send({"type": "http.response.body", "body": b"{", "more_body": True})


async def _body(request: Request) -> Object:
    try:
        found = decode_json(await request.body() or b"{}")
    except ValueError:
        raise ApiRefused(400, "BadRequest", "the object provided is unrecognized") from None
    if not isinstance(found, dict):
        raise ApiRefused(400, "BadRequest", "the object provided is unrecognized")
    return found


def _json(found: Any, status: int = 200) -> Response:
    return Response(msgspec.json.encode(found), status, media_type="application/json")


def _selected(item: Object, selector: str) -> bool:
    """By ``a.b=value,…``."""
    for path, _, value in (one.partition("=") for one in selector.split(",") if one):
        found: Any = item
        for key in path.split("."):
            found = (found or {}).get(key)
        if str(found or "") != value:
            return False
    return True
