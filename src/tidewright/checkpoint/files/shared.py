"""Files of a rank that other processes write to as well: like an external service, they are not rolled back at a restore.

Another process is one that belongs to no rank of the same job. Reads /proc; a process that may not be read counts as
one without open files.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterable, Sequence

from ...base.errors import WorldError
from ..processes import PROC, environment
from ..processes import stat as process
from ..protocol import RankHandle

Identity = tuple[int, int]
"""Device and inode: the same file in whatever namespace it is seen."""

Known = tuple[Identity, str]
"""A file with its name, as an inode is given again when a file is gone."""

JOB = (b"TIDE_JOB_ID=", b"TIDE_JOB_NAME=")
"""What the environments of all ranks of a job have in common, on whatever host and in whatever attempt."""
MARK = "TIDEWRIGHT_DUMP"
"""A variable in the environment of CRIU and its helpers, and of nothing else; its value says which rank is dumped."""

FRESH_S = 0.5
"""How long what was seen of others holds for further ranks of the same dump."""


class BeingWritten(WorldError):
    """A rank is in the middle of writing to a file that others write to, and soon no longer."""


class Others:
    """The processes that belong to no rank of the job of these ``ranks``, its ranks on this node.

    For threads: ranks that are saved side by side look at /proc once. ``known`` are files that were shared before and
    so are shared for good, as those who wrote to them may be suspended now; what is found is added.
    """

    def __init__(self, ranks: Sequence[RankHandle], known: set[Known]) -> None:
        self._known = known
        self._own = {os.getpid(), *(handle.shim for handle in ranks)}
        self._spaces = {_space(handle.init) for handle in ranks} - {""}
        self._job = next((found for handle in ranks if (found := _of_job(handle.pid))), frozenset[bytes]())
        self._lock = threading.Lock()
        self._writers: dict[Identity, list[int]] = {}
        self._until = 0.0

    def write_to(self, wanted: set[Known]) -> set[Identity]:
        """Those of the wanted files that one of them has open for writing, now or when we last looked."""
        if not wanted:
            return set()
        with self._lock:
            if time.monotonic() > self._until:
                self._writers = self._look()
                self._until = time.monotonic() + FRESH_S
            writers = self._writers
            self._known |= {each for each in wanted if any(map(self._is_other, writers.get(each[0], ())))}
            return {each[0] for each in wanted & self._known}

    def _look(self) -> dict[Identity, list[int]]:
        found: dict[Identity, list[int]] = {}
        for entry in os.listdir(PROC):
            if entry.isdecimal() and int(entry) not in self._own and _space(int(entry)) not in self._spaces:
                for each in written(int(entry)):
                    found.setdefault(each, []).append(int(entry))
        return found

    def _is_other(self, pid: int) -> bool:
        """Whether it is there, of no rank on what is another node here, and no CRIU: that holds what a rank holds."""
        known = process(pid)
        if known is None:
            return False
        while known is not None and known.pid > 1:
            found = environment(known.pid)
            if any(each.startswith(MARK.encode() + b"=") for each in found):
                return False
            if self._job and self._job <= found:
                return False
            known = process(known.parent)  # programs may overwrite their environment: their parents' tells it, too
        return True


def is_dumper(pid: int) -> bool:
    """Whether a process is a CRIU that one of us has started, or a helper of it."""
    return any(each.startswith(MARK.encode() + b"=") for each in environment(pid))


def written(pid: int) -> set[Identity]:
    """The files that a process has open for writing. None when it is gone or not to be read."""
    with contextlib.suppress(OSError):
        folder = os.open(f"{PROC}/{pid}/fd", os.O_RDONLY | os.O_DIRECTORY)
        try:
            return {each for name in os.listdir(folder) if (each := _written(folder, name)) is not None}
        finally:
            os.close(folder)
    return set()


def _written(folder: int, name: str) -> Identity | None:
    """The file that a descriptor writes to. The link's own mode says whether it does (fs/proc/fd.c), at the least cost."""
    try:
        if not os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode & stat.S_IWUSR:
            return None
        path = os.readlink(name, dir_fd=folder)
        if not path.startswith("/") or path.startswith("/dev/"):
            return None
        now = os.stat(name, dir_fd=folder)
        return now.st_dev, now.st_ino
    except OSError:
        return None


def fdinfo(pid: int, name: str) -> str:
    """What the kernel says of a descriptor (proc(5)). Raises OSError."""
    return (PROC / str(pid) / "fdinfo" / name).read_text()


def writes(info: str) -> bool:
    """Whether a descriptor is open for writing."""
    return int(info.split("flags:", 1)[1].split()[0], 8) & os.O_ACCMODE != os.O_RDONLY


def locked(info: str) -> bool:
    """Whether its process has the file, or a part of it, locked for writing."""
    return any(line.startswith("lock:") and " WRITE " in line for line in info.splitlines())


def refuse_locked(pids: Iterable[int], shared: Iterable[Identity]) -> None:
    """Raise BeingWritten when one of these processes has a shared file locked for writing.

    With the rank its locks go, and others write: what it has read, and half written, would be of no use to it.
    """
    wanted = set(shared)
    for pid in pids if wanted else ():
        with contextlib.suppress(OSError):
            for entry in (PROC / str(pid) / "fd").iterdir():
                with contextlib.suppress(OSError):
                    now = entry.stat()
                    if (now.st_dev, now.st_ino) in wanted and locked(fdinfo(pid, entry.name)):
                        path = os.readlink(entry)
                        raise BeingWritten(f"it holds a lock on {path}, which processes of others write to")


def _space(pid: int) -> str:
    """The pid namespace of a process; empty when that is not to be learned."""
    try:
        return os.readlink(f"{PROC}/{pid}/ns/pid") if pid else ""
    except OSError:
        return ""


def _of_job(pid: int) -> frozenset[bytes]:
    found = frozenset(each for each in environment(pid) if each.startswith(JOB))
    return found if len(found) == len(JOB) else frozenset()
