"""ResourceSlices: what this node's GPUs are to the scheduler. Pure.

A GPU that is shared is one device that may be allocated many times, by memory and multiprocessors. A MIG instance is a plain
device. A GPU whose instances are made on demand is a set of counters, and each place where one may lie a device that takes
its part of them: two that overlap take the same ``memory-slice-N``, of which there is one.

Source: ``resource.k8s.io/v1``: DRAConsumableCapacity (KEP-5075), DRAPartitionableDevices (KEP-4815), device taints (KEP-5055).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..isolation.ladder import ALL_SMS
from ..node.gpus import Gpu
from ..node.partitions import MigPlacement, needs, totals
from ..objects.metadata import Json
from ..objects.quantity import of_mib
from .protocol import DRIVER, GROUP, MEMORY, SM_PERCENT

STEP_MIB = 256
DEVICES, SETS = 64, 8
"""Of one slice. 128 devices would fit where none is tainted or takes counters, but a GPU that falls sick must not move others
to another slice."""
UNHEALTHY = "tidewright.io/unhealthy"
TAINT = {"key": UNHEALTHY, "effect": "NoSchedule"}
LONGEST_TEXT, LONGEST_NAME, LONGEST_STEM = 64, 253, 200
Body = dict[str, Any]
"""The part of a slice's spec that says what there is: ``devices`` or ``sharedCounters``."""


def device_name(gpu: Gpu) -> str:
    """The same over restarts. Instances are named by their uuid: their index changes when others come and go."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.uuid.lower()).strip("-")[:63] if gpu.whole else f"gpu-{gpu.index}"


def bodies(
    gpus: Sequence[Gpu], parents: Sequence[Gpu], placements: tuple[MigPlacement, ...], faults: Iterable[int],
    taints: bool = True,
) -> list[Body]:  # fmt: skip
    """What the slices of a node say. ``parents``: the GPUs of ``placements``. ``faults``: indices of GPUs that must not be
    used: those have a taint, or without ``taints`` are left out."""
    sick, home = frozenset(faults), {gpu.index: gpu for gpu in parents}
    counted = [
        {"name": f"gpu-{at}", "counters": {name: {"value": str(value)} for name, value in sorted(have.items())}}
        for at, have in sorted(totals(placements).items())
    ]
    plain = [_marked(_gpu(gpu), gpu.index in sick) for gpu in gpus if taints or gpu.index not in sick]
    parts = [_marked(_part(one, home[one.gpu]), one.gpu in sick) for one in placements if taints or one.gpu not in sick]
    found: list[Body] = [{"sharedCounters": some} for some in _cut(counted, SETS)]
    for devices in (plain, parts):
        found += [{"devices": some} for some in _cut(devices, DEVICES)]
    return found


def owner_of(node: Json) -> Json:
    """How a Node, as the API server has it, owns its slices: they go when it goes."""
    return {"apiVersion": "v1", "kind": "Node", "name": node["metadata"]["name"], "uid": node["metadata"]["uid"]}


def pool(node: str, wanted: Sequence[Body], generation: int, owner: Json | None = None) -> dict[str, dict[str, Any]]:
    """The slices of a node's pool by name, all of one generation. ``owner``: see ``owner_of``; None where it is not known."""
    about = {"name": node, "generation": generation, "resourceSliceCount": len(wanted)}
    owned, found = {} if owner is None else {"ownerReferences": [dict(owner)]}, {}
    for at, body in enumerate(wanted):
        name = _name(node, "counters" if "sharedCounters" in body else "devices", at)
        spec = {"driver": DRIVER, "nodeName": node, "pool": about, **body}
        found[name] = {
            "apiVersion": GROUP.removeprefix("/apis/"), "kind": "ResourceSlice", "metadata": {"name": name, **owned},
            "spec": spec,
        }  # fmt: skip
    return found


def plain_spec(found: Json) -> dict[str, Any]:
    """A slice's spec without what the API server adds by itself: when a taint was set."""
    spec = dict(found.get("spec") or {})
    if devices := spec.get("devices"):
        spec["devices"] = [_untimed(device) for device in devices]
    return spec


def _untimed(device: Json) -> Json:
    if not device.get("taints"):
        return device
    taints = [{key: value for key, value in one.items() if key != "timeAdded"} for one in device["taints"]]
    return {**device, "taints": taints}


def _gpu(gpu: Gpu) -> dict[str, Any]:
    about = {"uuid": _text(gpu.uuid), "productName": _text(gpu.model), "index": {"int": gpu.index}}
    kind = {"type": _text("mig" if gpu.whole else "gpu")}
    found: dict[str, Any] = {"name": device_name(gpu), "attributes": {**about, **kind}}
    if gpu.whole:
        return {**found, "capacity": {MEMORY: {"value": of_mib(gpu.memory_mib)}}}
    most = max(STEP_MIB, gpu.memory_mib // STEP_MIB * STEP_MIB)
    return {
        **found, "allowMultipleAllocations": True,
        "capacity": {
            MEMORY: _shared(of_mib(gpu.memory_mib), of_mib(most), of_mib(STEP_MIB), of_mib(most)),
            # Who does not say has no part of it kept for him and no limit, or no two that ask for memory alone could share.
            SM_PERCENT: _shared(str(ALL_SMS), str(ALL_SMS), "1", "0"),
        },
    }  # fmt: skip


def _shared(value: str, most: str, step: str, usual: str) -> dict[str, Any]:
    """A capacity that is taken in steps; ``usual`` where a claim does not say how much."""
    least = step if usual != "0" else "0"
    return {
        "value": value,
        "requestPolicy": {"default": usual, "validRange": {"min": least, "step": step, "max": most}},
    }


def _part(one: MigPlacement, parent: Gpu) -> dict[str, Any]:
    return {
        "name": one.name,
        "attributes": {
            "parentUUID": _text(parent.uuid), "productName": _text(parent.model), "index": {"int": parent.index},
            "type": _text("mig"), "profile": _text(one.profile),
        },
        "capacity": {MEMORY: {"value": of_mib(one.mib)}},
        "consumesCounters": [
            {
                "counterSet": f"gpu-{one.gpu}",
                "counters": {name: {"value": str(value)} for name, value in sorted(needs(one).items())},
            }
        ],
    }  # fmt: skip


def _marked(device: dict[str, Any], sick: bool) -> dict[str, Any]:
    return {**device, "taints": [dict(TAINT)]} if sick else device


def _text(value: str) -> Mapping[str, str]:
    return {"string": value[:LONGEST_TEXT]}


def _cut(items: Sequence[dict[str, Any]], size: int) -> list[list[dict[str, Any]]]:
    return [list(items[at : at + size]) for at in range(0, len(items), size)]


def _name(node: str, what: str, at: int) -> str:
    """Of a slice; a node's name may be as long as a slice's."""
    name = f"{node}-{DRIVER}-{what}-{at}"
    if len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.sha256(node.encode()).hexdigest()[:12]
    return f"{node[:LONGEST_STEM].rstrip('-.')}-{digest}-{DRIVER}-{what}-{at}"
