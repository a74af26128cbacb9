"""Keeping this node's ResourceSlices in the API server as they should be: never doubled, one generation, growing.

Source: ``ResourcePool`` in ``resource.k8s.io/v1``: consumers use the slices of the highest generation, once there are as many
as they say themselves, so a pool that is just being written is not allocated from by halves. The Node owns them, so that the
garbage collector takes them when it is deleted: no kubelet and no driver is left to do it then.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from ...base.errors import UsageError
from ..client.api import NODES, ApiError, KubeClient
from ..objects.log import Log
from ..objects.metadata import Json
from .protocol import DRIVER, SLICES
from .slices import Body, owner_of, plain_spec, pool

TRIES = 5
"""So often a round is repeated after another client wrote at the same time."""
MULTIPLE_OFF = (
    "the API server dropped allowMultipleAllocations: the feature gate DRAConsumableCapacity is off",
    "switch it on in kube-apiserver, kube-scheduler, kube-controller-manager and the kubelets (1.34, 1.35), "
    "or upgrade to 1.36",
)
PARTS_OFF = (
    "the API server dropped shared counters: the feature gate DRAPartitionableDevices is off",
    "switch it on in kube-apiserver and kube-scheduler, or give --mig static",
)


def of_node(node: str) -> str:
    """The path of our slices of a node."""
    return f"{SLICES}?fieldSelector=spec.nodeName%3D{quote(node, safe='')}%2Cspec.driver%3D{DRIVER}"


def ours(item: Json, node: str) -> bool:
    """Whether a slice is our driver's for this node."""
    spec = item.get("spec") or {}
    return spec.get("driver") == DRIVER and spec.get("nodeName") == node


@dataclass(slots=True)
class SlicePublisher:
    """``generation``: of the last round. ``taints``: whether the API server keeps those of devices, as far as is known."""

    api: KubeClient
    node: str
    log: Log
    generation: int = 0
    taints: bool = True
    _logged: dict[str, tuple[Json, Json]] = field(default_factory=dict)
    """By name what was last sent, and what the API server made of it; see ``_plain``."""
    _unowned: bool = False

    async def sync(self, build: Callable[[bool], Sequence[Body]]) -> bool:
        """Make the slices what ``build`` gives (its argument: with taints); whether anything had to be written.

        Raises ApiError and NoAnswer, when it is to be called again, and UsageError where a feature is switched off.
        """
        owner = await self._owner()
        for left in reversed(range(TRIES)):
            try:
                return await self._round(build(self.taints), owner)
            except ApiError as error:
                if error.status not in (404, 409) or not left:
                    raise
        return False

    async def _owner(self) -> Json | None:
        """The Node, read anew each time: one that was deleted and came back is another, and what the first one owned goes.
        None without the right. Raises ApiError: slices of a node that is not there would never be removed."""
        try:
            return owner_of(await self.api.get(f"{NODES}/{quote(self.node, safe='')}"))
        except ApiError as error:
            if error.status != 403:
                raise
            if not self._unowned:
                self._unowned = True
                self.log(f"slices of {self.node} stay when the node is deleted, for the Node cannot be read: {error}")
            return None

    async def _round(self, wanted: Sequence[Body], owner: Json | None) -> bool:
        there = {
            str(item["metadata"]["name"]): item
            for item in await self.api.items(of_node(self.node))
            if ours(item, self.node)
        }
        last = max((_generation(item) for item in there.values()), default=0)
        self.generation = max(self.generation, last)
        if self._same(there, pool(self.node, wanted, last, owner)):
            return False
        self.generation += 1
        objects = pool(self.node, wanted, self.generation, owner)
        self._logged = {}
        for name, asked in objects.items():
            await self._write(asked, there.get(name))
        for name in sorted(there.keys() - objects.keys()):
            await self._delete(name)
        return True

    def _same(self, there: Mapping[str, Json], objects: Mapping[str, Json]) -> bool:
        """Also where the API server normalises what it was sent: else it would be written without end."""
        if there.keys() != objects.keys():
            return False
        for name, item in there.items():
            asked, found = _plain(objects[name]), _plain(item)
            # Without an owner to name, one that is there stays.
            asked["owners"] = asked["owners"] or found["owners"]
            if asked != found and self._logged.get(name) != (asked, found):
                return False
        return True

    async def _write(self, asked: dict[str, Any], old: Json | None) -> None:
        name = asked["metadata"]["name"]
        if old is None:
            answer = await self.api.post(SLICES, asked)
        else:
            kept = {key: old["metadata"][key] for key in ("ownerReferences",) if key in old["metadata"]}
            meta = {**kept, **asked["metadata"], "resourceVersion": old["metadata"].get("resourceVersion")}
            answer = await self.api.put(f"{SLICES}/{quote(name, safe='')}", {**asked, "metadata": meta})
        self._logged[name] = (_plain(asked), _plain(answer))
        await self._judge(asked["spec"], plain_spec(answer))

    async def _judge(self, asked: Json, found: Json) -> None:
        """What was dropped belongs to a feature that is switched off. Slices that would promise something else go."""
        why = None
        if asked.get("sharedCounters") and not found.get("sharedCounters"):
            why = PARTS_OFF
        elif _any(asked, "allowMultipleAllocations") and not _any(found, "allowMultipleAllocations"):
            why = MULTIPLE_OFF
        elif _any(asked, "consumesCounters") and not _any(found, "consumesCounters"):
            why = PARTS_OFF
        if why is not None:
            for item in await self.api.items(of_node(self.node)):
                if ours(item, self.node):
                    await self._delete(str(item["metadata"]["name"]))
            raise UsageError(*why)
        if _any(asked, "taints") and not _any(found, "taints"):
            self.taints = False
            self.log("the API server drops device taints (DRADeviceTaints is off): sick GPUs leave the slices instead")
            raise ApiError(409, "Conflict", "device taints were dropped")

    async def _delete(self, name: str) -> None:
        try:
            await self.api.delete(f"{SLICES}/{quote(name, safe='')}")
        except ApiError as error:
            if error.status != 404:
                raise


def _plain(item: Json) -> dict[str, Any]:
    """What must be as it was asked for."""
    owners = [one.get("uid") for one in (item.get("metadata") or {}).get("ownerReferences") or ()]
    return {"spec": plain_spec(item), "owners": owners}


def _generation(item: Json) -> int:
    found = ((item.get("spec") or {}).get("pool") or {}).get("generation", 0)
    return found if isinstance(found, int) else 0


def _any(spec: Json, name: str) -> bool:
    return any(device.get(name) for device in spec.get("devices") or ())
