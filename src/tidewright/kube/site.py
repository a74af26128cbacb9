"""The cluster as the extender knows it: reflectors feeding the pool. Built anew each time this replica comes to lead."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..base.errors import TideError, UsageError
from . import names, stamps
from .api import CONFIG_MAPS, NODES, PODS, Api, ApiError
from .ask import ENDED, Holding, asks_memory, bound_to, cpu_of, holding_of, phase, title
from .beat import Beats, boot_of
from .cards import table_of, unhealthy_of
from .reflector import Reflector
from .shapes import ConfigMap, Node, Pod, shaped
from .verbs import RESERVED_S, Desk

Note = Callable[[str], None]
UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, UsageError, ValueError)
"""What reading an object may raise. Anybody may write one, and one must not keep us from reading all others."""
KEPT_NOTES = {
    names.IDX, names.DEV, names.POD, names.ASSIGNED, names.ASSUME_TIME, names.ALLOCATION, names.NODE, names.POLICY, names.TABLE,
    names.COUNT, names.PLUGIN,
}  # fmt: skip
READ = frozenset({names.MEM, names.COUNT, "cpu"})
"""Resources of pods and nodes that matter here."""
LISTEN_S = 5.0
"""How often silent device plugins are looked for."""


class Site:
    """Keeps ``desk``'s pool as the API server has it. ``note``: told what could not be understood, once per change."""

    def __init__(self, api: Api, desk: Desk, note: Note, clock: Callable[[], float] = time.monotonic) -> None:
        self.api, self.desk, self.note, self.clock = api, desk, note, clock
        self.pods = Reflector(api, PODS, self._pod, trim_pod)
        self.nodes = Reflector(api, NODES, self._node, trim_node)
        self.maps = Reflector(api, CONFIG_MAPS, self._map, trim_map)
        self.beats = Beats()
        self.binding: set[str] = set()
        """Uids of pods that are being bound right now: nobody else may undo what is reserved for them."""
        self._unhealthy: dict[str, frozenset[int]] = {}
        self._node_by_name: dict[str, dict[str, Any]] = {}

    def reflectors(self) -> tuple[Reflector, ...]:
        """All that must be in step."""
        return self.nodes, self.maps, self.pods

    def stale_s(self) -> float:
        """Of the oldest knowledge, in seconds."""
        return max(one.stale_s() for one in self.reflectors())

    async def run(self) -> None:
        """For ever; end it by cancelling."""
        async with asyncio.TaskGroup() as group:
            for one in self.reflectors():
                group.create_task(one.run())
            group.create_task(self._listen())

    async def _listen(self) -> None:
        """Silence makes no event, so it is looked for; while we are deaf ourselves it says nothing."""
        while True:
            await asyncio.sleep(LISTEN_S)
            if self.nodes.stale_s():
                self.beats.excuse(self.clock())
            for name in self.beats.silent(self.clock()):
                self._set_node(name)

    async def synced(self) -> None:
        """Until everything was listed once."""
        for one in self.reflectors():
            await one.synced.wait()

    def pod(self, uid: str) -> dict[str, Any] | None:
        """As last seen, trimmed."""
        return self.pods.objects.get(uid)

    def _pod(self, what: str, item: dict[str, Any]) -> None:
        uid, pool = str(item["metadata"].get("uid", "")), self.desk.chooser.pool
        if what == "gone":
            self.desk.forget(uid)
            pool.release(uid)
            pool.unload(uid)
            return
        try:
            held = holding_of(shaped(item, Pod))
        except UNREADABLE as error:
            self.note(f"pod {title(item)}: {_why(error)}")
            return
        known = pool.held.get(uid)
        if held is None and phase(item) in ENDED:
            pool.release(uid)
        elif known is None or not known.bound or bound_to(item):
            # Else it is older than what we were told when we asked.
            self.settle(uid, self._as_bound(known, held, item))
        self._load(uid, item)

    def _as_bound(self, known: Holding | None, held: Holding | None, item: dict[str, Any]) -> Holding | None:
        """What a pod holds that says ``held``. Where containers find their GPU late, a pod keeps the GPUs it was first seen
        bound to: only where they are matched are annotations ever corrected, and anybody may edit them."""
        if known is None or not known.bound or known.node != bound_to(item) or not self.beats.late(known.node):
            return held
        return known if held is None else replace(held, units=known.units)

    def _load(self, uid: str, item: dict[str, Any]) -> None:
        """The CPU of a pod counts as soon as it has a node, as for the scheduler, and until it has ended. None is counted
        where it cannot be read: it only helps to choose well."""
        pool = self.desk.chooser.pool
        if phase(item) in ENDED:
            pool.unload(uid)
        elif node := bound_to(item):
            with suppress(*UNREADABLE):
                pool.load(uid, node, cpu_of(item))

    def settle(self, uid: str, held: Holding | None) -> None:
        """What the API server says a pod holds. An unbound pod's annotations are a promise that runs out; what we are
        about to write there ourselves stays reserved though the pod does not show it yet, or shows something else."""
        pool = self.desk.chooser.pool
        if held is not None and held.bound:
            pool.hold(held)
            return
        known = pool.reserved.get(uid)
        if known is not None and known.decided:
            return
        if held is None:
            pool.release(uid)
        elif known is None or (known.holding.node, known.holding.units) != (held.node, held.units):
            pool.promise(held, self.clock() + RESERVED_S)

    def settle_read(self, uid: str, held: Holding | None) -> None:
        """``settle`` for what was read apart from the watch, which may have shown the pod's end before, or may never show the
        pod at all: until it shows it bound, the GPU stays reserved and the API server is asked again."""
        seen, pool = self.pod(uid), self.desk.chooser.pool
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
            self.beats.forget(name)
            self.desk.chooser.pool.drop_node(name)
            return
        self._node_by_name[name] = item
        self.beats.see(name, item, self.clock())
        self._set_node(name)

    def _set_node(self, name: str) -> None:
        try:
            node = shaped(self._node_by_name[name], Node)
            table = table_of(node, self._unhealthy.get(name, frozenset()))
            table = self.beats.heeded(table, node, self.clock())
        except UNREADABLE as error:
            self.note(f"node {name}: {_why(error)}")
            return
        if table.cards or name in self.desk.chooser.pool.tables:
            self.desk.chooser.pool.set_node(table)

    def _map(self, what: str, item: dict[str, Any]) -> None:
        node = str(item["metadata"]["name"]).removeprefix(names.UNHEALTHY_PREFIX)
        try:
            found = unhealthy_of(shaped(item, ConfigMap)) if what == "put" else frozenset[int]()
        except UNREADABLE as error:
            self.note(f"ConfigMap {names.UNHEALTHY_PREFIX}{node}: {_why(error)}")
            return
        self._unhealthy[node] = found
        if node in self._node_by_name:
            self._set_node(node)


def _why(error: Exception) -> str:
    return error.message if isinstance(error, UsageError) else repr(error)


async def resolve(site: Site, overdue: Iterable[Holding]) -> None:
    """Ask what became of pods whose reservation ran out: bound after all, gone, or never bound, then their marks go."""
    for held in overdue:
        if held.uid in site.binding:
            continue
        path = pod_path(held.namespace, held.name)
        try:
            found = await current_pod(site.api, path, held.uid)
            if found is not None and not bound_to(found):
                await strip(site.api, path, found)
                found = None
            now = None if found is None else holding_of(shaped(found, Pod))
        except UsageError as error:
            site.note(f"pod {held.namespace}/{held.name}: {error.message}; its GPU stays reserved")
            site.desk.chooser.pool.postpone(held.uid, site.clock() + RESERVED_S)
            continue
        except TideError as error:
            site.note(f"pod {held.namespace}/{held.name}: {error}; its GPU stays reserved")
            continue
        if now is not None:
            site.settle_read(held.uid, now)
        elif site.desk.chooser.pool.held.get(held.uid) is held and held.uid not in site.binding:
            # Else it was decided anew while we asked.
            site.desk.chooser.pool.release(held.uid)


async def current_pod(api: Api, path: str, uid: str) -> dict[str, Any] | None:
    """The pod as it is now; None when it is gone, or another has its name. Raises ApiError, NoAnswer."""
    try:
        found = await api.get(path)
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return found if (found.get("metadata") or {}).get("uid") == uid else None


async def strip(api: Api, path: str, pod: dict[str, Any]) -> dict[str, Any]:
    """Take our marks off a pod that was not bound; only if nobody changed it meanwhile. It has another resourceVersion then,
    even where it had no marks, so a binding that is on its way fails. Returns the pod. Raises ApiError, NoAnswer."""
    meta = pod["metadata"]
    notes: dict[str, str | None] = dict.fromkeys(
        (names.IDX, names.DEV, names.POD, names.ASSIGNED, names.ASSUME_TIME, names.ALLOCATION, names.NODE)
    )
    notes[names.UNDONE] = stamps.now()
    body = {"uid": meta.get("uid"), "resourceVersion": meta.get("resourceVersion"), "annotations": notes}
    return await api.patch(path, {"metadata": body})


def pod_path(namespace: str, name: str) -> str:
    """Of a pod in the API."""
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def trim_pod(pod: dict[str, Any]) -> dict[str, Any] | None:
    """What is read of a pod: a tenth of what the API server sends. None for a pod without GPU memory
    that takes no node's CPU."""
    if not asks_memory(pod) and (not bound_to(pod) or phase(pod) in ENDED):
        return None
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: spec[key] for key in ("nodeName", "priority") if key in spec}
    for kind in ("initContainers", "containers"):
        if spec.get(kind):
            kept[kind] = [_trim_container(one) for one in spec[kind]]
    return {"metadata": _trim_meta(pod), "spec": kept, "status": {"phase": status.get("phase")}}


def trim_node(node: dict[str, Any]) -> dict[str, Any]:
    """What is read of a node."""
    status = node.get("status") or {}
    amounts = {
        kind: {name: value for name, value in (status.get(kind) or {}).items() if name in READ}
        for kind in ("capacity", "allocatable")
    }
    info = {"bootID": boot_of(node)}
    kept = {**amounts, "addresses": status.get("addresses") or [], "nodeInfo": info}
    return {"metadata": _trim_meta(node), "status": kept}


def trim_map(config_map: dict[str, Any]) -> dict[str, Any] | None:
    """Only the ones that list unhealthy GPUs."""
    meta = config_map.get("metadata") or {}
    ours = meta.get("namespace") == names.UNHEALTHY_NAMESPACE and str(meta.get("name", "")).startswith(
        names.UNHEALTHY_PREFIX
    )
    return config_map if ours else None


def _trim_meta(item: dict[str, Any]) -> dict[str, Any]:
    meta = item.get("metadata") or {}
    kept = {
        key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp") if key in meta
    }
    for kind in ("annotations", "labels"):
        kept[kind] = {key: value for key, value in (meta.get(kind) or {}).items() if key in KEPT_NOTES}
    return kept


def _trim_container(container: dict[str, Any]) -> dict[str, Any]:
    asked = container.get("resources") or {}
    kept: dict[str, Any] = {key: container[key] for key in ("name", "restartPolicy") if key in container}
    kept["resources"] = {
        kind: {key: value for key, value in (asked.get(kind) or {}).items() if key in READ}
        for kind in ("limits", "requests")
    }
    return kept
