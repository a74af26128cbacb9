"""The largest batch that meets the earliest deadline, as soon as a replica is free.

How Clockwork forms batches (OSDI'20: the largest batch that completes in time). A request that cannot complete in time is
not run unless nothing refuses it; then the batch is the largest there is, for nothing can be lost.
"""

from __future__ import annotations

from ..profile import LatencyTable


class DeadlineBatcher:
    name = "deadline"

    def __init__(self, objective_us: int) -> None:
        pass  # deadlines say it all

    def size(self, start_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable) -> int:
        return min(waiting, latency.largest(first_deadline_us - start_us))

    def earliest(
        self, now_us: int, first_arrived_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable
    ) -> int:
        return now_us

    def completed(self, batch: int, latency_us: int) -> None:
        pass
