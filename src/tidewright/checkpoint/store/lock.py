"""The store's lock: threads and processes use the store concurrently, and garbage collection waits until it is unused.

Readers and writers hold ``lock`` shared; garbage collection holds it exclusively. Every user acquires ``turn`` for a moment
before ``lock``, and garbage collection keeps it while it waits, so that a stream of readers cannot starve it. All waits are
bounded: a process that was stopped with a lock held does not block the others indefinitely. The kernel releases both when
their holder dies. Locks belong to open files, not to processes: threads exclude each other, too. Never nested.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from ...base.errors import WorldError

PATIENCE_S = 120.0
CLEANER_PATIENCE_S = 20.0
"""Garbage collection blocks all users while it waits, so it gives up sooner."""
_POLL_S = (0.001, 0.05)


class StoreLock:
    """``patience_s``: seconds that readers and writers wait; ``cleaner_s``: garbage collection."""

    def __init__(self, root: Path, patience_s: float = PATIENCE_S, cleaner_s: float = CLEANER_PATIENCE_S) -> None:
        self._lock, self._entry = root / "lock", root / "turn"
        self._patience_s, self._cleaner_s = patience_s, cleaner_s

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Nothing is removed meanwhile. Raises WorldError when garbage collection does not release the lock."""
        why = "its garbage collection does not finish"
        with _file(self._lock) as lock:
            with _file(self._entry) as entry:
                _acquire(entry, fcntl.LOCK_EX, self._patience_s, why)
                _acquire(lock, fcntl.LOCK_SH, self._patience_s, why)
            yield

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """No other user has the store meanwhile. Raises WorldError when one does not release the lock."""
        why = "it is in use"
        with _file(self._entry) as entry, _file(self._lock) as lock:
            _acquire(entry, fcntl.LOCK_EX, self._patience_s, why)
            _acquire(lock, fcntl.LOCK_EX, self._cleaner_s, why)
            yield


@contextlib.contextmanager
def _file(path: Path) -> Iterator[int]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _acquire(handle: int, mode: int, patience_s: float, why: str) -> None:
    pause, last = _POLL_S
    deadline = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(handle, mode | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise WorldError(f"the image store could not be locked for {patience_s:g} s: {why}") from None
        time.sleep(pause)
        pause = min(2 * pause, last)
