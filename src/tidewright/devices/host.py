"""What this process may use of its host: its CPUs and memory, less where a control group around it allows less."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path

import psutil

from ..base.control_groups import hierarchies

PROC = Path("/proc/self")


def host_cpus(most: int = 0, proc: Path = PROC) -> int:
    """Whole CPUs, at least 1: of ``most`` (0: those this process may run on), as far as quotas allow."""
    most = most or len(os.sched_getaffinity(0))
    return max(1, math.floor(min([float(most), *_quotas(proc)])))


def host_memory(total: int = 0, proc: Path = PROC) -> int:
    """Bytes: of ``total`` (0: all of the host's), as far as limits allow."""
    return min([total or psutil.virtual_memory().total, *_memory_limits(proc)])


def _quotas(proc: Path) -> Iterator[float]:
    for group in _around(proc, "cpu"):
        with contextlib.suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            yield int(quota) / int(period)  # of a group without limit it is the word max
        with contextlib.suppress(OSError, ValueError):
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
            if int(quota) > 0:
                yield int(quota) / int(period)


def _memory_limits(proc: Path) -> Iterator[int]:
    for group in _around(proc, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                yield int((group / name).read_text())


def _around(proc: Path, controller: str) -> Iterator[Path]:
    """The groups this process is in, from the innermost to the mount; in a container the kernel may name groups that cannot be
    seen there, and the mount is the container's own."""
    with contextlib.suppress(OSError):
        for one in hierarchies((proc / "cgroup").read_text(), (proc / "mounts").read_text()):
            if one.version == 2 or controller in one.controllers:
                yield from (path for path in (one.group, *one.group.parents) if path.is_relative_to(one.mount))
