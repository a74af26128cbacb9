"""Who is admitted: what is predicted to complete after its deadline is refused at once (Clockwork, OSDI'20).

Feasible is not enough under overload. A request that just makes its deadline at the head of a batch allows no other to join
it, so that batches, and with them throughput, collapse to one. So a request that would be the first of a later batch must
leave time for a batch of the size that the load needs: early drop (Nexus, SOSP'19, section 6.3), decided at arrival instead
of in the queue.
"""

from __future__ import annotations

from enum import StrEnum

from ..base.units import SECOND
from .lookahead import BatchPlace
from .profile import LatencyTable
from .request import RefusalCode


class AdmissionRule(StrEnum):
    """What is refused, besides what the bounds of the queue refuse."""

    NONE = "none"
    """Nothing: late requests are served late."""
    LATE = "late"
    """What waits and can no longer complete in time (lazy drop, as in Clipper)."""
    DEADLINE = "deadline"
    """That, and at arrival what is predicted to complete late or to make batches too small for the load."""


def target_batch(latency: LatencyTable, replicas: float, per_second: float, objective_us: int) -> int:
    """The batch that the load needs: the smallest with which so many replicas serve ``per_second``, if it can fill in time.

    Where no size suffices, the one of the highest throughput. "In time": it fills at that rate and completes within the
    objective, ``l(b) + b / rate <= objective``; at full load that is Symphony's ``(1 + 1/N) l(b) <= objective`` for N replicas
    that start in turn (arXiv 2308.07470).
    """
    best, best_rate = 1, 0.0
    for size in range(1, latency.max_batch + 1):
        us = latency.us[size]
        if us + size * SECOND / max(per_second, 1e-9) > objective_us:
            break
        rate = replicas * size * SECOND / us
        if rate > best_rate:
            best, best_rate = size, rate
        if rate >= per_second:
            break
    return best


def verdict(place: BatchPlace, now_us: int, deadline_us: int, target_us: int) -> RefusalCode | None:
    """Why a request that would run at ``place`` is refused. ``target_us``: latency of the batch that the load needs."""
    if not place.in_time:
        return RefusalCode.DEADLINE
    if place.first and place.start_us > now_us and place.start_us + target_us > deadline_us:
        return RefusalCode.OVERLOAD
    return None


def retry_after_s(start_us: int, now_us: int, needed_us: int, objective_us: int) -> int:
    """Whole seconds after which a request that comes then would be in time, if nothing else comes: at least 1.

    A batch behind all that wait starts at ``start_us`` and takes ``needed_us``; the request has ``objective_us``.
    """
    wait_us = start_us + needed_us - objective_us - now_us
    return max(1, -(-wait_us // SECOND))
