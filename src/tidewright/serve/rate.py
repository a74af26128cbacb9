"""The rate of arrivals over a sliding window, counted in buckets. No clock: the caller says the time."""

from __future__ import annotations

from collections import deque

from ..base.errors import UsageError
from ..base.units import SECOND


class ArrivalRate:
    """Arrivals per second over the last ``buckets`` whole buckets of ``bucket_us``, or over what has passed of the first."""

    __slots__ = ("_bucket", "_bucket_us", "_buckets", "_count", "_counts", "per_second")

    def __init__(self, bucket_us: int, buckets: int = 8) -> None:
        if bucket_us < 1 or buckets < 1:
            raise UsageError(f"no window: {buckets} buckets of {bucket_us} us", "give both above 0")
        self._bucket_us, self._buckets = bucket_us, buckets
        self._counts: deque[int] = deque(maxlen=buckets)
        self._bucket: int | None = None
        self._count = 0
        self.per_second = 0.0
        """As of the last bucket that ended."""

    def add(self, now_us: int, count: int = 1) -> bool:
        """Count arrivals. Returns whether a bucket ended, and ``per_second`` with it."""
        bucket = now_us // self._bucket_us
        if bucket == self._bucket:
            self._count += count
            return False
        if self._bucket is not None:
            self._counts.append(self._count)
            for _ in range(min(bucket - self._bucket - 1, self._buckets)):
                self._counts.append(0)
            self.per_second = sum(self._counts) * SECOND / (len(self._counts) * self._bucket_us)
        self._bucket, self._count = bucket, count
        return True
