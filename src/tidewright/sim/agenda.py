"""The agenda: what will happen, and when. It refuses to know what any of it means."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TypeAlias

from ..engine.events import Event

Entry: TypeAlias = tuple[int, int, int, int, Event]
"""(time, sequence, job or -1, epoch, event). The sequence makes ties fall in the order of writing."""


class Agenda:
    """A heap of future events in order of (time, order of writing)."""

    __slots__ = ("_heap", "_sequence")

    def __init__(self) -> None:
        self._heap: list[Entry] = []
        self._sequence = 0

    def __len__(self) -> int:
        return len(self._heap)

    def put(self, at: int, event: Event, job: int = -1, epoch: int = 0) -> None:
        """Note that ``event`` happens at ``at``, provided ``job`` is then still in this ``epoch``."""
        self._sequence += 1
        heappush(self._heap, (at, self._sequence, job, epoch, event))

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
