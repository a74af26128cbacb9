"""Processes by identity (pid and start time, as pids are reused), and everything that belongs to a rank.

Reads /proc only (proc(5)); knows nothing of jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from .protocol import RankHandle

PROC = Path("/proc")


class Stat(NamedTuple):
    """The fields of /proc/PID/stat that matter here; ``start`` is in clock ticks since boot."""

    pid: int
    state: str
    parent: int
    session: int
    start: int


def stat(pid: int) -> Stat | None:
    """What the kernel says of ``pid`` now; None when there is no such process."""
    try:
        fields = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def alive(pid: int, start: int) -> bool:
    """Whether exactly this process is there and not a zombie."""
    found = stat(pid)
    return found is not None and found.start == start and found.state not in "ZX"


def everything() -> list[Stat]:
    """All processes, by pid."""
    found = (stat(int(entry)) for entry in os.listdir(PROC) if entry.isdigit())
    return sorted(each for each in found if each is not None)


def environment(pid: int) -> set[bytes]:
    """What a process was started with, as NAME=value (unless it has overwritten it); nothing when it is gone."""
    try:
        return set((PROC / str(pid) / "environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def bears(pid: int, marker: str) -> bool:
    """Whether a process was started with ``marker`` in its environment."""
    return marker.encode() in environment(pid)


def members(handle: RankHandle) -> list[int]:
    """Live processes of a rank: in its groups, its session, below its shim, or bearing its marker; by pid."""
    table = {each.pid: each for each in everything() if each.state not in "ZX"}
    mine = {pid for pid in grouped(handle.cgroups) if pid in table}
    mine |= below(table, handle)
    if handle.marker:
        mine |= {pid for pid in table if pid not in mine and bears(pid, handle.marker)}
    return sorted(mine - {handle.shim, os.getpid()})


def grouped(cgroups: Iterable[str]) -> list[int]:
    """Processes listed by freezer groups."""
    found: list[int] = []
    for group in cgroups:
        with contextlib.suppress(OSError):
            found += [int(line) for line in (Path(group) / "cgroup.procs").read_text().split()]
    return found


def below(table: dict[int, Stat], handle: RankHandle) -> set[int]:
    """The main process while it is itself, its session, and every descendant of it and of its shim.

    The session of a dead main process is not trusted: its number may have been given again.
    """
    main = table.get(handle.pid)
    mine: set[int] = set()
    if main is not None and main.start == handle.start:
        mine = {pid for pid, each in table.items() if each.session == handle.pid}
    children: dict[int, list[int]] = {}
    for each in table.values():
        children.setdefault(each.parent, []).append(each.pid)
    todo = [*mine, *([handle.shim] if handle.shim in table else [])]
    while todo:
        for child in children.get(todo.pop(), ()):
            if child not in mine:
                mine.add(child)
                todo.append(child)
    return mine


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Signal each process; those already gone are no error. The pids must be fresh from ``members``."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def set_affinity(pids: Iterable[int], cpus: tuple[int, ...]) -> None:
    """Confine every thread of these processes to ``cpus`` (sched_setaffinity(2) acts on one thread)."""
    for pid in pids:
        with contextlib.suppress(OSError):
            for thread in os.listdir(PROC / str(pid) / "task"):
                with contextlib.suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cpus)
