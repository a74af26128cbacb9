"""One model's queue, earliest deadline first, bounded in length and bytes (EDF: Liu and Layland, JACM 1973)."""

from __future__ import annotations

from bisect import bisect_left, insort
from itertools import islice

from ..base.errors import UsageError
from .request import InferenceRequest, RefusalCode

_COMPACT = 1024
"""Entries taken from the front before the list is cut: each cut moves all that are left."""


class DeadlineQueue:
    """Requests by (deadline, id): those of one deadline in the order of arrival."""

    __slots__ = ("_entries", "_first", "_max_bytes", "_max_length", "bytes", "items")

    def __init__(self, max_length: int, max_bytes: int) -> None:
        if max_length < 1 or max_bytes < 1:
            raise UsageError(f"a queue of {max_length} requests and {max_bytes} bytes", "give bounds above 0")
        self._entries: list[tuple[int, int, InferenceRequest]] = []
        self._first = 0
        self._max_length, self._max_bytes = max_length, max_bytes
        self.bytes = 0
        """Of the requests that wait."""
        self.items = 0
        """Of the requests that wait."""

    def __len__(self) -> int:
        return len(self._entries) - self._first

    def refuses(self, request: InferenceRequest) -> RefusalCode | None:
        """Which bound the request would exceed; None: it fits."""
        if len(self._entries) - self._first >= self._max_length:
            return RefusalCode.QUEUE_FULL
        return RefusalCode.QUEUE_BYTES if self.bytes + request.bytes > self._max_bytes else None

    def is_last(self, request: InferenceRequest) -> bool:
        """Whether the request would be the last of the queue."""
        return not len(self) or (request.deadline_us, request.id) > self._entries[-1][:2]

    def push(self, request: InferenceRequest) -> None:
        """Add a request, whatever the bounds: they are asked of ``refuses``, and a batch that failed returns beyond them."""
        entry = (request.deadline_us, request.id, request)
        if self.is_last(request):
            self._entries.append(entry)
        else:
            insort(self._entries, entry, lo=self._first)
        self.bytes += request.bytes
        self.items += request.items

    def fitting(self, items: int, index: int = 0) -> tuple[int, int]:
        """(requests, items) of the longest row of requests from ``index`` on that has at most so many items."""
        if self.items == len(self):
            count = min(items, len(self) - index)
            return count, count
        count = found = 0
        for entry in islice(self._entries, self._first + index, None):
            if found + entry[2].items > items:
                break
            count, found = count + 1, found + entry[2].items
        return count, found

    def at(self, index: int) -> InferenceRequest:
        """The request that many places behind the first."""
        return self._entries[self._first + index][2]

    def pop(self, count: int) -> list[InferenceRequest]:
        """Remove and return the first ``count``."""
        stop = self._first + count
        taken = [entry[2] for entry in self._entries[self._first : stop]]
        self._first = stop
        if stop > _COMPACT or stop == len(self._entries):
            del self._entries[:stop]
            self._first = 0
        self.bytes -= sum(request.bytes for request in taken)
        self.items -= sum(request.items for request in taken)
        return taken

    def remove(self, request: InferenceRequest) -> bool:
        """Take one request out wherever it is; False when it does not wait here."""
        key = (request.deadline_us, request.id)
        index = bisect_left(self._entries, key, lo=self._first)
        if index == len(self._entries) or self._entries[index][:2] != key:
            return False
        del self._entries[index]
        self.bytes -= request.bytes
        self.items -= request.items
        return True
