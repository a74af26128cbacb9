"""The agenda: what will happen, and when. It refuses to know what any of it means."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TypeAlias

from ..engine.events import Event

Entry: TypeAlias = tuple[int, int, int, int, Event]
"""(time, sequence, job or -1, epoch, event). The sequence makes ties fall in the order of writing."""


class Agenda:
    """A heap of future events in order of (time, order of writing).

    ``tick_us``: they happen at multiples of it; 0: at any time.
    """

    __slots__ = ("_heap", "_sequence", "_tick_us")

    def __init__(self, tick_us: int = 0) -> None:
        self._tick_us = tick_us
        self._heap: list[Entry] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, at: int, event: Event, job: int = -1, epoch: int = 0) -> None:
        """Note that ``event`` happens at ``at``, provided ``job`` is then still in this ``epoch``."""
        if self._tick_us:
            at = self.ticked(at)
        self._sequence += 1
        heappush(self._heap, (at, self._sequence, job, epoch, event))

    def ticked(self, at: int) -> int:
        """The tick at which what is due at ``at`` happens."""
        return -(-at // self._tick_us) * self._tick_us if self._tick_us else at

    def next(self) -> int | None:
        """Time of the earliest entry, microseconds."""
        return self._heap[0][0] if self._heap else None

    def take(self, now: int) -> list[Entry]:
        """Remove and return every entry due at ``now`` or before, earliest first."""
        heap = self._heap
        due: list[Entry] = []
        while heap and heap[0][0] <= now:
            due.append(heappop(heap))
        return due
