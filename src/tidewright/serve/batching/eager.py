"""Eager batching: whatever waits, as soon as a replica is free, up to the largest batch.

What a server does without a batching policy (the baseline of Nexus, SOSP'19, and of Symphony, arXiv 2308.07470).
Deadlines order the queue and have no other effect.
"""

from __future__ import annotations

from ..profile import LatencyTable


class EagerBatcher:
    """``max_batch``: of a batch; 0: as large as the profile goes."""

    name = "eager"

    def __init__(self, objective_us: int, *, max_batch: int = 0) -> None:
        self.max_batch = max_batch

    def size(self, start_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable) -> int:
        limit = min(self.max_batch, latency.max_batch) if self.max_batch else latency.max_batch
        return min(waiting, limit)

    def earliest(
        self, now_us: int, first_arrived_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable
    ) -> int:
        return now_us

    def completed(self, batch: int, latency_us: int) -> None:
        pass
