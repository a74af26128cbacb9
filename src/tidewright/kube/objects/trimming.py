"""Drops the fields of pods, nodes and ConfigMaps that are never read, so that a cache of a large cluster stays small. Pure."""

from __future__ import annotations

from typing import Any

from . import names
from .heartbeat import boot_of
from .metadata import ENDED, bound_to, phase
from .pod_request import requests_memory

KEPT_NOTES = {
    names.IDX, names.DEV, names.POD, names.ASSIGNED, names.ASSUME_TIME, names.ALLOCATION, names.NODE, names.POLICY, names.TABLE,
    names.COUNT, names.PLUGIN,
}  # fmt: skip
READ = frozenset({names.MEM, names.COUNT, "cpu"})
"""Resources of pods and nodes that matter here."""


def trim_pod(pod: dict[str, Any]) -> dict[str, Any] | None:
    """What is read of a pod: a tenth of what the API server sends. None for a pod without GPU memory
    that takes no node's CPU."""
    if not requests_memory(pod) and (not bound_to(pod) or phase(pod) in ENDED):
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
