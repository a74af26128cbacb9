"""Fields that objects of every kind have, read from their JSON. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = Mapping[str, Any]
ENDED = ("Succeeded", "Failed")
"""Phases that the kubelet sets only when every container is gone."""


def uid_of(item: dict[str, Any]) -> str:
    """The uid; namespace and name where there is none."""
    meta = item.get("metadata") or {}
    return str(meta.get("uid") or f"{meta.get('namespace', '')}/{meta.get('name', '')}")


def version_of(item: Mapping[str, Any]) -> int:
    """Versions of one kind of object grow in the order of its changes (KEP-5504; etcd's revisions before it); 0 for none."""
    text = str((item.get("metadata") or {}).get("resourceVersion", ""))
    return int(text) if text.isascii() and text.isdigit() else 0


def title(pod: Json) -> str:
    """namespace/name for messages."""
    meta = pod.get("metadata") or {}
    return f"{meta.get('namespace', 'default')}/{meta.get('name', '?')}"


def annotations_of(thing: Json) -> Json:
    """Of a pod or a node; empty where there are none."""
    return (thing.get("metadata") or {}).get("annotations") or {}


def labels_of(thing: Json) -> Json:
    """Of a pod, a node or another object; empty where there are none."""
    return (thing.get("metadata") or {}).get("labels") or {}


def phase(pod: Json) -> str:
    """Of a pod; empty while it has none."""
    return str((pod.get("status") or {}).get("phase") or "")


def bound_to(pod: Json) -> str:
    """The node; empty while there is none."""
    return str((pod.get("spec") or {}).get("nodeName") or "")
