"""Deferred batching (Symphony, arXiv 2308.07470): wait for as long as one more request would still fit.

The candidate of a queue is the largest batch B that meets its earliest deadline d. With l the latency by size, it may be
dispatched in the window [d - l(|B| + 1), d - l(|B|)]: before that (*frontrun*) a further request could still join it, after
it (*latest*) d is missed. A batch that is full, or that leaves requests behind, starts at once. The replica that a batch
takes is the lowest numbered of those free, so that under low load the others stay idle.
"""

from __future__ import annotations

from ..profile import LatencyTable
from .deadline import DeadlineBatcher


class DeferredBatcher(DeadlineBatcher):
    """``slack_us``: how much earlier than the window says, for what dispatching itself takes."""

    name = "deferred"

    def __init__(self, objective_us: int, *, slack_us: int = 0) -> None:
        super().__init__(objective_us)
        self._slack_us = slack_us

    def earliest(
        self, now_us: int, first_arrived_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable
    ) -> int:
        if waiting >= latency.max_batch:
            return now_us
        return first_deadline_us - latency.us[waiting + 1] - self._slack_us
