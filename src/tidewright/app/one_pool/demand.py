"""The demand of a service over a recorded day: arrivals by the recorded rates, replicas by the autoscaler that serves live."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray

from ...base.rng import stream_seed
from ...base.units import SECOND
from ...serve.arrivals import RateCurve
from ...serve.autoscale import Autoscaler
from ...serve.fluid import ServiceFlow


class DayOfRequests:
    """A curve of rates, begun again when it ends, whose highest bin has ``peak_per_second`` requests a second."""

    def __init__(self, curve: RateCurve, peak_per_second: float) -> None:
        scale = peak_per_second / max(curve.rates)
        self.rates: NDArray[numpy.float64] = numpy.array(curve.rates) * scale
        """Requests per second, by bin."""
        self.bin_us = curve.bin_us
        self.length_us = curve.bin_us * len(curve.rates)

    def arrivals(self, interval_us: int, until_us: int, seed: int) -> NDArray[numpy.int64]:
        """Requests in each interval from 0 on: of a Poisson process with the rate in the middle of the interval."""
        middles = numpy.arange(0, until_us, interval_us) + interval_us // 2
        rates = self.rates[middles % self.length_us // self.bin_us]
        draw = numpy.random.default_rng(stream_seed(seed, "requests of a day"))
        return draw.poisson(rates * (interval_us / SECOND)).astype(numpy.int64)


class RecordedDemand:
    """Asks the autoscaler at each of its intervals, after it was given what arrived in the last one and was refused.

    Refused is what the replicas that answered could not have carried in time (``serve.fluid``).
    """

    def __init__(self, arrivals: NDArray[numpy.int64], scaler: Autoscaler, flow: ServiceFlow) -> None:
        self._arrivals, self._scaler, self._flow = arrivals.tolist(), scaler, flow
        self._interval_us = scaler.settings.interval_us
        self.next_us = 0

    def wanted(self, now_us: int, ready: int, current: int) -> int:
        """Replicas from now on."""
        seconds = self._interval_us / SECOND
        while self.next_us <= now_us:
            past = self.next_us // self._interval_us - 1
            count = self._arrivals[past] if 0 <= past < len(self._arrivals) else 0
            carried = int(self._flow.within(count / seconds, ready) * seconds)
            self._scaler.arrived_together(self.next_us, count, count - carried if ready else 0)
            self.next_us += self._interval_us
        return self._scaler.decide(now_us, current)
