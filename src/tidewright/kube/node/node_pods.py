"""The pods that are bound to one node, kept up to date by a watch."""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import quote

from ...base.errors import TideError, WorldError
from ..allocation.slot_records import SlotRecords
from ..client.api import PODS, KubeClient
from ..client.reflector import Reflector
from ..objects import names
from ..objects.metadata import ENDED, Json, annotations_of, bound_to, phase, uid_of, version_of
from ..objects.trimming import trim_pod

LOOKS, LOOK_S = 4, 0.5
"""A pod is looked for so often, so far apart: the kubelet may have heard of it before us."""
KEPT_ANNOTATIONS = (names.SM_PERCENT, names.COOPERATES)


class NodePods:
    """Pods bound to one node, kept up to date while ``reflector`` runs: those that ask for GPU memory, and of the others that
    they are there."""

    def __init__(self, api: KubeClient, node: str) -> None:
        self.api, self.node = api, node
        self.path = f"{PODS}?fieldSelector=spec.nodeName%3D{quote(node, safe='')}"
        self.order: dict[str, int] = {}
        """By uid: the version at which a pod was first seen here. The kubelet hears of pods in this order."""
        self.slots = SlotRecords()
        self.reflector = Reflector(api, self.path, self._on_event, self._trim)

    def _on_event(self, what: str, item: Json) -> None:
        if what == "gone":
            self.order.pop(uid_of(dict(item)), None)
            self.slots.forget(uid_of(dict(item)))
        else:
            self.order.setdefault(uid_of(dict(item)), version_of(item))
            self.slots.see(item)

    def known(self) -> tuple[Json, ...]:
        """Those that ask for GPU memory, as last seen."""
        return tuple(pod for pod in self.reflector.objects.values() if "spec" in pod)

    def ended(self) -> frozenset[str]:
        """Uids of pods whose containers are all gone."""
        return frozenset(uid for uid, pod in self.reflector.objects.items() if phase(pod) in ENDED)

    def alive(self) -> frozenset[str]:
        """Uids of all that have containers, or will."""
        return frozenset(self.reflector.objects) - self.ended()

    async def listed(self) -> tuple[Json, ...]:
        """As the API server has them now. Raises ApiError, NoAnswer."""
        found = [self._trim(pod) for pod in await self.api.items(self.path)]
        return tuple(pod for pod in found if pod is not None and "spec" in pod)

    async def by_uid(self, uid: str) -> Json:
        """Raises WorldError when there is none after a few looks."""
        why = "the API server has no such pod on this node"
        for left in reversed(range(LOOKS)):
            known = self.reflector.objects.get(uid)
            if known is not None and names.ASSUME_TIME in annotations_of(known):
                return known
            try:
                found = next((pod for pod in await self.listed() if uid_of(dict(pod)) == uid), known)
            except TideError as error:
                found, why = known, str(error)
            if found is not None:
                return found
            if left:
                await asyncio.sleep(LOOK_S)
        raise WorldError(f"the pod with uid {uid} is not known: {why}")

    def _trim(self, pod: dict[str, Any]) -> dict[str, Any] | None:
        """What the extender reads, and how the pod wants to be isolated."""
        if bound_to(pod) != self.node:
            return None
        kept = trim_pod(pod)
        if kept is None:
            meta = {key: value for key, value in pod["metadata"].items() if key in ("name", "uid", "resourceVersion")}
            return {"metadata": meta, "status": {"phase": phase(pod)}}
        kept["metadata"]["annotations"] |= {
            key: text for key, text in annotations_of(pod).items() if key in KEPT_ANNOTATIONS
        }
        for kind in ("initContainers", "containers"):
            for full, short in zip(pod["spec"].get(kind) or (), kept["spec"].get(kind) or (), strict=True):
                short["env"] = [{"name": one.get("name")} for one in full.get("env") or ()]
        return kept
