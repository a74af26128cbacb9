"""Leases of readers on raw images of this node: a job waits for them elsewhere, and storing them is less urgent."""

from __future__ import annotations

import threading
import time
from collections import Counter

Key = tuple[int, int]
"""Job and serial."""
GRACE_S = 0.25
"""A node that is to go on with a job asks for its image within a tenth of a second, and then for file after file."""
LONGEST_S = 60.0
"""An image is not safe before it is stored: readers delay that no longer than this."""


class ReadLeases:
    """Readers by image. Called from threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._readers: Counter[Key] = Counter()
        self._last: dict[Key, float] = {}

    def begin(self, key: Key) -> None:
        """A reader opens a file of this image."""
        with self._changed:
            self._readers[key] += 1

    def end(self, key: Key) -> None:
        """A reader has read its file to the end, or has broken off."""
        with self._changed:
            now = time.monotonic()
            self._readers -= Counter((key,))
            self._last = {one: at for one, at in self._last.items() if now - at < LONGEST_S} | {key: now}
            self._changed.notify_all()

    def wait(self, key: Key, grace_s: float | None = None, longest_s: float = LONGEST_S) -> None:
        """Return once no reader has had a lease on this image for ``grace_s`` (``GRACE_S`` if None); blocks, at most for
        ``longest_s``."""
        began, grace_s = time.monotonic(), GRACE_S if grace_s is None else grace_s
        with self._changed:
            while (now := time.monotonic()) < began + longest_s:
                quiet = max(began, self._last.get(key, 0.0)) + grace_s
                if self._readers[key]:
                    self._changed.wait(began + longest_s - now)
                elif now < quiet:
                    self._changed.wait(min(quiet, began + longest_s) - now)
                else:
                    break
