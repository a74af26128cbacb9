"""What the device plugin reads from and writes to the API server: pods here, the node, unhealthy GPUs, events."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from ...base.errors import TideError
from ..client.api import CONFIG_MAPS, NODES, STRATEGIC, ApiError, KubeClient
from ..client.pods import pod_path
from ..objects import names
from ..objects.gpu_inventory import unhealthy_of
from ..objects.log import Log
from ..objects.metadata import Json, annotations_of
from ..objects.pod_request import GpuAssignment, PodRequest

SOURCE = "tidewright-device-plugin"
EVENT_AGAIN_S = 300.0
"""The same words about the same pod at most this often: the kubelet tries a container again every few seconds."""
KEEP_S = 600.0
"""What has not changed is written again after so long: thousands of nodes would write it with every heartbeat."""
FAILING_S = 300.0
"""A write that failed and was not tried again for so long counts as given up. Tries are 30 s apart at most."""
LONGEST_NAME = 230
"""An event's name has 253 characters, and the time comes after the pod's."""


class NodeApi:
    """Writes. ``log``: called with what could not be written, once while it lasts. ``source``: the component of events."""

    def __init__(self, api: KubeClient, node: str, log: Log, source: str = SOURCE) -> None:
        self.api, self.node, self.log, self.source = api, node, log, source
        self._node_path = f"{NODES}/{quote(node, safe='')}"
        self._failing: dict[str, tuple[str, float]] = {}
        self._published: dict[tuple[str, str], float] = {}
        self._kept: dict[str, tuple[object, float]] = {}

    async def read_node(self) -> dict[str, Any]:
        """Raises ApiError, NoAnswer."""
        return await self.api.get(self._node_path)

    async def node_notes(self, notes: Mapping[str, str | None]) -> bool:
        """Annotations of the node, None to take one off; whether it went well."""
        return await self._try("the node's annotations", self._patch_node(notes))

    async def count(self, gpus: int) -> bool:
        """``aliyun.com/gpu-count`` in the node's status, as gpushare's plugin writes it. The kubelet owns the rest."""
        return await self._keep(f"{names.COUNT} of the node", gpus, lambda: self._patch_count(gpus))

    async def unhealthy(self, gpus: Iterable[int]) -> bool:
        """The ConfigMap of this node. What an administrator wrote there stays."""
        ill = frozenset(gpus)
        return await self._keep("the list of unhealthy GPUs", ill, lambda: self._put_unhealthy(ill))

    async def assigned(self, held: GpuAssignment, level: str) -> bool:
        """Mark the pod as served; ``level``: how it is isolated, empty when it is not."""
        marks = {names.ASSIGNED: "true", names.ASSUME_TIME: str(time.time_ns()), names.LEVEL: level or "none"}
        body = {"metadata": {"uid": held.uid, "annotations": marks}}
        asked = self.api.patch(pod_path(held.namespace, held.name), body, STRATEGIC)
        return await self._try(f"the mark of pod {held.namespace}/{held.name}", asked)

    async def pod_notes(self, ask: PodRequest, notes: Mapping[str, str | None]) -> bool:
        """Annotations of a pod, None to take one off; whether it went well."""
        body = {"metadata": {"uid": ask.uid, "annotations": dict(notes)}}
        asked = self.api.patch(pod_path(ask.namespace, ask.name), body, STRATEGIC)
        return await self._try(f"the GPUs of pod {ask.namespace}/{ask.name}", asked)

    async def event(self, pod: Json, reason: str, text: str) -> None:
        """A warning that ``kubectl describe pod`` shows."""
        about = {key: (pod.get("metadata") or {}).get(key) for key in ("name", "namespace", "uid")}
        await self._event({"kind": "Pod", **about}, "Warning", reason, text)

    async def node_event(self, reason: str, text: str) -> None:
        """What ``kubectl describe node`` shows. The uid of a node's events is its name, as the kubelet has it."""
        await self._event({"kind": "Node", "name": self.node, "uid": self.node}, "Normal", reason, text)

    async def evict(self, pod: Json) -> bool:
        """Through the eviction API, so that a PodDisruptionBudget may refuse; whether it went well."""
        meta = pod.get("metadata") or {}
        name, namespace = str(meta.get("name", "")), str(meta.get("namespace", "default"))
        body = {
            "apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": {"preconditions": {"uid": meta.get("uid")}},
        }  # fmt: skip
        asked = self.api.post(f"{pod_path(namespace, name)}/eviction", body)
        return await self._try(f"the eviction of pod {namespace}/{name}", asked)

    async def _event(self, about: dict[str, Any], kind: str, reason: str, text: str) -> None:
        key, clock = (str(about.get("uid", "")), text), time.monotonic()
        if clock - self._published.get(key, -EVENT_AGAIN_S) < EVENT_AGAIN_S:
            return
        self._published = {old: at for old, at in self._published.items() if clock - at < EVENT_AGAIN_S} | {key: clock}
        namespace = str(about.get("namespace") or "default")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        name = str(about.get("name", ""))[:LONGEST_NAME].rstrip("-.")
        body = {
            "apiVersion": "v1", "kind": "Event", "type": kind, "reason": reason, "message": text[:1000], "count": 1,
            "metadata": {"name": f"{name}.{time.time_ns():x}", "namespace": namespace},
            "involvedObject": {"apiVersion": "v1", **about},
            "source": {"component": self.source, "host": self.node}, "firstTimestamp": now, "lastTimestamp": now,
        }  # fmt: skip
        await self._try("an event", self.api.post(f"/api/v1/namespaces/{namespace}/events", body))

    async def _patch_node(self, notes: Mapping[str, str | None]) -> None:
        """Through its status, as the kubelet writes its own: metadata goes that way too, and no right to the rest of a node,
        such as its taints, is needed. gpushare's device plugin has this one."""
        await self.api.patch(f"{self._node_path}/status", {"metadata": {"annotations": dict(notes)}}, STRATEGIC)

    async def _patch_count(self, gpus: int) -> None:
        amounts = {names.COUNT: str(gpus)}
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        await self.api.patch(f"{self._node_path}/status", body, STRATEGIC)

    async def _put_unhealthy(self, gpus: frozenset[int]) -> None:
        name = names.UNHEALTHY_PREFIX + self.node
        path = f"{CONFIG_MAPS}/{quote(name, safe='')}"
        try:
            found = await self.api.get(path)
        except ApiError as error:
            if error.status != 404:
                raise
            if gpus:
                meta = {
                    "name": name,
                    "namespace": names.UNHEALTHY_NAMESPACE,
                    "annotations": {names.OURS: _listed(gpus)},
                }
                data = {names.UNHEALTHY_KEY: _listed(gpus)}
                await self.api.post(
                    CONFIG_MAPS, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
                )
            return
        listed = unhealthy_of(found)
        before = unhealthy_of({"data": {names.UNHEALTHY_KEY: annotations_of(found).get(names.OURS, "")}})
        # What is ours is only what an administrator had not listed already, or clearing would take his entry away.
        theirs = listed - before
        wanted, ours = theirs | gpus, gpus - theirs
        meta = {"resourceVersion": found["metadata"].get("resourceVersion"), "annotations": {names.OURS: _listed(ours)}}
        if wanted != listed or ours != before:
            await self.api.patch(path, {"metadata": meta, "data": {names.UNHEALTHY_KEY: _listed(wanted)}})

    async def _keep(self, what: str, value: object, write: Callable[[], Awaitable[None]]) -> bool:
        """Write it when it has changed, and every ``KEEP_S`` anyhow: what another client removed is restored."""
        before, at_s = self._kept.get(what, (None, float("-inf")))
        if before == value and time.monotonic() - at_s < KEEP_S:
            return True
        # Without an answer the present value is not known.
        self._kept.pop(what, None)
        done = await self._try(what, write())
        if done:
            self._kept[what] = (value, time.monotonic())
        return done

    async def _try(self, what: str, asked: Awaitable[object]) -> bool:
        try:
            await asked
        except TideError as error:
            known, clock = self._failing.get(what), time.monotonic()
            # What is not tried any more, as its pod is gone, is dropped.
            self._failing = {old: one for old, one in self._failing.items() if clock - one[1] < FAILING_S}
            self._failing[what] = str(error), clock
            if known is None or known[0] != str(error):
                self.log(f"{what} cannot be written: {error}")
            return False
        self._failing.pop(what, None)
        return True


def _listed(gpus: Iterable[int]) -> str:
    return ",".join(str(gpu) for gpu in sorted(gpus))
