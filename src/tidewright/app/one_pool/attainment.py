"""Which part of a day's requests a number of replicas answered within the objective, and which constant number would have."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy
from msgspec import Struct
from numpy.typing import NDArray

from ...base.units import SECOND
from ...serve.fluid import ServiceFlow

GOOD_BIN = 0.99
"""A recorded bin in which so many of the requests are answered in time counts as good."""

Stretch = tuple[int, int, int]
"""(from, to, replicas that answer), microseconds."""


class Attainment(Struct, frozen=True, kw_only=True):
    """Shares. ``requests``: of all requests of the day, answered within the objective. ``bins``: of the recorded bins with
    requests, those in which 99 % were. ``worst_bin``: of the requests of the worst one."""

    requests: float
    bins: float
    worst_bin: float


def attained(
    arrivals: NDArray[numpy.int64],
    interval_us: int,
    bin_us: int,
    start_us: int,
    stretches: Sequence[Stretch],
    flow: ServiceFlow,
) -> Attainment:
    """``arrivals``: of each interval from ``start_us`` on, which ``stretches`` cover without a gap."""
    offered, within = numpy.zeros(len(arrivals)), numpy.zeros(len(arrivals))
    offered += arrivals
    rates = (arrivals * (SECOND / interval_us)).tolist()
    for since, to, replicas in stretches:
        for at in range((since - start_us) // interval_us, -(-(to - start_us) // interval_us)):
            begin = start_us + at * interval_us
            part_s = (min(to, begin + interval_us) - max(since, begin)) / SECOND
            within[at] += flow.within(rates[at], replicas) * part_s
    bins = numpy.arange(len(arrivals)) * interval_us // bin_us
    by_bin, in_time = numpy.bincount(bins, offered), numpy.bincount(bins, within)
    busy = by_bin > 0
    shares = in_time[busy] / by_bin[busy]
    return Attainment(
        requests=float(within.sum() / offered.sum()),
        bins=float((shares >= GOOD_BIN).mean()),
        worst_bin=float(shares.min()),
    )


def fewest_replicas(
    of_replicas: Callable[[int], Attainment], most: int, enough: Callable[[Attainment], bool]
) -> tuple[int, Attainment]:
    """The fewest constant replicas, up to ``most``, whose attainment is enough; more replicas never have a lower one."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(of_replicas(middle)) else (middle + 1, high)
    return low, of_replicas(low)
