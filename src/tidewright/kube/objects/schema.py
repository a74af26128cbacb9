"""Whether JSON from outside has the shape of the Kubernetes object it should be: checked once, then read as plain JSON.

Source: Kubernetes API reference v1 (Pod, Node, ConfigMap), only the fields that are read here. Absent lists may be null.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ...base.errors import UsageError
from .metadata import Json


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    """Unknown fields are passed over."""


class _Meta(_Struct, frozen=True):
    name: str
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class _Resources(_Struct, frozen=True):
    limits: dict[str, str | int] | None = None
    requests: dict[str, str | int] | None = None


class _Container(_Struct, frozen=True):
    name: str = ""
    resources: _Resources | None = None
    restart_policy: str | None = None


class _PodSpec(_Struct, frozen=True):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    node_name: str | None = None
    priority: int | None = None
    scheduler_name: str | None = None


class _PodStatus(_Struct, frozen=True):
    phase: str | None = None


class Pod(_Struct, frozen=True):
    """v1 Pod."""

    metadata: _Meta
    spec: _PodSpec | None = None
    status: _PodStatus | None = None


class _NodeStatus(_Struct, frozen=True):
    capacity: dict[str, str | int] | None = None
    allocatable: dict[str, str | int] | None = None
    addresses: list[dict[str, str]] | None = None


class Node(_Struct, frozen=True):
    """v1 Node."""

    metadata: _Meta
    status: _NodeStatus | None = None


class ConfigMap(_Struct, frozen=True):
    """v1 ConfigMap."""

    metadata: _Meta
    data: dict[str, str] | None = None


class PreemptionVictims(_Struct, frozen=True):
    """ExtenderPreemptionArgs' Victims and MetaVictims: the pods that the scheduler would preempt on one node."""

    pods: list[dict[str, Any]] | None = msgspec.field(default=None, name="Pods")
    violations: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None = msgspec.field(
        default=None, name="NumPDBViolations"
    )


def decode_json(text: bytes) -> Any:
    """What JSON says. Raises ValueError for what is none, is not in UTF-8, or is nested too deeply."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def validated(value: Any, kind: type[msgspec.Struct]) -> Json:
    """``value`` itself, when it could be a ``kind``. Raises UsageError naming the field that cannot be."""
    try:
        msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise UsageError(f"this is no {kind.__name__}: {error}", "send the object as the API server has it") from error
    found: Json = value
    return found
