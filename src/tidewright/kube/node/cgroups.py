"""Cgroups of pods on this node, as the kubelet's cgroupfs or systemd driver makes them, under version 1 or 2."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BUSY, IDLE, ABSENT, UNKNOWN = "busy", "idle", "absent", "unknown"
"""Of a pod's cgroup: processes are in it; none is; there is no such cgroup; no cgroups of the kubelet can be seen here."""


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Below ``root``, ``/sys/fs/cgroup`` as a rule: one tree (version 2), or one per controller (version 1)."""

    root: Path

    def bases(self) -> Iterator[Path]:
        """Where the kubelet's cgroups begin; below another one where the node is itself a container."""
        level = [self.root]
        for _ in range(3):
            level = [path for folder in level for path in _folders(folder)]
            yield from (path for path in level if "kubepods" in path.name)

    def visible(self) -> bool:
        """Whether cgroups of the kubelet can be seen here at all."""
        return next(self.bases(), None) is not None

    def of(self, uid: str) -> Iterator[Path]:
        """Those of a pod, at any quality of service: one, or one per controller."""
        forms = (f"pod{uid}", f"pod{uid.replace('-', '_')}.slice")
        return (path for base in self.bases() for path in _pods(base) if path.name.endswith(forms))

    def state(self, uid: str) -> str:
        """BUSY, IDLE, ABSENT or UNKNOWN. Under version 1 processes outside our own pid namespace do not show, so without the
        node's (``hostPID``) a busy cgroup looks idle."""
        found = [_busy(path) for path in self.of(uid)]
        if found:
            return BUSY if any(found) else IDLE
        return ABSENT if self.visible() else UNKNOWN


def _busy(path: Path) -> bool:
    """Whether there is a process in it or below. Version 2 says so itself, for all below, whatever the pid namespace."""
    try:
        return "populated 1" in (path / "cgroup.events").read_text()
    except OSError:
        return _listed(path) or any(_busy(below) for below in _folders(path))


def _listed(path: Path) -> bool:
    try:
        return bool((path / "cgroup.procs").read_text().strip())
    except OSError:
        return False


def _pods(base: Path) -> Iterator[Path]:
    """Cgroups of pods: below the kubelet's own, or below the one of their quality of service."""
    for path in _folders(base):
        yield path
        if "pod" not in path.name.replace("kubepods", ""):
            yield from _folders(path)


def _folders(path: Path) -> list[Path]:
    """Those in ``path``; none when it is gone meanwhile, as cgroups go all the time."""
    try:
        with os.scandir(path) as found:
            return [Path(one.path) for one in found if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []
