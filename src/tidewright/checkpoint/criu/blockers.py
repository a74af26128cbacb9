"""What CRIU cannot save, found in /proc before anything is stopped, so that a job's level can be lowered with a reason.

Knows what CRIU 4.1 refuses (criu.org/What_cannot_be_checkpointed), and what it saves but no other host could use:
connections to elsewhere, addresses of this host.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..files.shared import is_dumper
from ..processes import PROC
from ..processes import stat as process
from .socket_blockers import ties

DEVICES = frozenset({(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (1, 11), (5, 0), (5, 2)})
"""null, zero, full, random, urandom, kmsg, tty, ptmx (Documentation/admin-guide/devices.txt)."""
TERMINALS = range(136, 144)
"""Major numbers of /dev/pts."""
KINDS = frozenset({"[eventfd]", "[eventpoll]", "[signalfd]", "[timerfd]", "inotify", "[pidfd]", "[inotify]"})
"""Anonymous inodes that CRIU saves."""
NAMESPACES = ("pid", "mnt", "net", "ipc", "uts", "user")
CONTROL = "run/tidewright/rank/ctl"
"""Where a rank's processes that have joined a world keep their control pages, from the rank's root."""


def obstacles(pids: Iterable[int], main: int, init: int) -> list[str]:
    """Why these processes of one rank cannot be dumped, one sentence each; those that end meanwhile are skipped.

    TCP connections of a rank that has joined a world are left to ``connected``: at the cut the wrapper closes its own,
    and it has none of other kinds.
    """
    mine = list(pids)
    found = strays(mine, main) + mirrored(mine)
    for pid in mine:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += [f"{_name(pid)} {why}" for why in _of_process(pid, init)]
    return found + connected(mine, tcp=not joined(init))


def joined(init: int) -> bool:
    """Whether a process of the rank has a control page, and so has joined a world."""
    try:
        return bool(os.listdir(PROC / str(init) / "root" / CONTROL))
    except OSError:
        return False


def connected(pids: Iterable[int], *, tcp: bool = True) -> list[str]:
    """Sockets that hold a rank to this host or are lost with an image, one sentence each; see ``socket_blockers``."""
    found = []
    for pid, why in ties(pids, tcp=tcp):
        with contextlib.suppress(OSError):
            found.append(f"{_name(pid)} {why}")
    return found


def strays(pids: Iterable[int], main: int) -> list[str]:
    """Processes that do not descend from the main one (their parents have ended): no part of its tree, nor of an image."""
    parents = {each.pid: each.parent for pid in pids if (each := process(pid)) is not None and each.state not in "ZX"}
    found = []
    for pid in parents:
        at = pid
        while at in parents and at != main:
            at = parents[at]
        if at != main:
            with contextlib.suppress(OSError):
                found.append(f"{_name(pid)} has outlived its parent (a daemon?)")
    return found


def mirrored(pids: Iterable[int]) -> list[str]:
    """Children that CRIU would restore with their parent's mappings, one sentence each.

    CRIU (up to 4.2.1, criu/mem.c: check_cow_vmas) takes private mappings of one file at the same addresses in a process and
    its parent for one that was inherited by fork, and does not look at where in the file they begin. Two programs that are
    started with the same executable and no random layout have such mappings, and the child then gets wrong code and data.
    """
    mine, found = set(pids), []
    maps = functools.cache(_private)  # a parent of many is read once
    for pid in sorted(mine):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            known = process(pid)
            parent = known.parent if known else 0
            if parent in mine and os.readlink(PROC / str(pid) / "exe") == os.readlink(PROC / str(parent) / "exe"):
                own, other = maps(pid), maps(parent)
                if odd := [own[at] for at in own.keys() & other.keys() if own[at] != other[at]]:
                    path = min(path for path, _ in odd)
                    found.append(f"{_name(pid)} maps {path} where its parent does, but another part of it")
    return found


def _private(pid: int) -> dict[tuple[str, str], tuple[str, str]]:
    """Private mappings of files: (path, offset) by (addresses, device and inode)."""
    return {
        (fields[0], f"{fields[3]} {fields[4]}"): (fields[5], fields[2])
        for fields in _maps(PROC / str(pid))
        if fields[1].endswith("p") and fields[4] != "0"
    }


def _name(pid: int) -> str:
    return f"process {pid} ({(PROC / str(pid) / 'comm').read_text().strip()})"


def _of_process(pid: int, init: int) -> Iterator[str]:
    directory = PROC / str(pid)
    for name in NAMESPACES:
        if os.readlink(directory / "ns" / name) != os.readlink(PROC / str(init) / "ns" / name):
            yield f"has made itself a {name} namespace"
    tracer = int((directory / "status").read_text().split("\nTracerPid:", 1)[1].split(maxsplit=1)[0])
    if tracer and not is_dumper(tracer):
        yield "is being traced by a debugger"
    for path in _mapped(directory):
        if why := _mapping(path):
            yield why
    for entry in (directory / "fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if why := _descriptor(entry, os.readlink(entry)):
                yield why


def _mapped(directory: Path) -> list[str]:
    """Names of a process's mappings: files, and what has a name in brackets."""
    return sorted({fields[5] for fields in _maps(directory)})


def _maps(directory: Path) -> list[list[str]]:
    """Named mappings (proc(5), maps): addresses, permissions, offset, device, inode, name."""
    lines = (line.split(maxsplit=5) for line in (directory / "maps").read_text().splitlines())
    return [fields for fields in lines if len(fields) > 5]


def _mapping(path: str) -> str:
    if path.startswith("anon_inode:") and "[io_uring]" in path:
        return "uses io_uring"
    if path.startswith("/SYSV"):
        return "uses System V shared memory"
    if path.startswith("/dev/") and not path.startswith(("/dev/shm/", "/dev/zero")):
        return f"has mapped the device {path}"
    return ""


def _descriptor(entry: Path, target: str) -> str:
    if target.startswith("anon_inode:"):
        kind = target.partition(":")[2]
        return "" if kind in KINDS else f"uses {kind.strip('[]')}"
    if not target.startswith("/"):
        return ""
    now = entry.stat()
    if stat.S_ISBLK(now.st_mode):
        return f"has opened the device {target}"
    if stat.S_ISCHR(now.st_mode):
        device = os.major(now.st_rdev), os.minor(now.st_rdev)
        if device[0] in TERMINALS:
            return f"has opened the terminal {target}"
        return "" if device in DEVICES else f"has opened the device {target}"
    return ""
