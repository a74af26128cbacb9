"""The GPUs of a node, one by one: as our device plugin publishes them, else as gpushare's totals let them be guessed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ...base.errors import UsageError
from . import names
from .metadata import annotations_of
from .pod_request import MOST_GPUS, MOST_UNITS
from .quantity import LIMIT, millicores, whole

PLENTY = LIMIT
"""CPU of a node that does not say how much it has."""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """One GPU. ``units``: its memory; ``foreign``: what whole-GPU pods and processes outside use; ``ok``: may be used;
    ``whole``: for one pod alone (a MIG instance), however little of it that pod asks for."""

    index: int
    units: int
    uuid: str = ""
    model: str = ""
    ok: bool = True
    foreign: int = 0
    whole: bool = False


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """A node's GPUs by index. ``ready``: pods may be bound there; ``reason`` says why not, or what was assumed."""

    node: str
    cards: tuple[GpuInfo, ...]
    ready: bool = True
    reason: str = ""
    published: bool = False
    """By our device plugin, so each GPU's own size is known."""
    cpu: int = PLENTY
    """Millicores that pods may request."""


def read_gpu_inventory(node: Mapping[str, Any], unhealthy: frozenset[int] = frozenset()) -> GpuInventory:
    """``node``'s GPUs as of this moment. ``unhealthy``: indices listed in its ConfigMap. Never raises: says it in ``reason``."""
    name = str((node.get("metadata") or {}).get("name", ""))
    try:
        return replace(_published(name, node, unhealthy) or _guessed(name, node, unhealthy), cpu=_cpu(node))
    except UsageError as error:
        return GpuInventory(name, (), ready=False, reason=error.message)


def publish(cards: tuple[GpuInfo, ...], ready: bool = True, reason: str = "") -> str:
    """The value of the node annotation ``tidewright.io/gpus``."""
    return json.dumps(
        {"v": 1, "ready": ready, "note": reason, "gpus": [asdict(card) for card in cards]}, separators=(",", ":")
    )


def _published(name: str, node: Mapping[str, Any], unhealthy: frozenset[int]) -> GpuInventory | None:
    text = annotations_of(node).get(names.TABLE)
    if text is None:
        return None
    try:
        found = json.loads(text)
        cards = tuple(_card(entry, unhealthy) for entry in found["gpus"][:MOST_GPUS])
        if len({card.index for card in cards}) != len(cards):
            raise ValueError("two GPUs with one index")
        ready, reason = bool(found.get("ready", True)), str(found.get("note", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise UsageError(f"annotation {names.TABLE} of node {name} cannot be read: {error}") from error
    allocatable = _amount(node, "allocatable")
    if ready and cards and not allocatable:
        ready, reason = False, f"the kubelet offers no {names.MEM}: the device plugin is not registered there"
    return GpuInventory(name, cards, ready, reason, published=True)


def _card(entry: Mapping[str, Any], unhealthy: frozenset[int]) -> GpuInfo:
    index = whole(entry["index"], "GPU index")
    if index >= MOST_GPUS:
        raise ValueError(f"GPU index {index}")
    units, foreign = whole(entry["units"], "units"), whole(entry.get("foreign", 0), "foreign units")
    if max(units, foreign) > MOST_UNITS:
        raise ValueError(f"GPU {index} has {units} units, {foreign} of them foreign")
    return GpuInfo(
        index=index,
        units=units,
        uuid=str(entry.get("uuid", "")),
        model=str(entry.get("model", "")),
        ok=bool(entry.get("ok", True)) and index not in unhealthy,
        foreign=foreign,
        whole=bool(entry.get("whole", False)),
    )


def _guessed(name: str, node: Mapping[str, Any], unhealthy: frozenset[int]) -> GpuInventory:
    """gpushare's own reading: all GPUs of a node are equal, total over count."""
    total, count = _amount(node, "capacity"), _amount(node, "capacity", names.COUNT)
    if not total:
        return GpuInventory(name, (), ready=False, reason=f"no {names.MEM} on this node")
    count = min(count or 1, MOST_GPUS)
    each = total // count
    if each > MOST_UNITS:
        raise UsageError(f"node {name} has {total} units of {names.MEM} on {count} GPUs: more than any has")
    return GpuInventory(name, tuple(GpuInfo(at, each, ok=at not in unhealthy) for at in range(count)))


def _cpu(node: Mapping[str, Any]) -> int:
    found = ((node.get("status") or {}).get("allocatable") or {}).get("cpu")
    return PLENTY if found is None else millicores(found, "allocatable cpu")


def _amount(node: Mapping[str, Any], kind: str, resource: str = names.MEM) -> int:
    found = ((node.get("status") or {}).get(kind) or {}).get(resource, 0)
    return whole(found, f"{kind} {resource}")


def unhealthy_by_node(config_maps: Iterable[Mapping[str, Any]]) -> dict[str, frozenset[int]]:
    """What the ConfigMaps of nodes list; others are passed over."""
    named = ((str((one.get("metadata") or {}).get("name", "")), one) for one in config_maps)
    prefix = names.UNHEALTHY_PREFIX
    return {name.removeprefix(prefix): unhealthy_of(one) for name, one in named if name.startswith(prefix)}


def unhealthy_of(config_map: Mapping[str, Any] | None) -> frozenset[int]:
    """The indices in ``data.gpus`` of a node's ConfigMap; words that are no index are passed over."""
    text = str(((config_map or {}).get("data") or {}).get(names.UNHEALTHY_KEY, ""))
    words = (word for word in text.replace(" ", "").split(",") if word.isascii() and word.isdigit())
    return frozenset(int(word) for word in words if len(word) <= LONGEST_INDEX)


LONGEST_INDEX = 9
"""Digits; int() itself refuses a few thousand."""
