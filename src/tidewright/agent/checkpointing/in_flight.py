"""Which images are being made, copied or sent just now, and which of these are not needed any more.

A job may end at any moment of that. What is done by then is dropped at once; what is not yet, by the operation that handles it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ...base.errors import WorldError


class ImageNotNeeded(WorldError):
    """The job has ended, or started over, while an image of it was made or copied; nothing of it is left."""


class InFlight:
    """Called from threads. Images are known by job and serial."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._running: Counter[tuple[int, int]] = Counter()
        self._dropped: dict[int, int] = {}
        """Job to the last of its serials that is not needed; only while one of them is in flight."""
        self._aborts: dict[tuple[int, int], Callable[[], object]] = {}

    @contextlib.contextmanager
    def image(self, job: int, serial: int) -> Iterator[None]:
        """Something is done with an image. The operation asks ``unneeded`` when it is done, before it leaves."""
        key = job, serial
        with self._guard:
            self._running[key] += 1
        try:
            yield
        finally:
            with self._guard:
                self._running -= Counter((key,))
                self._aborts.pop(key, None)
                if all(other != job for other, _ in self._running):
                    self._dropped.pop(job, None)

    def abort_by(self, job: int, serial: int, abort: Callable[[], object]) -> None:
        """How what is in flight can be cut short; done at once when it is unneeded already."""
        with self._guard:
            self._aborts[job, serial] = abort
            late = serial <= self._dropped.get(job, 0)
        if late:
            abort()

    def serials(self, job: int) -> set[int]:
        """Those of the job that are in flight."""
        with self._guard:
            return {serial for other, serial in self._running if other == job}

    def drop(self, job: int, serials: Iterable[int], last: int) -> None:
        """These images of the job, and all of it up to ``last`` that are in flight, are not needed any more; later ones
        may be."""
        with self._guard:
            mine = [serial for other, serial in self._running if other == job and serial <= last]
            if mine:
                self._dropped[job] = max([*serials, *mine, self._dropped.get(job, 0)])
            aborts = [self._aborts[job, serial] for serial in mine if (job, serial) in self._aborts]
        for abort in aborts:
            abort()

    def unneeded(self, job: int, serial: int) -> bool:
        """Whether an image that is in flight was dropped meanwhile."""
        with self._guard:
            return serial <= self._dropped.get(job, 0)


class KeyedLocks:
    """A lock for each image that is being brought here."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[tuple[int, int], tuple[threading.Lock, int]] = {}

    @contextlib.contextmanager
    def of(self, key: tuple[int, int]) -> Iterator[None]:
        """One at a time for a key."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = lock, users + 1
        try:
            with lock:
                yield
        finally:
            with self._guard:
                lock, users = self._locks.pop(key)
                if users > 1:
                    self._locks[key] = lock, users - 1
