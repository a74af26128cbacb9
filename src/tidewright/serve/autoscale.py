"""How many replicas a model needs: from the forecast rate of arrivals, the latency profile and the objective.

Predictive: Holt's double exponential smoothing (C. C. Holt, ONR memorandum 52, 1957; Int. J. Forecasting 20, 2004) of the
rate, as far ahead as a replica takes to start. Peak-hold: the most that was wanted within the last ``hold_us`` counts, so
that the number rises at once, falls late and does not flap. Reactive: what waits or is refused says that the profile or the
forecast is too optimistic. A surge is met between two looks: when what waits would keep the replicas busy for half the
objective, the rate of the last half objective counts, less two standard deviations of a Poisson count.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from ..base.errors import UsageError
from ..base.units import MINUTE, SECOND
from .profile import LatencyTable


@dataclass(frozen=True)
class ScalingSettings:
    """Bounds, times in microseconds and smoothing.

    ``minimum`` 0: no replica after ``idle_us`` without a request, and one again with the first. ``horizon_us``: what a
    replica takes to start. ``trend``: its smoothing, less where the horizon has more than ``1 / trend`` intervals.
    ``utilisation``: part of the capacity that is planned for. ``refused``: part of the requests of an interval, refused, above
    which a step is taken.
    """

    minimum: int = 1
    maximum: int = 8
    interval_us: int = SECOND
    horizon_us: int = 10 * SECOND
    hold_us: int = MINUTE
    idle_us: int = 5 * MINUTE
    level: float = 0.5
    trend: float = 0.2
    utilisation: float = 0.8
    refused: float = 0.01

    def __post_init__(self) -> None:
        if not 0 <= self.minimum <= self.maximum or self.maximum < 1:
            raise UsageError(f"{self.minimum} to {self.maximum} replicas", "give 0 <= minimum <= maximum, maximum >= 1")
        if min(self.interval_us, self.hold_us, self.idle_us) < 1 or self.horizon_us < 0:
            raise UsageError("a time of autoscaling is not positive", "give interval, hold and idle above 0")
        parts = (self.level, self.trend, self.utilisation, self.refused)
        if not all(math.isfinite(part) and 0 < part <= 1 for part in parts):
            raise UsageError(f"level, trend, utilisation, refused = {parts}", "give numbers above 0 and up to 1")


class HoltForecast:
    """Double exponential smoothing of a series with equal steps; no season."""

    def __init__(self, level: float, trend: float) -> None:
        self._level_weight, self._trend_weight = level, trend
        self._level: float | None = None
        self._trend = 0.0

    def add(self, value: float) -> None:
        """The next value of the series. Raises UsageError when it is not finite."""
        if not math.isfinite(value):
            raise UsageError(f"not a rate: {value}", "give a finite number")
        if self._level is None:
            self._level = value
            return
        before = self._level
        self._level = self._level_weight * value + (1 - self._level_weight) * (before + self._trend)
        self._trend = self._trend_weight * (self._level - before) + (1 - self._trend_weight) * self._trend

    def ahead(self, steps: float) -> float:
        """What is expected so many steps after the last value; 0 before the first."""
        return max(0.0, (self._level or 0.0) + self._trend * steps)


@lru_cache(maxsize=1024)
def replica_capacity(latency: LatencyTable, objective_us: int, replicas: int) -> float:
    """Requests per second of each of ``replicas`` that start in turn: the largest b with (1 + 1/N) l(b) <= objective.

    Symphony (arXiv 2308.07470). A batch of one at least. Raises UsageError when not even that meets the objective.
    """
    if latency.us[1] > objective_us:
        raise UsageError(
            f"a batch of one takes {latency.us[1]} us, the objective is {objective_us} us",
            "raise the objective or serve the model on a faster device",
        )
    return latency.per_second(max(1, latency.largest(objective_us * replicas // (replicas + 1))))


def replicas_for(per_second: float, latency: LatencyTable, objective_us: int, utilisation: float, most: int) -> int:
    """The fewest replicas, up to ``most``, whose planned capacity carries this rate; 0 for no arrivals."""
    if not math.isfinite(per_second) or per_second < 0:
        raise UsageError(f"not a rate of arrivals: {per_second}", "give a finite number of requests per second")
    if not per_second:
        return 0
    for count in range(1, most):
        if count * replica_capacity(latency, objective_us, count) * utilisation >= per_second:
            return count
    return most


class Autoscaler:
    """Report every arrival. Ask ``decide`` each ``settings.interval_us``, at the first request without a replica, and when
    ``surges`` says so."""

    def __init__(self, latency: LatencyTable, objective_us: int, settings: ScalingSettings | None = None) -> None:
        self.settings = settings or ScalingSettings()
        replica_capacity(latency, objective_us, 1)  # an objective that cannot be met is said at once
        self._latency, self._objective_us = latency, objective_us
        # A trend that is extrapolated over many intervals is smoothed over as many; otherwise one step of the rate is taken for a
        # rise that goes on, and the forecast overshoots it several times (docs/why/one-pool.md).
        steps = max(1.0, self.settings.horizon_us / self.settings.interval_us)
        self._forecast = HoltForecast(self.settings.level, min(self.settings.trend, 1.0 / steps))
        self._count = self._refused = 0
        self._counted_us: int | None = None
        self._last_arrival_us: int | None = None
        self._wanted: deque[tuple[int, int]] = deque()
        self._stepped_us: int | None = None
        self._window_us = max(1, objective_us // 2)
        self._recent: deque[tuple[int, int]] = deque()
        """Arrivals of the last window, and their items."""
        self._decided: int | None = None
        self._seen = 0
        self._scaled_us: int | None = None

    def arrived(self, now_us: int, refused: bool = False, items: int = 1) -> None:
        """A real-time request of so many items came, and may have been refused."""
        self._count += items
        self._refused += items * refused
        self._last_arrival_us = now_us
        self._recent.append((now_us, items))
        while self._recent[0][0] <= now_us - self._window_us:
            self._recent.popleft()

    def surges(self, waiting: int, ready: int, refused: bool = False) -> bool:
        """Whether more items wait than ``ready`` replicas serve within half the objective, or a request was refused: ask
        ``decide`` at once. Where replicas are slower than their profile, requests are refused before so many wait."""
        if not 0 < ready < self.settings.maximum:
            return False
        if refused:
            return True
        each = replica_capacity(self._latency, self._objective_us, ready)
        return waiting * SECOND > ready * each * self._window_us

    def arrived_together(self, now_us: int, count: int, refused: int) -> None:
        """So many requests came since the last look, of which so many were refused: what a simulation of whole days reports."""
        if count:
            self._count += count
            self._refused += refused
            self._last_arrival_us = now_us

    def is_asleep(self, replicas: int) -> bool:
        """Whether the next ``decide`` starts the first replica: ask it now."""
        return replicas == 0 and self._last_arrival_us is not None

    def decide(self, now_us: int, current: int, waited_us: int = 0, surge: bool = False) -> int:
        """The number of replicas from now on. ``current``: ready or starting. ``waited_us``: how long the first waits. ``surge``:
        whether ``surges`` has said so."""
        settings = self.settings
        self._notice(now_us, current)
        pressed = waited_us > self._objective_us or self._refused > settings.refused * self._count
        if self._counted_us is None or now_us - self._counted_us >= settings.interval_us:
            self._observe(now_us)
        if self._idle(now_us):
            self._wanted.clear()
            self._decided = settings.minimum
            return settings.minimum
        steps = settings.horizon_us / settings.interval_us
        rate = self._forecast.ahead(steps)
        if surge:
            rate = max(rate, self._surely_per_second(now_us))
        wanted = replicas_for(rate, self._latency, self._objective_us, settings.utilisation, settings.maximum)
        if pressed and (self._stepped_us is None or now_us - self._stepped_us >= settings.horizon_us):
            wanted, self._stepped_us = max(wanted, current + max(1, current // 10)), now_us
        self._decided = min(settings.maximum, max(settings.minimum, 1, self._hold(now_us, wanted)))
        return self._decided

    def _notice(self, now_us: int, current: int) -> None:
        """Another has scaled it, or it begins: what was added is held as what was wanted here is; none stay none until a request
        comes."""
        if current not in (self._decided, self._seen):
            self._scaled_us = now_us
            if current > (self._decided or 0):
                self._hold(now_us, current)
            else:
                self._wanted.clear()
            if not current:
                self._last_arrival_us = self._scaled_us = None
        self._seen = current

    def _surely_per_second(self, now_us: int) -> float:
        """The rate of the last window, less twice the deviation that chance gives it (compound Poisson)."""
        items = [count for at, count in self._recent if at > now_us - self._window_us]
        deviation = math.sqrt(sum(count * count for count in items))
        return max(0.0, sum(items) - 2 * deviation) * SECOND / self._window_us

    def _observe(self, now_us: int) -> None:
        if self._counted_us is not None:
            self._forecast.add(self._count * SECOND / (now_us - self._counted_us))
        self._count = self._refused = 0
        self._counted_us = now_us

    def _idle(self, now_us: int) -> bool:
        last = max((at for at in (self._last_arrival_us, self._scaled_us) if at is not None), default=None)
        return self.settings.minimum == 0 and (last is None or now_us - last >= self.settings.idle_us)

    def _hold(self, now_us: int, wanted: int) -> int:
        """The most that was wanted within the hold: a queue whose values fall from front to back."""
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_us, wanted))
        while self._wanted[0][0] <= now_us - self.settings.hold_us:
            self._wanted.popleft()
        return self._wanted[0][1]
