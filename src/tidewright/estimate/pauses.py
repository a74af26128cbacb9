"""What suspensions and resumes took lately: what is expected of a job whose own have not been measured yet.

Without it the first preemption of every job is planned by a default: a pool whose images take a minute plans as if they took
a second.
"""

from __future__ import annotations

from statistics import median_low

from msgspec import Struct, field

KEPT = 32
"""Measured times kept for each level, the latest."""
_CHANGED = 0.1
"""What is expected follows the median once it is off by this share."""


class PauseTimes(Struct):
    """Of one operation, microseconds by level of preemption (``model.job.Level``), oldest first."""

    recent: dict[int, list[int]] = {}
    expected: dict[int, int] = {}

    def note(self, level: int, took_us: int) -> bool:
        """A job of ``level`` took so long. Whether what is expected of others has changed."""
        if took_us <= 0:
            return False
        kept = self.recent.setdefault(level, [])
        kept.append(took_us)
        if len(kept) > KEPT:
            del kept[0]
        middle, before = median_low(kept), self.expected.get(level, 0)
        if before and abs(middle - before) <= _CHANGED * before:
            return False
        self.expected[level] = middle
        return True

    def usual_us(self, level: int) -> int:
        """What the next one is expected to take; 0 before one was measured."""
        return self.expected.get(level, 0)


class PauseHistory(Struct):
    """Part of the book."""

    saves: PauseTimes = field(default_factory=PauseTimes)
    restores: PauseTimes = field(default_factory=PauseTimes)
