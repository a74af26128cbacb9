"""Limits of CPUs and memory for the processes of one rank, and its weight among others on the same CPUs, by cgroup v2 or v1: by
whichever holds each controller here.

With v2 a rank has one group, which is its freezer group too; with v1 it has one in the hierarchy of each controller. Where no
group can be made the rank runs without its limit, and ``HostLimits.lacking`` says why and what to do.
Documentation/admin-guide/cgroup-v2.rst (cpu.max, cpu.weight, cpu.idle, memory.max); cgroup-v1/memory.rst;
scheduler/sched-bwc.rst; kernel/sched/core.c (cpu.shares and cpu.idle of v1).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .cgroup import LEAF, CgroupV2, Freezer, ours, places, remove

PERIOD_US, LONG_PERIOD_US = 100_000, 1_000_000
"""The kernel's default period, and its longest: a quota may not be below 1 ms (sched-bwc.rst)."""
CPU, MEMORY, WEIGHT = "cpu", "memory", "weight"
_CONTROLLER = {CPU: "cpu", WEIGHT: "cpu", MEMORY: "memory"}
WEIGHTS, IDLE_GROUPS = "cpu weights", "idle groups"
"""What a host may offer to shares of a device (devices.protocol.ShareMeans)."""
_V1: dict[str, tuple[str, ...]] = {
    CPU: ("cpu.cfs_period_us", "cpu.cfs_quota_us"), MEMORY: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
}  # fmt: skip
_V2: dict[str, tuple[str, ...]] = {CPU: ("cpu.max",), MEMORY: ("memory.max", "memory.swap.max", "memory.oom.group")}
_PACES = {"cpu.idle": ("1", "0"), "cpu.weight": ("1", "100"), "cpu.shares": ("2", "1024")}
"""Files of a CPU group, of which the first that it has is written: for idle CPU time, and the kernel's default."""
_OPTIONAL = ("memory.memsw.limit_in_bytes", "memory.swap.max", "memory.oom.group")
"""Files that kernels without accounting of swap, and those before 4.19, do not have."""
REMEDY = "run tide up as root, or in a group of its own: systemd-run --user --scope -p Delegate=yes tide up"
REMEDY_OF_ROOT = "run tide up in a group of its own: systemd-run --scope -p Delegate=yes tide up"

Setting = tuple[str, str]
"""A file of a group, and what is written into it."""


class GroupBase(NamedTuple):
    """Where groups of a controller are made, by which version of cgroups."""

    version: int
    base: Path


class RankLimits(NamedTuple):
    """What a rank enters (``groups``), where its memory is limited ("": nowhere), and what is to be written once it is restored:
    a restore is our work, and would be slow within the CPUs of the rank."""

    groups: tuple[str, ...] = ()
    memory_group: str = ""
    late: tuple[Setting, ...] = ()


class HostLimits:
    """The controllers that work for this process. ``why``: of those that do not, what is in the way."""

    def __init__(self, controllers: dict[str, GroupBase], why: str = "", *, idle_groups: bool = False) -> None:
        self._controllers, self._why = controllers, why
        self.offers = frozenset(
            [WEIGHTS] * (WEIGHT in controllers) + [IDLE_GROUPS] * (idle_groups and WEIGHT in controllers)
        )
        """What shares of a device can be held to here: CPU weights, and groups that are idle (cpu.idle, kernels since 5.15)."""

    @property
    def missing(self) -> str:
        """What cannot be limited here, why, and what to do; empty when all can."""
        lacking = [_WORDS[kind] for kind in (CPU, MEMORY) if kind not in self._controllers]
        return self._unenforced(lacking) if lacking else ""

    def _unenforced(self, lacking: list[str]) -> str:
        return f"{' and '.join(lacking)} not enforced: {self._why or 'no such controller here'}; {self.remedy}"

    @property
    def remedy(self) -> str:
        """What to do where groups cannot be made."""
        return REMEDY if os.geteuid() else REMEDY_OF_ROOT

    def create(
        self, name: str, cpus_milli: int, memory: int, *, restored: bool = False, weight: int = 0, idle: bool = False
    ) -> RankLimits:
        """Make the groups of a rank; zero: no such limit. ``weight``: CPU time under contention, where a group without one has
        1000; ``idle``: one for ``set_idle``. What cannot be had here is left out. Raises OSError."""
        groups: dict[str, bool] = {}
        late: list[Setting] = []
        memory_group = ""
        for kind, amount in ((MEMORY, memory), (CPU, cpus_milli), (WEIGHT, int(idle) or weight)):
            controller = self._controllers.get(kind) if amount else None
            if controller is None:
                continue
            path = controller.base / name
            path.mkdir(exist_ok=True)
            groups[str(path)] = True
            settings = [] if idle and kind == WEIGHT else _settings(controller.version, kind, amount, path)
            if kind == MEMORY:
                memory_group = str(path)
            elif restored:
                late, settings = [*late, *settings], []
            try:
                apply(settings)
            except OSError:
                remove(tuple(groups))
                raise
        return RankLimits(tuple(groups), memory_group, tuple(late))

    def made(self, prefix: str) -> tuple[str, ...]:
        """Directories of groups there are whose names start with ``prefix``."""
        bases = dict.fromkeys(controller.base for controller in self._controllers.values())
        return tuple(sorted(str(path) for base in bases for path in base.glob(f"{prefix}*")))

    def describe(self, cpus_milli: int, memory: int) -> str:
        """How far these limits are enforced here, in words; empty for none."""
        asked = [kind for kind, amount in ((CPU, cpus_milli), (MEMORY, memory)) if amount]
        if not asked:
            return ""
        lacking = [_WORDS[kind] for kind in asked if kind not in self._controllers]
        if lacking:
            return self._unenforced(lacking)
        versions = sorted({f"cgroup v{self._controllers[kind].version}" for kind in asked})
        return f"enforced by {' and '.join(versions)}"


NO_LIMITS = HostLimits({})
"""Nothing is limited: for nodes that are not asked."""
_WORDS = {CPU: "CPUs", MEMORY: "memory"}


def apply(settings: list[Setting]) -> None:
    """Write the files of a group. Raises OSError."""
    for path, text in settings:
        if os.path.exists(path) or os.path.basename(path) not in _OPTIONAL:
            Path(path).write_text(text)


def _settings(version: int, kind: str, amount: int, group: Path) -> list[Setting]:
    if kind == WEIGHT:
        file, weight = (
            ("cpu.weight", max(1, round(amount / 10))) if version == 2 else ("cpu.shares", max(2, amount * 128 // 125))
        )
        return [(str(group / file), str(weight))]
    names, texts = (_V2 if version == 2 else _V1)[kind], tuple[str, ...]()
    if kind == MEMORY:
        texts = (str(amount), "0", "1") if version == 2 else (str(amount), str(amount))
    else:
        period = PERIOD_US if amount * PERIOD_US // 1000 >= 1000 else LONG_PERIOD_US
        quota = amount * period // 1000
        texts = (f"{quota} {period}",) if version == 2 else (str(period), str(quota))
    return [(str(group / name), text) for name, text in zip(names, texts, strict=True)]


def set_idle(groups: Iterable[str], idle: bool) -> None:
    """Have groups of ranks run in CPU time that nothing else wants, or like others. Removed ones are passed over."""
    for group in map(Path, groups):
        for name, (least, usual) in _PACES.items():
            if (group / name).exists():
                with contextlib.suppress(OSError):
                    (group / name).write_text(least if idle else usual)
                break


# -- what works here ----------------------------------------------------------------------------------------------------


def detect(freezer: Freezer) -> HostLimits:
    """What this process can limit. With v2 it may move itself and its like into a group of their own below the present one, since
    a group with controllers cannot hold processes. ``freezer``: ranks are in its groups."""
    found: dict[str, GroupBase] = {}
    why: dict[str, bool] = {}
    idle_groups = False
    for version, controllers, base in _places(freezer):
        for kind in (CPU, MEMORY, WEIGHT):
            if kind in found or _CONTROLLER[kind] not in controllers:
                continue
            try:
                files = _try(GroupBase(version, base), kind)
                found[kind] = GroupBase(version, base)
                idle_groups = idle_groups or (kind == WEIGHT and "cpu.idle" in files)
            except OSError as error:
                why[f"{error.filename or base}: {error.strerror}"] = True
    return HostLimits(found, "; ".join(why), idle_groups=idle_groups)


def _places(freezer: Freezer) -> list[tuple[int, tuple[str, ...], Path]]:
    """(version, controllers, directory of this process's group), v2 first. Ranks that are frozen by v2 are in its groups."""
    found: list[tuple[int, tuple[str, ...], Path]] = []
    for version, controllers, base in places():
        if version == 2:
            base = freezer.base if isinstance(freezer, CgroupV2) else base
            with contextlib.suppress(OSError):
                found.insert(0, (2, tuple((base / "cgroup.controllers").read_text().split()), base))
        else:
            found.append((1, controllers, base))
    return found


def _try(controller: GroupBase, kind: str) -> frozenset[str]:
    """Make a group with a limit and remove it; the names of the files it had. Raises OSError."""
    if controller.version == 2:
        _enable(controller.base, _CONTROLLER[kind])
    probe = controller.base / f"tidewright-probe-{os.getpid()}"
    probe.mkdir(exist_ok=True)
    try:
        apply(_settings(controller.version, kind, 2**30 if kind == MEMORY else 1000, probe))
        if not os.access(probe / "cgroup.procs", os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(probe / "cgroup.procs"))
        return frozenset(os.listdir(probe))
    finally:
        remove((str(probe),))


def _enable(base: Path, kind: str) -> None:
    """Let the groups below ``base`` have a controller. Raises OSError."""
    control = base / "cgroup.subtree_control"
    if kind in control.read_text().split():
        return
    try:
        control.write_text(f"+{kind}")
    except OSError as error:
        if error.errno != errno.EBUSY or not ours(base):
            raise
        leaf = base / LEAF
        leaf.mkdir(exist_ok=True)
        for pid in (base / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(pid)
        control.write_text(f"+{kind}")
