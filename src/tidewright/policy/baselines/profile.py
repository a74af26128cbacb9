"""The availability profile: how many devices are expected to be free from each time on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from ...model.table import Column


class Profile:
    """A step function of time, ``free[i]`` from ``times[i]`` on (the last one without end). Times are microseconds.

    Plain lists: a search looks at a few steps, and a vector expression over all of them costs more than that.
    """

    def __init__(self, now: int, free: int, ends: Column, held: Column) -> None:
        """Free now, plus ``held[i]`` devices more at ``ends[i]`` (never before now)."""
        order = ends.argsort()
        times, total = np.empty(len(ends) + 1, np.int64), np.empty(len(ends) + 1, np.int64)
        times[0], total[0] = now, free
        np.maximum(ends[order], now, out=times[1:])
        total[1:] = held[order]
        last = np.append(times[1:] != times[:-1], True)
        self.times: list[int] = times[last].tolist()
        self.free: list[int] = total.cumsum()[last].tolist()

    def earliest(self, need: int, lasting: int, after: int = 0) -> int:
        """The first time from ``after`` on when ``need`` devices stay free for ``lasting``; -1 for never."""
        if need > self.free[-1]:  # all that is held or reserved ends, so no step has more free
            return -1
        times, free = self.times, self.free
        at, last = max(bisect_right(times, after) - 1, 0), len(times)
        while at < last:
            if free[at] < need:
                at += 1
                continue
            begin = max(times[at], after)
            end = bisect_left(times, begin + lasting, at + 1)
            if min(free[at:end]) >= need:
                return begin
            # A later beginning, with a later end, would still meet the last step that is too low.
            at = end
            while free[at - 1] >= need:
                at -= 1
        return -1

    def reserve(self, at: int, lasting: int, need: int) -> None:
        """Take ``need`` devices from ``at`` for ``lasting``."""
        first, last = self._cut(at), self._cut(at + lasting)
        free = self.free
        for step in range(first, last):
            free[step] -= need

    def _cut(self, at: int) -> int:
        """Let a step begin at ``at``; its index."""
        index = bisect_left(self.times, at)
        if index == len(self.times) or self.times[index] != at:
            self.times.insert(index, at)
            self.free.insert(index, self.free[index - 1])
        return index
