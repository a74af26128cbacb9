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
        ends = np.maximum(ends, now)
        order = ends.argsort()
        gains: dict[int, int] = {now: free}
        for end, more in zip(ends[order].tolist(), held[order].tolist(), strict=True):
            gains[end] = gains.get(end, 0) + more
        self.times: list[int] = list(gains)
        self.free: list[int] = []
        total = 0
        for gain in gains.values():
            total += gain
            self.free.append(total)

    def earliest(self, need: int, lasting: int, after: int = 0) -> int:
        """The first time from ``after`` on when ``need`` devices stay free for ``lasting``; -1 for never."""
        times, free = self.times, self.free
        at, last = max(bisect_right(times, after) - 1, 0), len(times)
        while at < last:
            if free[at] < need:
                at += 1
                continue
            begin = max(times[at], after)
            until = begin + lasting
            at += 1
            while at < last and times[at] < until and free[at] >= need:
                at += 1
            if at == last or times[at] >= until:
                return begin
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
