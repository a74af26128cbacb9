"""The availability profile: how many devices are expected to be free from each time on."""

from __future__ import annotations

import numpy as np

from ..model.table import Column


class Profile:
    """A step function of time, ``free[i]`` from ``times[i]`` on (the last one without end). Times are microseconds."""

    def __init__(self, now: int, free: int, ends: Column, held: Column) -> None:
        """Free now, plus ``held[i]`` devices more at ``ends[i]`` (never before now)."""
        times, which = np.unique(np.concatenate([[now], np.maximum(ends, now)]).astype(np.int64), return_inverse=True)
        gains = np.zeros(len(times), dtype=np.int64)
        np.add.at(gains, which, np.concatenate([[free], held]).astype(np.int64))
        self.times, self.free = times, np.cumsum(gains)

    def earliest(self, need: int, lasting: int, after: int = 0) -> int:
        """The first time from ``after`` on when ``need`` devices stay free for ``lasting``; -1 for never."""
        short = self.free < need
        blocked = np.where(short, self.times, np.iinfo(np.int64).max)
        next_short = np.minimum.accumulate(blocked[::-1])[::-1]
        begins = np.maximum(self.times, after)
        ends = np.append(self.times[1:], np.iinfo(np.int64).max)
        good = np.flatnonzero(~short & (begins < ends) & (next_short - begins >= lasting))
        return int(begins[good[0]]) if len(good) else -1

    def reserve(self, at: int, lasting: int, need: int) -> None:
        """Take ``need`` devices from ``at`` for ``lasting``."""
        self._cut(at)
        self._cut(at + lasting)
        first, last = np.searchsorted(self.times, [at, at + lasting])
        self.free[first:last] -= need

    def _cut(self, at: int) -> None:
        index = int(np.searchsorted(self.times, at))
        if index == len(self.times) or self.times[index] != at:
            self.times = np.insert(self.times, index, at)
            self.free = np.insert(self.free, index, self.free[index - 1])
