"""Where this process stands in the kernel's control groups: one tree (version 2), or one for each set of controllers (1)."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Hierarchy(NamedTuple):
    """A mounted tree. ``own`` is the group this process is in, as the kernel names it; of version 2 no controllers are listed."""

    version: int
    controllers: tuple[str, ...]
    mount: Path
    own: str

    @property
    def group(self) -> Path:
        """The directory of this process's group."""
        return self.mount / self.own.lstrip("/")


def hierarchies(groups: str, mounts: str) -> list[Hierarchy]:
    """Those that are mounted, in the order of their mounts; from /proc/self/cgroup and /proc/self/mounts (cgroups(7))."""
    own = dict(line.split(":", 2)[1:] for line in groups.splitlines())
    found = []
    for line in mounts.splitlines():
        _, mount, kind, options, *_ = line.split()
        if kind == "cgroup2":
            found.append(Hierarchy(2, (), Path(mount), own.get("", "/")))
        elif kind == "cgroup":
            names = next((key for key in own if key and set(key.split(",")) <= set(options.split(","))), "")
            if names:
                found.append(Hierarchy(1, tuple(names.split(",")), Path(mount), own[names]))
    return found
