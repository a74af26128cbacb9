"""The device plugin's heartbeat, an annotation of its node: written there, heeded by the extender. Pure.

A pod that is bound while the kubelet waits for its device plugin fails for good ("no healthy devices present", measured on
1.36), so no pod is bound to a node whose plugin is known to be unregistered, silent, or not back since a reboot.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from . import names
from .gpu_inventory import GpuInventory
from .metadata import annotations_of

EVERY_S = 60.0
SILENT_BEATS = 3
"""A plugin that missed so many is taken for silent."""
LONGEST_EVERY_S = 3600.0


@dataclass(frozen=True, slots=True)
class PluginHeartbeat:
    """``registered``: the kubelet has the node's devices. ``at``: for people, RFC 3339. ``boot``: the kernel's boot id.
    ``late``: containers find their GPU late, by CDI; else by the order in which pods are bound."""

    registered: bool
    at: str
    every_s: float = EVERY_S
    boot: str = ""
    late: bool = False


def written(heartbeat: PluginHeartbeat) -> str:
    """The annotation's value."""
    found = {"v": 1, "registered": heartbeat.registered, "at": heartbeat.at, "every_s": heartbeat.every_s, "boot": heartbeat.boot,
             "late": heartbeat.late}  # fmt: skip
    return json.dumps(found, separators=(",", ":"))


def read(text: str) -> PluginHeartbeat | None:
    """None when it cannot be understood."""
    try:
        found = json.loads(text)
        every_s = min(max(float(found["every_s"]), 1.0), LONGEST_EVERY_S)
        boot, late = str(found.get("boot", "")), found.get("late") is True
        return PluginHeartbeat(found["registered"] is True, str(found["at"]), every_s, boot, late)
    except (ArithmeticError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def boot_of(node: Mapping[str, Any]) -> str:
    """The kernel's boot id as the node shows it; empty where it does not."""
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")


def before_boot(heartbeat: PluginHeartbeat, node: Mapping[str, Any]) -> bool:
    """Whether a heartbeat is of a time before the node was started."""
    return bool(heartbeat.boot and boot_of(node) not in ("", heartbeat.boot))


@dataclass(slots=True)
class HeartbeatMonitor:
    """What an extender heard. By its own clock, as leases are: when an annotation last changed *as seen here*, whatever
    the time in it says, so clocks that differ make no node unusable."""

    _seen: dict[str, tuple[str, float]] = field(default_factory=dict)

    def see(self, name: str, node: Mapping[str, Any], now_s: float) -> None:
        """A node as it is now."""
        text = annotations_of(node).get(names.PLUGIN)
        if text is None:
            self._seen.pop(name, None)
        elif self._seen.get(name, ("", 0.0))[0] != text:
            self._seen[name] = (str(text), now_s)

    def late(self, name: str) -> bool:
        """Whether containers there find their GPU in whatever order pods are bound; not where nothing says so."""
        heartbeat = read(self._seen[name][0]) if name in self._seen else None
        return heartbeat is not None and heartbeat.late

    def forget(self, name: str) -> None:
        """The node is gone."""
        self._seen.pop(name, None)

    def excuse(self, now_s: float) -> None:
        """Nothing could be heard until now: silence is counted from here."""
        self._seen = {name: (text, now_s) for name, (text, _) in self._seen.items()}

    def silent(self, now_s: float) -> tuple[str, ...]:
        """Nodes whose plugin should have been heard again."""
        return tuple(name for name in self._seen if self._late(name, now_s))

    def with_readiness(self, inventory: GpuInventory, node: Mapping[str, Any], now_s: float) -> GpuInventory:
        """``table``, not ready when its plugin's heartbeat says so. Nodes without our table or heartbeat stay as they are."""
        if not inventory.published or not inventory.ready or inventory.node not in self._seen:
            return inventory
        why = self._why_not(inventory.node, node, now_s)
        return replace(inventory, ready=False, reason=why) if why else inventory

    def _why_not(self, name: str, node: Mapping[str, Any], now_s: float) -> str:
        heartbeat = read(self._seen[name][0])
        if heartbeat is None:
            return f"the device plugin's heartbeat ({names.PLUGIN}) cannot be read"
        if not heartbeat.registered:
            return "its device plugin is not registered with the kubelet"
        if before_boot(heartbeat, node):
            return "its device plugin has not registered since the node was started"
        if self._late(name, now_s):
            return f"its device plugin has been silent since {heartbeat.at}"
        return ""

    def _late(self, name: str, now_s: float) -> bool:
        text, seen_s = self._seen[name]
        heartbeat = read(text)
        return heartbeat is not None and now_s - seen_s > SILENT_BEATS * heartbeat.every_s
