"""Predicted batch latency: the profile, corrected by what was measured.

Clockwork (OSDI'20) predicts an action by a high percentile of its latest measurements. Here the window holds the ratio of
measured to profiled latency over all sizes, since most sizes are rare; it starts full of the profile itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from ..base.errors import UsageError
from .profile import BatchProfile, LatencyTable

_STEP = 10
"""Ratios are rounded up to this many thousandths, so that few tables exist."""


class LatencyPredictor:
    """``quantile`` of the ratios of the last ``window`` batches, nearest rank; ``table`` holds what is predicted now."""

    def __init__(
        self, profile: BatchProfile, max_batch: int | None = None, *, window: int = 100, quantile: float = 0.99
    ) -> None:
        if window < 1 or not 0 < quantile <= 1:
            raise UsageError(
                f"no quantile {quantile} of {window} batches", "give a window >= 1 and a quantile in (0, 1]"
            )
        self._profiled = profile.table(max_batch)
        self._recent = deque([1000] * window)
        self._sorted = [1000] * window
        self._rank = math.ceil(quantile * window) - 1
        self._permille = 1000
        self._tables = {1000: self._profiled}
        self.table: LatencyTable = self._profiled

    def observed(self, batch: int, latency_us: int) -> bool:
        """A batch of this size took so long. Returns whether predictions changed."""
        ratio = -(-latency_us * 1000 // self._profiled.us[batch])
        del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(ratio)
        insort(self._sorted, ratio)
        permille = max(_STEP, -(-self._sorted[self._rank] // _STEP) * _STEP)
        if permille == self._permille:
            return False
        self._permille = permille
        if permille not in self._tables:
            self._tables[permille] = self._profiled.scaled(permille)
        self.table = self._tables[permille]
        return True
