"""Predicted batch latency: the profile, corrected by what was measured.

Clockwork (OSDI'20) predicts an action by a high percentile of its latest ten measurements. Here they are the ratios of measured
to profiled latency over all sizes, since most sizes are rare, and as many of them as are recent. What is older is forgotten: else
requests that would be in time again were refused after a slow spell of the machine, for the sake of batches long past, and
refusing them is what keeps new batches from coming.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque

from ..base.errors import UsageError
from ..base.units import SECOND
from .profile import BatchProfile, LatencyTable

_STEP = 10
"""Ratios are rounded up to this many thousandths, so that few tables exist."""


class LatencyPredictor:
    """The ``quantile`` of the ratios of the last ``window`` batches; ``table`` holds what is predicted now.

    Batches that ended ``memory_us`` ago count no more, except the latest ``least``. As many as the quantile leaves out of a full
    window are left out of a smaller one: one in 100 may take longer without changing anything. It starts with the profile itself.
    """

    def __init__(
        self,
        profile: BatchProfile,
        max_batch: int | None = None,
        *,
        window: int = 100,
        quantile: float = 0.99,
        memory_us: int = 5 * SECOND,
        least: int = 10,
    ) -> None:
        if window < 1 or not 0 < quantile <= 1:
            raise UsageError(
                f"no quantile {quantile} of {window} batches", "give a window >= 1 and a quantile in (0, 1]"
            )
        self._profiled = profile.table(max_batch)
        self._window, self._memory_us = window, memory_us
        self._left_out = window - math.ceil(quantile * window)
        self._least = max(1 + self._left_out, min(least, window))
        self._recent: deque[tuple[int | None, int]] = deque([(None, 1000)] * self._least)
        """(when, ratio); None: the profile says so."""
        self._sorted = [1000] * self._least
        self._permille = 1000
        self._tables = {1000: self._profiled}
        self.table: LatencyTable = self._profiled

    def observed(self, batch: int, latency_us: int, now_us: int) -> bool:
        """A batch of this size took so long, and ended now. Returns whether predictions changed."""
        ratio = -(-latency_us * 1000 // self._profiled.us[batch])
        self._recent.append((now_us, ratio))
        insort(self._sorted, ratio)
        while len(self._recent) > self._window or (len(self._recent) > self._least and self._is_old(now_us)):
            del self._sorted[bisect_left(self._sorted, self._recent.popleft()[1])]
        permille = max(_STEP, -(-self._sorted[-1 - self._left_out] // _STEP) * _STEP)
        if permille == self._permille:
            return False
        self._permille = permille
        if permille not in self._tables:
            self._tables[permille] = self._profiled.scaled(permille)
        self.table = self._tables[permille]
        return True

    def _is_old(self, now_us: int) -> bool:
        at_us = self._recent[0][0]
        return at_us is None or at_us <= now_us - self._memory_us
