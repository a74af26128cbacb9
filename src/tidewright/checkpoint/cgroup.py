"""Three ways to stop processes where they are: the cgroup v2 freezer, the v1 freezer, and SIGSTOP.

The groups are made for one rank each; SIGSTOP needs no privilege but is seen by the program and its parents.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..base.control_groups import Hierarchy, hierarchies
from ..base.errors import WorldError
from .processes import grouped, members, send, stat
from .protocol import RankHandle

LEAF = "tidewright-agent"
"""The group for the agent's own processes where those of ranks have controllers (checkpoint.limits)."""
TOP = "tidewright"
"""The group of ranks below the root of the tree, for a root whose own group holds processes of others."""
FREEZE_TIMEOUT_S = 5.0
"""A process in uninterruptible sleep (a hung disk) delays freezing; beyond this the freeze is undone and refused."""


class Freezer(Protocol):
    """Stops and continues every process of a rank."""

    name: str

    def create(self, name: str) -> tuple[str, ...]:
        """Make the group of a new rank; its directory, or nothing where no group is needed. Raises OSError."""
        ...

    def made(self, prefix: str) -> tuple[str, ...]:
        """Directories of groups there are whose names start with ``prefix``."""
        ...

    def freeze(self, handle: RankHandle) -> None:
        """Return once nothing of the rank runs. Raises WorldError, with the rank running."""
        ...

    def thaw(self, handle: RankHandle) -> None:
        """Let the rank run. Harmless when it does."""
        ...

    def frozen(self, handle: RankHandle) -> bool:
        """Whether the rank is stopped now."""
        ...


def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Poll ``done`` with growing pauses (1 to 20 ms)."""
    deadline, pause = time.monotonic() + timeout_s, 0.001
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause)
        pause = min(pause * 2, 0.02)
    return True


class Groups(ABC):
    """What both kinds of freezer groups share. ``base`` is the directory the groups are made in."""

    name = ""
    file = ""
    on, off = "", ""

    def __init__(self, base: Path) -> None:
        self.base = base

    def create(self, name: str) -> tuple[str, ...]:
        path = self.base / name
        path.mkdir(exist_ok=True)
        return (str(path),)

    def made(self, prefix: str) -> tuple[str, ...]:
        return tuple(sorted(str(path) for path in self.base.glob(f"{prefix}*")))

    @abstractmethod
    def is_frozen(self, group: Path) -> bool:
        """Whether the kernel says that every process of the group has stopped."""

    def _write(self, handle: RankHandle, text: str) -> None:
        for group in handle.cgroups:
            with contextlib.suppress(FileNotFoundError):
                (Path(group) / self.file).write_text(text)

    def _settled(self, handle: RankHandle) -> bool:
        self._write(handle, self.on)  # v1 freezes a process forked meanwhile only when FROZEN is written again
        return self.frozen(handle)

    def freeze(self, handle: RankHandle) -> None:
        if not wait_until(lambda: self._settled(handle), FREEZE_TIMEOUT_S):
            self.thaw(handle)
            raise WorldError(f"rank {handle.rank} did not stop within {FREEZE_TIMEOUT_S:g} s (a hung disk?)")

    def thaw(self, handle: RankHandle) -> None:
        self._write(handle, self.off)

    def frozen(self, handle: RankHandle) -> bool:
        return bool(handle.cgroups) and all(self.is_frozen(Path(group)) for group in handle.cgroups)


class CgroupV2(Groups):
    """Documentation/admin-guide/cgroup-v2.rst, cgroup.freeze; a frozen process can still be killed."""

    name = "cgroup2"
    file, on, off = "cgroup.freeze", "1", "0"

    def is_frozen(self, group: Path) -> bool:
        try:
            return "frozen 1" in (group / "cgroup.events").read_text()
        except OSError:
            return False


class CgroupV1(Groups):
    """Documentation/admin-guide/cgroup-v1/freezer-subsystem.rst; signals wait until the thaw, SIGKILL too."""

    name = "cgroup1"
    file, on, off = "freezer.state", "FROZEN", "THAWED"

    def is_frozen(self, group: Path) -> bool:
        try:
            return (group / "freezer.state").read_text().strip() == "FROZEN"
        except OSError:
            return False


class Signals:
    """SIGSTOP and SIGCONT to every process of the rank; forks race with the scan, so it is repeated until quiet."""

    name = "signals"

    def create(self, name: str) -> tuple[str, ...]:
        return ()

    def made(self, prefix: str) -> tuple[str, ...]:
        return ()

    def _running(self, handle: RankHandle) -> list[int]:
        found = ((pid, stat(pid)) for pid in members(handle))
        return [pid for pid, each in found if each is not None and each.state not in "TtZX"]

    def _stopped(self, handle: RankHandle) -> bool:
        running = self._running(handle)
        send(running, signal.SIGSTOP)
        return not running

    def freeze(self, handle: RankHandle) -> None:
        if not wait_until(lambda: self._stopped(handle), FREEZE_TIMEOUT_S):
            self.thaw(handle)
            raise WorldError(f"rank {handle.rank} did not stop within {FREEZE_TIMEOUT_S:g} s (a hung disk?)")

    def thaw(self, handle: RankHandle) -> None:
        send(members(handle), signal.SIGCONT)

    def frozen(self, handle: RankHandle) -> bool:
        return bool(members(handle)) and not self._running(handle)


def freezer_of(handle: RankHandle) -> Freezer:
    """What stops this rank, by the type of its groups: an agent under other circumstances may have made them."""
    for group in map(Path, handle.cgroups):
        if (group / CgroupV2.file).exists():
            return CgroupV2(group.parent)
        if (group / CgroupV1.file).exists():
            return CgroupV1(group.parent)
    return Signals()


def remove(cgroups: tuple[str, ...]) -> bool:
    """Remove a rank's groups; False while a process is still in one."""
    for group in cgroups:
        try:
            os.rmdir(group)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def places() -> list[tuple[int, tuple[str, ...], Path]]:
    """(version, controllers, directory in which groups are made) of each hierarchy: this process's group, or of version 2 one in
    which there may be controllers."""
    found = hierarchies(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mounts").read_text())
    return [(one.version, one.controllers, base_of(one)) for one in found]


def base_of(one: Hierarchy) -> Path:
    """Where an agent has moved itself into a group for its like, the group above that. A group with processes gets no controllers
    (cgroup-v2.rst, "No Internal Process Constraint"), and those of others are not ours to move: root makes a group of its own
    below the root of the tree then, as container engines do."""
    base = one._replace(own=one.own.removesuffix(f"/{LEAF}")).group
    if one.version != 2 or base == one.mount or os.geteuid() != 0 or ours(base):
        return base
    top = one.mount / TOP
    try:
        if not {"cpu", "memory"} & set((base / "cgroup.controllers").read_text().split()):
            return base
        top.mkdir(exist_ok=True)
    except OSError:
        return base
    return top


def ours(group: Path) -> bool:
    """Whether the processes of a group may be moved: it has none but this, or was delegated (systemd.resource-control(5))."""
    with contextlib.suppress(OSError):
        if set((group / "cgroup.procs").read_text().split()) <= {str(os.getpid())}:
            return True
    for name in ("user.delegate", "trusted.delegate"):
        with contextlib.suppress(OSError):
            if os.getxattr(group, name) == b"1":
                return True
    return False


def bases() -> list[Freezer]:
    """Freezers by the mounted hierarchies, best first, each below the group this process is in."""
    found: list[Freezer] = []
    for version, controllers, base in places():
        if version == 2:
            found.insert(0, CgroupV2(base))
        elif "freezer" in controllers:
            found.append(CgroupV1(base))
    return found


def works(freezer: Freezer) -> bool:
    """Try it: a group can be made, frozen, thawed, entered by our own children, and removed."""
    probe: tuple[str, ...] = ()
    try:
        probe = freezer.create(f"tidewright-probe-{os.getpid()}")
        handle = RankHandle(rank=0, pid=0, start=0, cgroups=probe)
        freezer.freeze(handle)
        freezer.thaw(handle)
        return os.access(Path(probe[0]) / "cgroup.procs", os.W_OK) and grouped(probe) == []
    except (OSError, WorldError):
        return False
    finally:
        remove(probe)


def detect() -> Freezer:
    """The best freezer that works for this process: cgroup v2, v1, signals."""
    return next((freezer for freezer in bases() if works(freezer)), Signals())
