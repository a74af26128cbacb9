"""The cluster as the extender knows it: reflectors feeding the pool. Built anew each time this replica comes to lead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...base.errors import TideError, UsageError
from ..client import timestamps
from ..client.api import CONFIG_MAPS, NODES, PODS, KubeClient
from ..client.pods import current_pod, pod_path
from ..client.reflector import Reflector
from ..objects import names
from ..objects.gpu_inventory import read_gpu_inventory, unhealthy_of
from ..objects.heartbeat import HeartbeatMonitor
from ..objects.log import Log
from ..objects.metadata import ENDED, bound_to, phase, title
from ..objects.pod_request import GpuAssignment, cpu_of, read_gpu_assignment
from ..objects.schema import ConfigMap, Node, Pod, validated
from ..objects.trimming import trim_map, trim_node, trim_pod
from .handler import RESERVED_S, ExtenderHandler

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UsageError, ValueError)
"""What reading an object may raise. Anybody may write one, and one must not keep us from reading all others."""
LISTEN_S = 5.0
"""How often silent device plugins are looked for."""


class ClusterCache:
    """Keeps ``handler``'s pool as the API server has it. ``log``: called with what could not be read, once per change."""

    def __init__(
        self, api: KubeClient, handler: ExtenderHandler, log: Log, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.api, self.handler, self.log, self.clock = api, handler, log, clock
        self.pods = Reflector(api, PODS, self._pod, trim_pod)
        self.nodes = Reflector(api, NODES, self._node, trim_node)
        self.maps = Reflector(api, CONFIG_MAPS, self._map, trim_map)
        self.heartbeats = HeartbeatMonitor()
        self.binding: set[str] = set()
        """Uids of pods that are being bound right now: no other task may undo what is reserved for them."""
        self._unhealthy: dict[str, frozenset[int]] = {}
        self._node_by_name: dict[str, dict[str, Any]] = {}

    def reflectors(self) -> tuple[Reflector, ...]:
        """All that must be in step."""
        return self.nodes, self.maps, self.pods

    def stale_s(self) -> float:
        """Of the oldest knowledge, in seconds."""
        return max(one.stale_s() for one in self.reflectors())

    async def run(self) -> None:
        """Runs until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for one in self.reflectors():
                group.create_task(one.run())
            group.create_task(self._listen())

    async def _listen(self) -> None:
        """Silence makes no event, so it is looked for; while we are deaf ourselves it says nothing."""
        while True:
            await asyncio.sleep(LISTEN_S)
            if self.nodes.stale_s():
                self.heartbeats.excuse(self.clock())
            for name in self.heartbeats.silent(self.clock()):
                self._set_node(name)

    async def synced(self) -> None:
        """Until everything was listed once."""
        for one in self.reflectors():
            await one.synced.wait()

    def pod(self, uid: str) -> dict[str, Any] | None:
        """As last seen, trimmed."""
        return self.pods.objects.get(uid)

    def _pod(self, what: str, item: dict[str, Any]) -> None:
        uid, pool = str(item["metadata"].get("uid", "")), self.handler.chooser.pool
        if what == "gone":
            self.handler.forget(uid)
            pool.release(uid)
            pool.unload(uid)
            return
        try:
            held = read_gpu_assignment(validated(item, Pod))
        except UNREADABLE as error:
            self.log(f"pod {title(item)}: {_why(error)}")
            return
        known = pool.held.get(uid)
        if held is None and phase(item) in ENDED:
            pool.release(uid)
        elif known is None or not known.bound or bound_to(item):
            # Else it is older than the answer to our own request.
            self.settle(uid, self._as_bound(known, held, item))
        self._load(uid, item)

    def _as_bound(
        self, known: GpuAssignment | None, held: GpuAssignment | None, item: dict[str, Any]
    ) -> GpuAssignment | None:
        """What a pod holds that says ``held``. Where containers find their GPU late, a pod keeps the GPUs it was first seen
        bound to: only where they are matched are annotations ever corrected, and anybody may edit them."""
        if known is None or not known.bound or known.node != bound_to(item) or not self.heartbeats.late(known.node):
            return held
        return known if held is None else replace(held, units=known.units)

    def _load(self, uid: str, item: dict[str, Any]) -> None:
        """The CPU of a pod counts as soon as it has a node, as for the scheduler, and until it has ended. None is counted
        where it cannot be read: it only helps to choose well."""
        pool = self.handler.chooser.pool
        if phase(item) in ENDED:
            pool.unload(uid)
        elif node := bound_to(item):
            with suppress(*UNREADABLE):
                pool.load(uid, node, cpu_of(item))

    def settle(self, uid: str, held: GpuAssignment | None) -> None:
        """What the API server says a pod holds. An unbound pod's annotations are a reservation that expires; what we are
        about to write there ourselves stays reserved though the pod does not show it yet, or shows something else."""
        pool = self.handler.chooser.pool
        if held is not None and held.bound:
            pool.hold(held)
            return
        known = pool.reserved.get(uid)
        if known is not None and known.decided:
            return
        if held is None:
            pool.release(uid)
        elif known is None or (known.assignment.node, known.assignment.units) != (held.node, held.units):
            pool.reserve_unbound(held, self.clock() + RESERVED_S)

    def settle_read(self, uid: str, held: GpuAssignment | None) -> None:
        """``settle`` for what was read apart from the watch, which may have shown the pod's end before, or may never show the
        pod at all: until it shows it bound, the GPU stays reserved and the API server is asked again."""
        seen, pool = self.pod(uid), self.handler.chooser.pool
        if seen is not None and phase(seen) in ENDED:
            pool.release(uid)
        elif held is not None and held.bound and not (seen and bound_to(seen)):
            pool.reserve(held, self.clock() + RESERVED_S)
        else:
            self.settle(uid, held)

    def _node(self, what: str, item: dict[str, Any]) -> None:
        name = str(item["metadata"].get("name", ""))
        if what == "gone":
            self._node_by_name.pop(name, None)
            self.heartbeats.forget(name)
            self.handler.chooser.pool.drop_node(name)
            return
        self._node_by_name[name] = item
        self.heartbeats.see(name, item, self.clock())
        self._set_node(name)

    def _set_node(self, name: str) -> None:
        try:
            node = validated(self._node_by_name[name], Node)
            inventory = read_gpu_inventory(node, self._unhealthy.get(name, frozenset()))
            inventory = self.heartbeats.with_readiness(inventory, node, self.clock())
        except UNREADABLE as error:
            self.log(f"node {name}: {_why(error)}")
            return
        if inventory.cards or name in self.handler.chooser.pool.inventories:
            self.handler.chooser.pool.set_node(inventory)

    def _map(self, what: str, item: dict[str, Any]) -> None:
        node = str(item["metadata"]["name"]).removeprefix(names.UNHEALTHY_PREFIX)
        try:
            found = unhealthy_of(validated(item, ConfigMap)) if what == "put" else frozenset[int]()
        except UNREADABLE as error:
            self.log(f"ConfigMap {names.UNHEALTHY_PREFIX}{node}: {_why(error)}")
            return
        self._unhealthy[node] = found
        if node in self._node_by_name:
            self._set_node(node)


def _why(error: Exception) -> str:
    return error.message if isinstance(error, UsageError) else repr(error)


async def resolve(cluster_cache: ClusterCache, overdue: Iterable[GpuAssignment]) -> None:
    """Ask what became of pods whose reservation ran out: bound after all, gone, or never bound, then their marks go."""
    for held in overdue:
        if held.uid in cluster_cache.binding:
            continue
        path = pod_path(held.namespace, held.name)
        try:
            found = await current_pod(cluster_cache.api, path, held.uid)
            if found is not None and not bound_to(found):
                await strip(cluster_cache.api, path, found)
                found = None
            now = None if found is None else read_gpu_assignment(validated(found, Pod))
        except UsageError as error:
            cluster_cache.log(f"pod {held.namespace}/{held.name}: {error.message}; its GPU stays reserved")
            cluster_cache.handler.chooser.pool.postpone(held.uid, cluster_cache.clock() + RESERVED_S)
            continue
        except TideError as error:
            cluster_cache.log(f"pod {held.namespace}/{held.name}: {error}; its GPU stays reserved")
            continue
        if now is not None:
            cluster_cache.settle_read(held.uid, now)
        elif cluster_cache.handler.chooser.pool.held.get(held.uid) is held and held.uid not in cluster_cache.binding:
            # Else it was decided anew while we asked.
            cluster_cache.handler.chooser.pool.release(held.uid)


async def strip(api: KubeClient, path: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Remove our annotations from a pod that was not bound, if it is unchanged. It has another resourceVersion then,
    even where it had no marks, so a binding that is on its way fails. Returns the pod. Raises ApiError, NoAnswer."""
    meta = pod["metadata"]
    notes: dict[str, str | None] = dict.fromkeys(
        (names.IDX, names.DEV, names.POD, names.ASSIGNED, names.ASSUME_TIME, names.ALLOCATION, names.NODE)
    )
    notes[names.UNDONE] = timestamps.now()
    body = {"uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion"), "annotations": notes}
    return await api.patch(path, {"metadata": body})
