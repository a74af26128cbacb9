"""What the API server makes of ResourceSlices: what it refuses, and what it drops where a feature is switched off.

Source: kubernetes pkg/apis/resource/validation and pkg/registry/resource/resourceslice (1.36), and objects recorded from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from ..kube.objects.quantity import mib_of

Object = dict[str, Any]
KINDS = {"resourceslices": "ResourceSlice", "resourceclaims": "ResourceClaim", "deviceclasses": "DeviceClass"}
GATES = {
    "DRAConsumableCapacity": ("allowMultipleAllocations",),
    "DRAPartitionableDevices": ("consumesCounters", "sharedCounters"),
    "DRADeviceTaints": ("taints",),
}
DEVICES, SPECIAL, SETS, COUNTERS = 128, 64, 8, 32
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_C_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
STAMP = "2026-11-21T00:31:28Z"


def admit(item: Object, old: Object | None, off: set[str]) -> list[str]:
    """What is wrong with a slice; fills in and drops from ``item`` what the server does. ``off``: feature gates."""
    spec = item.get("spec") or {}
    dropped = [name for gate in sorted(off) for name in GATES[gate]]
    for name in dropped:
        spec.pop(name, None)
    for device in spec.get("devices") or ():
        for name in dropped:
            device.pop(name, None)
        if "allowMultipleAllocations" in dropped:
            for capacity in (device.get("capacity") or {}).values():
                capacity.pop("requestPolicy", None)
        for taint in device.get("taints") or ():
            taint.setdefault("timeAdded", STAMP)
    return [*_slice(item, spec), *(_kept(spec, old["spec"]) if old else ())]


def _kept(spec: Object, old: Object) -> Iterator[str]:
    for name in ("driver", "nodeName"):
        if spec.get(name) != old.get(name):
            yield f"spec.{name}: field is immutable"
    if spec["pool"]["name"] != old["pool"]["name"]:
        yield "spec.pool.name: field is immutable"


def _slice(item: Object, spec: Object) -> Iterator[str]:
    if not _SUBDOMAIN.fullmatch(item["metadata"]["name"]):
        yield "metadata.name: must be a DNS subdomain"
    for owner in item["metadata"].get("ownerReferences") or ():
        if not all(owner.get(name) for name in ("apiVersion", "kind", "name", "uid")):
            yield "metadata.ownerReferences: apiVersion, kind, name and uid must not be empty"
    if not _SUBDOMAIN.fullmatch(spec.get("driver", "")) or len(spec["driver"]) > 63:
        yield "spec.driver: must be a DNS subdomain of at most 63 characters"
    about = spec.get("pool") or {}
    if not about.get("name") or about.get("generation", -1) < 0 or about.get("resourceSliceCount", 0) < 1:
        yield "spec.pool: name, generation of 0 or more and resourceSliceCount of 1 or more are required"
    if sum(bool(spec.get(name)) for name in ("nodeName", "nodeSelector", "allNodes")) != 1:
        yield "spec: exactly one of nodeName, nodeSelector, allNodes is required"
    devices, sets = spec.get("devices") or [], spec.get("sharedCounters") or []
    if devices and sets:
        yield "spec: only one of `sharedCounters` or `devices` is allowed"
    special = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    if len(devices) > (SPECIAL if special else DEVICES) or len(sets) > SETS:
        yield f"spec: Too many: {len(devices)} devices, {len(sets)} counter sets"
    for kind, items in (("devices", devices), ("sharedCounters", sets)):
        named = [one.get("name", "") for one in items]
        yield from (f"spec.{kind}: name {name!r} is no DNS label" for name in named if not _LABEL.fullmatch(name))
        if len(set(named)) != len(named):
            yield f"spec.{kind}: Duplicate value"
    for one in sets:
        yield from _counters(one.get("counters"), f"spec.sharedCounters[{one.get('name')}]")
    for device in devices:
        yield from _device(device)


def _device(device: Object) -> Iterator[str]:
    where = f"spec.devices[{device.get('name')}]"
    attributes, capacities = device.get("attributes") or {}, device.get("capacity") or {}
    if len(attributes) + len(capacities) > 32:
        yield f"{where}: too many attributes and capacities"
    for name in (*attributes, *capacities):
        if not _C_NAME.fullmatch(name.rpartition("/")[2]):
            yield f"{where}: {name!r} must be a C identifier"
    for name, value in attributes.items():
        if len(value) != 1 or len(str(value.get("string", ""))) > 64:
            yield f"{where}.attributes[{name}]: exactly one value of at most 64 characters"
    for name, capacity in capacities.items():
        if "requestPolicy" in capacity:
            if not device.get("allowMultipleAllocations"):
                yield f"{where}.capacity[{name}].requestPolicy: Forbidden: allowMultipleAllocations must be true"
            yield from _policy(capacity, f"{where}.capacity[{name}]")
    taken = device.get("consumesCounters") or []
    if len(taken) > 2:
        yield f"{where}.consumesCounters: too many"
    for one in taken:
        yield from _counters(one.get("counters"), f"{where}.consumesCounters")
    for taint in device.get("taints") or ():
        if not taint.get("key") or taint.get("effect") not in ("NoSchedule", "NoExecute", "None"):
            yield f"{where}.taints: key and effect are required"


def _counters(found: Any, where: str) -> Iterator[str]:
    if not found or len(found) > COUNTERS:
        yield f"{where}: 1 to {COUNTERS} counters"
    for name, counter in (found or {}).items():
        if not _LABEL.fullmatch(name) or "value" not in counter:
            yield f"{where}: counter {name!r} must be a DNS label with a value"


def _policy(capacity: Object, where: str) -> Iterator[str]:
    policy, most = capacity["requestPolicy"], _number(capacity["value"])
    found = policy.get("validRange")
    if not found or "default" not in policy or "min" not in found:
        yield f"{where}: default and min are required when validRange is defined"
        return
    least, step, top = _number(found["min"]), _number(found["step"]), _number(found["max"])
    usual = _number(policy["default"])
    if not least <= usual <= top <= most or least + step > most:
        yield f"{where}: default, max and one step must lie between min and the value"
    if (usual - least) % step or (top - least) % step:
        yield f"{where}: value is not a multiple of a given step"


def _number(text: str) -> int:
    """In MiB where there is a binary suffix."""
    return mib_of(text, "capacity") if text.endswith("i") else int(text)
