"""Isolation where nothing stronger is at hand (L0): memory in use, by pod and GPU. Pure.

What is done about who takes more is in ``devices.excess``; here: a process belongs to the pod whose cgroup it is in.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...devices.excess import Place
from ..allocation.units import UnitSize
from ..node.gpus import Gpu, GpuProcess

_POD = re.compile(
    r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:/|$)", re.MULTILINE
)
"""In a line of /proc/PID/cgroup, written by the kubelet's cgroupfs driver (dashes) or its systemd driver (underscores);
static pods have 32 digits."""


@dataclass(frozen=True, slots=True)
class GpuMemoryUse:
    """Who uses how many MiB: pods, and on each GPU processes of no pod. ``blind``: processes are there but not seen."""

    pods: Mapping[Place, int]
    outside: Mapping[int, int]
    blind: bool = False


def pod_in(cgroup: str) -> str:
    """The uid of the pod that a process is in, by its /proc/PID/cgroup; empty when it is in none."""
    found = _POD.findall(cgroup)
    return found[-1].replace("_", "-") if found else ""


def sees_node(proc: Path) -> bool:
    """Whether the first process is not one of our own container's: without the node's pid namespace a driver names processes
    that cannot be looked up, or none at all."""
    try:
        return (proc / "1" / "cgroup").read_text() != (proc / "self" / "cgroup").read_text()
    except OSError:
        return False


def sight(uses: Iterable[GpuProcess], pod_of: Callable[[int], str | None]) -> GpuMemoryUse:
    """``pod_of``: the pod's uid, empty for a process of no pod, None for one that cannot be seen."""
    pods: Counter[Place] = Counter()
    outside: Counter[int] = Counter()
    seen = unseen = 0
    for use in uses:
        uid = pod_of(use.pid)
        seen, unseen = seen + (uid is not None), unseen + (uid is None)
        if uid:
            pods[uid, use.gpu] += use.mib
        else:
            outside[use.gpu] += use.mib
    return GpuMemoryUse(pods, outside, blind=bool(unseen and not seen))


def foreign_units(gpu: Gpu, units: int, mib: int, split: UnitSize) -> int:
    """Whole units of a GPU that ``mib`` of others leave nothing of. What is too little for a unit is theirs first."""
    beyond = mib - (gpu.memory_mib - units * split.unit_mib)
    return min(units, max(0, -(-beyond // split.unit_mib)))


def by_pod(held: Mapping[Place, int]) -> dict[str, dict[int, int]]:
    """MiB by uid and GPU."""
    found: dict[str, dict[int, int]] = {}
    for (uid, gpu), mib in held.items():
        found.setdefault(uid, {})[gpu] = mib
    return found
