"""Full file systems: which one it is, how much is needed, how much there is, and what can be done."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path

from ...base.errors import WorldError
from ...base.units import format_bytes

MARGIN_BYTES = 16 * 2**20
"""Left free by all that check before they write: records that are small must go on being written."""
_WORDS = tuple(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT))


class FileSystemFull(WorldError):
    """A file system has no room for what is to be written there; nothing half written is left."""


def mount_of(path: Path) -> Path:
    """Where the file system of a path (or of what is there of it) is mounted."""
    path = path.resolve()
    while not path.exists() or (path != path.parent and not os.path.ismount(path)):
        path = path.parent
    return path


def free_bytes(path: Path) -> int:
    """What may still be written to the file system of an existing path. Raises OSError."""
    facts = os.statvfs(path)
    return facts.f_bavail * facts.f_frsize


def is_full(error: BaseException | str) -> bool:
    """Whether a failure, also one reported in another program's words, is for want of room."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return True
    return isinstance(error, FileSystemFull) or any(words in str(error) for words in _WORDS)


def refusal(path: Path, what: str, need: int = 0) -> FileSystemFull:
    """The error to raise: ``what`` does not fit where ``path`` lies; ``need`` bytes (0: not known)."""
    mount, needs = mount_of(path), f"needs {format_bytes(need)}" if need else "needs more room"
    facts = os.statvfs(mount)
    free, size = (format_bytes(blocks * facts.f_frsize) for blocks in (facts.f_bavail, facts.f_blocks))
    return FileSystemFull(
        f"no room on the file system {mount}: {what} {needs} in {path}, where {free} of {size} are free; remove files there,"
        " end jobs whose images it holds (tide images ls), or make it larger"
    )


def in_plain(error: Exception, path: Path, what: str) -> Exception:
    """A failure to write ``what`` to ``path`` in words that say what to do, where it is for want of room; else itself."""
    return refusal(path, what) if is_full(error) and not isinstance(error, FileSystemFull) else error


def anonymous_bytes(pids: Iterable[int]) -> int:
    """Memory of processes that is in no file, swapped out or not: their images are hardly smaller (proc(5), status)."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith(("RssAnon:", "VmSwap:")):
                    total += int(line.split()[1]) * 1024
    return total


def require(path: Path, need: int, what: str) -> None:
    """Raise DiskFull when ``need`` bytes and a margin do not fit where ``path`` (which exists) lies."""
    if free_bytes(path) < need + MARGIN_BYTES:
        raise refusal(path, what, need)
