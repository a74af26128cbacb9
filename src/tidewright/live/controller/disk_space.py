"""Room on the disk of a state directory: a reserve for the journal when nothing else is left, and what takes the most.

A full disk must not take away what would free it: cancellations, suspensions and the ends of jobs have to be written down
first. So some room is allocated while there is plenty, and released when there is none.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import heapq
import os
from collections.abc import Iterator
from pathlib import Path

from ...base.units import format_bytes

RESERVE = "journal.reserve"
RESERVE_BYTES = 16 * 2**20
"""Cancelling a job takes some 20 KiB of journal and log records; this is for hundreds of such requests."""
LOW_BYTES = 4 * 2**20
"""With less than this free, nothing new is accepted."""
LEAST_BYTES = 2**20
"""Smaller growth of the reserve is not worth the write."""
FALLOC_FL_KEEP_SIZE = 1
"""linux/falloc.h"""
NAMED = 3
"""Largest files named in a message."""


def free_bytes(path: Path) -> int:
    """What this process may still write on the disk of ``path``. Raises OSError."""
    found = os.statvfs(path)
    # Blocks kept back for the superuser are of use to a daemon of the superuser's only.
    return found.f_frsize * (found.f_bfree if os.geteuid() == 0 else found.f_bavail)


class Reserve:
    """``journal.reserve``: room taken while there is some. Its owner holds the state directory's lock."""

    def __init__(self, state: Path, size: int = RESERVE_BYTES) -> None:
        self._state, self.size = state, size
        self._path = state / RESERVE

    @property
    def held(self) -> int:
        """Bytes that it takes on the disk."""
        try:
            return self._path.stat().st_blocks * 512
        except OSError:
            return 0

    def check(self) -> str:
        """Make the reserve whole where there is room. Why nothing new can be accepted; empty: there is room."""
        try:
            free = free_bytes(self._state)
            if (free >= LOW_BYTES and self.held >= self.size) or self.fill():
                return ""
        except OSError as error:
            return f"{self._state}: {error.strerror}"
        return f"the disk of {self._state} is full (but for {format_bytes(free)}); tide doctor names the largest files"

    def fill(self) -> bool:
        """Take what there is beyond LOW_BYTES; whether the reserve is whole then."""
        with contextlib.suppress(OSError):
            held = self.held
            want = min(self.size, held + free_bytes(self._state) - LOW_BYTES)
            if want >= self.size > held or want - held >= LEAST_BYTES:
                self._allocate(want)
        return self.held >= self.size and free_bytes(self._state) >= LOW_BYTES

    def _allocate(self, want: int) -> None:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.posix_fallocate(file, 0, want)
        except OSError:
            os.ftruncate(file, 0)
            raise
        finally:
            os.close(file)

    def release(self) -> bool:
        """Release the reserve; false when there was none."""
        if not self.held:
            return False
        with contextlib.suppress(OSError):
            os.truncate(self._path, 0)
            return True
        return False


def release_when_full(state: Path) -> None:
    """Before a start on a full disk: release the reserve. The caller holds the directory's lock."""
    if free_bytes(state) < LOW_BYTES:
        Reserve(state).release()


def claim(path: Path, ahead: int) -> bool:
    """Allocate ``ahead`` bytes beyond the end of a file, its size as it is: no other writer gets the room released for it.

    False where the file system cannot do that, or has no room.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(file).st_size
        libc = ctypes.CDLL(None, use_errno=True)
        done = libc.fallocate(file, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size + ahead))
        return bool(done == 0)
    finally:
        os.close(file)


def largest(folder: Path, count: int = NAMED) -> list[tuple[int, Path]]:
    """The files below ``folder`` that take most room, but for the reserve: (bytes on the disk, path), the largest first."""
    return heapq.nlargest(count, _sizes(folder))


def _sizes(folder: Path) -> Iterator[tuple[int, Path]]:
    for path, _, names in os.walk(folder):
        for name in names:
            if name == RESERVE:
                continue
            file = Path(path, name)
            with contextlib.suppress(OSError):
                yield file.lstat().st_blocks * 512, file


def fullness(state: Path) -> str:
    """What is full, and what takes most of it below the state directory."""
    used = os.statvfs(state)
    whole = used.f_frsize * used.f_blocks
    large = [(size, path) for size, path in largest(state) if size >= LEAST_BYTES]
    names = ", ".join(f"{path} ({format_bytes(size)})" for size, path in large)
    free = f"the disk of {state} is full: {format_bytes(max(0, free_bytes(state)))} of {format_bytes(whole)} are free"
    return (
        f"{free}; the largest files there: {names}"
        if names
        else f"{free}; what fills it does not lie in that directory"
    )


def is_full(error: OSError) -> bool:
    """Whether this is about room on a disk, or a user's quota of it."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
