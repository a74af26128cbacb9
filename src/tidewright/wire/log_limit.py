"""A bound on what a log takes from outside: of one message, so many a minute; then one line that counts the rest."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

BURST = 20
PERIOD_S = 60.0
_REMEMBERED = 1_000


class LogLimit(logging.Filter):
    """For a handler: passes ``burst`` records of one logger and message text (before its arguments) per ``period_s``."""

    def __init__(
        self, burst: int = BURST, period_s: float = PERIOD_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__()
        self._burst, self._period_s, self._clock = burst, period_s, clock
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to write the record. The first of a new period says how many were left out of the one before."""
        key, now = (record.name, str(record.msg)), self._clock()
        since, count = self._seen.pop(key, (now, 0))
        if now - since >= self._period_s:
            left_out = count - self._burst
            if left_out > 0:
                record.msg = f"{record.getMessage()} (and {left_out} more like it, left out)"
                record.args = ()
            since, count = now, 0
        self._seen[key] = (since, count + 1)
        if len(self._seen) > _REMEMBERED:
            with contextlib.suppress(KeyError, RuntimeError):  # another thread is at it
                del self._seen[next(iter(self._seen))]
        return count < self._burst
