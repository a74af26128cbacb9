"""Additive increase, multiplicative decrease of the largest batch (Clipper, NSDI'17, section 4.3).

The largest batch grows by ``step`` with each full batch that completed within the objective and shrinks to ``backoff`` of the
batch that did not. Delayed batching (section 4.3.2): a batch that is not full waits until its first request has waited
``timeout_us``.
"""

from __future__ import annotations

from ...base.errors import UsageError
from ..profile import LatencyTable


class AimdBatcher:
    """``step`` requests up, down to ``backoff`` (Clipper: 0.9) of it; ``timeout_us`` 0: no batch is delayed."""

    name = "aimd"

    def __init__(self, objective_us: int, *, step: int = 1, backoff: float = 0.9, timeout_us: int = 0) -> None:
        if step < 1 or not 0 < backoff < 1 or timeout_us < 0:
            raise UsageError(
                f"aimd:step={step},backoff={backoff},timeout={timeout_us}us is no policy",
                "give step >= 1, 0 < backoff < 1 and timeout >= 0",
            )
        self._objective_us = objective_us
        self._step, self._backoff, self._timeout_us = step, backoff, timeout_us
        self.limit = 1
        """The largest batch at present."""

    def size(self, start_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable) -> int:
        return min(waiting, self.limit, latency.max_batch)

    def earliest(
        self, now_us: int, first_arrived_us: int, first_deadline_us: int, waiting: int, latency: LatencyTable
    ) -> int:
        full = waiting >= min(self.limit, latency.max_batch)
        return now_us if full else first_arrived_us + self._timeout_us

    def completed(self, batch: int, latency_us: int) -> None:
        if latency_us > self._objective_us:
            self.limit = max(1, min(self.limit, int(batch * self._backoff)))
        elif batch >= self.limit:  # a smaller batch says nothing about the largest
            self.limit = batch + self._step
