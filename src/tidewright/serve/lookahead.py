"""What becomes of the requests that wait if nothing else arrives: batches in the order in which the router would dispatch them.

Each replica, as soon as it is free, takes the batch whose latest start comes first. Without noise this is what happens, so a
request that completes in time here does so in truth. Cost: one step per batch, but one in all when a request joins the end of
the only queue (the usual case: with one objective, deadlines rise with arrival).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Protocol

from .queue import DeadlineQueue
from .request import InferenceRequest


class PlannedLane(Protocol):
    """What the look-ahead reads of one model."""

    queue: DeadlineQueue

    @property
    def us(self) -> list[int]:
        """Predicted latency by size, microseconds."""

    def size(self, start_us: int, first_deadline_us: int, waiting: int, first: int) -> int:
        """How many of so many waiting items a batch may take, at least those of the ``first`` request; 0: it is late."""


@dataclass(slots=True)
class _Batch:
    lane: PlannedLane
    start_us: int
    items: int
    first_deadline_us: int
    first: int
    """Items of the first request."""
    count: int = 1
    """Requests."""

    @property
    def end_us(self) -> int:
        return self.start_us + self.lane.us[self.items]

    def size_with(self, start_us: int, more: int) -> int:
        """Items that it may take when it starts then and so many more wait."""
        return self.lane.size(start_us, self.first_deadline_us, self.items + more, self.first)


@dataclass(frozen=True, slots=True)
class BatchPlace:
    """Where a request would run: when its batch starts, whether it is the first of it, and whether all stay in time."""

    start_us: int
    first: bool
    in_time: bool


class Lookahead:
    """The plan of one router. ``free_us``: when each replica is free, by replica; the router keeps it up to date."""

    def __init__(self, lanes: Sequence[PlannedLane], free_us: Mapping[int, int]) -> None:
        self._lanes, self._free_us = lanes, free_us
        self._until_us = -1  # the plan made last holds up to then
        self._heap: list[tuple[int, int]] = []  # (free, replica), without that of the last batch
        self._last: _Batch | None = None
        self._batches = -1  # planned; -1: there is no plan

    def invalidate(self) -> None:
        """Queues or replicas changed in another way than by ``append``."""
        self._until_us = -1
        self._batches = -1

    def late(self, start_us: int) -> int:
        """How many batches and refused requests are late when dispatching begins at ``start_us``."""
        self.invalidate()
        return self._run(start_us, None)[0]

    def next_start(self, now_us: int) -> int:
        """When a batch behind all others would start, microseconds."""
        self._refresh(now_us)
        return max(now_us, self._next_free())

    def place(self, now_us: int, lane: PlannedLane, request: InferenceRequest) -> BatchPlace:
        """Where the request would run. At least one replica must exist."""
        if len(self._lanes) == 1 and lane.queue.is_last(request):
            return self._place_last(now_us, lane, request)
        before = self.late(now_us)
        lane.queue.push(request)
        after, found = self._run(now_us, request)
        lane.queue.remove(request)
        self.invalidate()
        start_us, first = found or (now_us, True)
        return BatchPlace(start_us, first, found is not None and after <= before)

    def append(self, now_us: int, lane: PlannedLane, request: InferenceRequest, place: BatchPlace) -> None:
        """The request is about to be pushed to the lane, at the place that was just found for it."""
        if now_us > self._until_us or len(self._lanes) > 1 or not lane.queue.is_last(request):
            self.invalidate()
        elif not place.first and self._last is not None:
            self._last.items += request.items
            self._last.count += 1
        else:
            if self._last is not None:
                heappush(self._heap, (self._last.end_us, -1))
            heappop(self._heap)
            self._last = _Batch(lane, place.start_us, request.items, request.deadline_us, request.items)
            self._batches += 1

    def _refresh(self, now_us: int) -> None:
        """Make the plan again, unless it holds or is of at most one batch, which has waited and now starts later."""
        if now_us <= self._until_us:
            return
        last = self._last
        if self._batches == 0:
            self._until_us = now_us
        elif self._batches == 1 and last and last.size_with(now_us, 0) == last.items:
            self._until_us = last.start_us = now_us
        else:
            self._run(now_us, None)

    def _place_last(self, now_us: int, lane: PlannedLane, request: InferenceRequest) -> BatchPlace:
        self._refresh(now_us)
        last = self._last
        if last is not None:
            items = last.items + request.items
            if last.size_with(last.start_us, request.items) >= items:
                return BatchPlace(last.start_us, False, last.start_us + lane.us[items] <= last.first_deadline_us)
        start_us = max(self._next_free(), now_us)
        size = lane.size(start_us, request.deadline_us, request.items, request.items)
        return BatchPlace(start_us, True, size > 0 and start_us + lane.us[request.items] <= request.deadline_us)

    def _next_free(self) -> int:
        free = self._heap[0][0] if self._heap else None
        if self._last is None:
            return free or 0
        return self._last.end_us if free is None else min(free, self._last.end_us)

    def _run(self, start_us: int, watched: InferenceRequest | None) -> tuple[int, tuple[int, bool] | None]:
        """(late, (start, first) of the watched request, if it runs). The plan stays as the present one."""
        heap = self._heap = [(max(start_us, free), replica) for replica, free in self._free_us.items()]
        heapify(heap)
        self._until_us = heap[0][0] if heap else start_us
        self._last, self._batches = None, 0
        taken, left = [0] * len(self._lanes), [lane.queue.items for lane in self._lanes]
        late, found, entry = 0, None, None
        while heap:
            now_us, replica = heap[0]
            batch, index, refused = self._choose(now_us, taken, left)
            late += refused
            if batch is None:
                break
            if watched is not None and found is None and batch.lane.queue.at(taken[index]).model == watched.model:
                found = self._found(batch, taken[index], watched)
            late += batch.end_us > batch.first_deadline_us
            taken[index] += batch.count
            left[index] -= batch.items
            self._last, entry = batch, (batch.end_us, replica)
            heapreplace(heap, entry)
            self._batches += 1
        if entry is not None:  # the last batch may still grow
            heap.remove(entry)
            heapify(heap)
        return late, found

    def _choose(self, now_us: int, taken: list[int], left: list[int]) -> tuple[_Batch | None, int, int]:
        """The batch that has to start first, its lane's index, and how many requests were refused as late. By lane, ``taken``:
        requests that are planned or refused; ``left``: items of the others."""
        best, chosen, best_latest, refused = None, -1, 0, 0
        for index, lane in enumerate(self._lanes):
            size = 0
            while not size and taken[index] < len(lane.queue):
                first = lane.queue.at(taken[index])
                size = lane.size(now_us, first.deadline_us, left[index], first.items)
                if not size:
                    taken[index] += 1
                    left[index] -= first.items
                    refused += 1
            if size:
                count, items = lane.queue.fitting(size, taken[index])
                latest_us = first.deadline_us - lane.us[items]
                if best is None or latest_us < best_latest:
                    best, chosen = _Batch(lane, now_us, items, first.deadline_us, first.items, count), index
                    best_latest = latest_us
        return best, chosen, refused

    @staticmethod
    def _found(batch: _Batch, first: int, watched: InferenceRequest) -> tuple[int, bool] | None:
        for place in range(first, first + batch.count):
            if batch.lane.queue.at(place) is watched:
                return batch.start_us, place == first
        return None
