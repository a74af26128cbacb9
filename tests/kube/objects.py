"""Pods and nodes as the API server has them."""

from __future__ import annotations

import itertools
from typing import Any

from tidewright.kube.objects import names
from tidewright.kube.objects.gpu_inventory import GpuInfo, publish
from tidewright.kube.objects.heartbeat import PluginHeartbeat, written

_NUMBERS = itertools.count()


def pod(
    name: str = "p", mem: object = 4, count: object = None, *, node: str = "", notes: dict[str, str] | None = None,
    phase: str = "Pending", priority: int = 0, **meta: Any,
) -> dict[str, Any]:  # fmt: skip
    """One container that asks ``mem``."""
    limits = {names.MEM: str(mem)} | ({} if count is None else {names.COUNT: str(count)})
    spec: dict[str, Any] = {"containers": [{"name": "c", "resources": {"limits": limits}}], "priority": priority}
    if node:
        spec["nodeName"] = node
    full = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes or {}, **meta}
    return {"metadata": full, "spec": spec, "status": {"phase": phase}}


def node(name: str = "n", mem: object = 30, count: object = 2, **more: Any) -> dict[str, Any]:
    """As gpushare's plugin leaves it."""
    amounts = {names.MEM: str(mem), names.COUNT: str(count)}
    return {
        "metadata": {"name": name, "annotations": {}, **more},
        "status": {"capacity": amounts, "allocatable": dict(amounts)},
    }


def late_node(name: str = "n", mem: int = 30, count: int = 2) -> dict[str, Any]:
    """As our own device plugin leaves it where containers find their GPU late."""
    inventory = publish(tuple(GpuInfo(at, mem // count) for at in range(count)))
    heartbeat = written(PluginHeartbeat(True, "2026-01-01T00:00:00Z", every_s=3600, late=True))
    return node(name, mem, count) | {
        "metadata": {"name": name, "annotations": {names.TABLE: inventory, names.PLUGIN: heartbeat}},
    }


KINDS = {"match": node, "late": late_node}
"""Nodes by how their device plugins know whose container it is."""


def placed(name: str, on: str, gpu: int, mem: int, **more: Any) -> dict[str, Any]:
    """A running pod that holds ``mem`` of one GPU."""
    notes = {names.IDX: str(gpu), names.POD: str(mem), names.ASSIGNED: "true"}
    return pod(name, mem, node=on, notes=notes, phase="Running", **more)
