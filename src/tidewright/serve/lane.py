"""One model of a pool at work: its queues, its batching policy, what is predicted of it and the load that it has."""

from __future__ import annotations

from dataclasses import dataclass

from .batching.registry import make_batcher
from .predictor import LatencyPredictor
from .profile import BatchProfile
from .queue import DeadlineQueue
from .rate import ArrivalRate

_RATE_BUCKETS = 8
_BUCKETS_PER_OBJECTIVE = 2


@dataclass(frozen=True)
class ServedModel:
    """One model of a pool. ``objective_us``: from arrival to completion; ``max_batch`` None: as large as the profile goes.

    ``batching``: a policy with its settings, as ``make_batcher`` reads it. The queue holds up to ``max_queue`` requests and
    ``max_queue_bytes`` of inputs, of each class.
    """

    name: str
    profile: BatchProfile
    objective_us: int
    batching: str = "deferred"
    max_batch: int | None = None
    max_queue: int = 100_000
    max_queue_bytes: int = 1 << 30


class ModelLane:
    """One model at work: its queues, its batching policy and what is predicted of it."""

    def __init__(self, served: ServedModel, refuses_late: bool) -> None:
        self.serve_as(served)
        self.queue = DeadlineQueue(served.max_queue, served.max_queue_bytes)
        self.best_effort = DeadlineQueue(served.max_queue, served.max_queue_bytes)
        self.target = 1
        """The batch that the load needs at present."""
        self._refuses_late = refuses_late

    def serve_as(self, served: ServedModel) -> None:
        """The objective, the policy and the profile from now on; what waits stays, with the deadlines that it has."""
        batcher = make_batcher(served.batching, served.objective_us)
        predictor = LatencyPredictor(served.profile, served.max_batch)
        self.served, self.batcher, self.predictor = served, batcher, predictor
        self.rate = ArrivalRate(max(1, served.objective_us // _BUCKETS_PER_OBJECTIVE), _RATE_BUCKETS)

    @property
    def us(self) -> list[int]:
        return self.predictor.table.us

    def size(self, start_us: int, first_deadline_us: int, waiting: int, first: int) -> int:
        """As PlannedLane says. Where late requests are served, a batch of them is as large as it can be."""
        table = self.predictor.table
        if self._refuses_late and first_deadline_us - start_us < table.us[first]:
            return 0
        size = self.batcher.size(start_us, first_deadline_us, waiting, table)
        if not size:
            return 0 if self._refuses_late else min(waiting, table.max_batch)
        return max(size, first)  # a request above the policy's limit is a batch of its own

    def window(self, now_us: int) -> tuple[int, int, int]:
        """(requests, earliest start, latest start) of the candidate; the queue is not empty and its first not refused as late."""
        first, waiting = self.queue.at(0), self.queue.items
        size = self.size(now_us, first.deadline_us, waiting, first.items)
        count, items = self.queue.fitting(size)
        earliest_us = self.batcher.earliest(now_us, first.arrived_us, first.deadline_us, waiting, self.predictor.table)
        return count, earliest_us, first.deadline_us - self.us[items]
