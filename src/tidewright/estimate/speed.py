"""Speed of a job on part of its allotment, relative to the full allotment."""

from __future__ import annotations

import numpy as np

from ..model.board import kind_of
from ..model.rate import FULL_RATE
from ..model.splice import OVERHEAD_MILLI, time_slices
from ..model.table import Column
from ..model.view import View


def useful(devices: int, ranks: int, demand: int) -> int:
    """Fewest devices on which the job is as fast as on ``devices``: 8 ranks take two turns on 7 devices as on 4."""
    if devices >= demand or ranks < demand:
        return min(devices, demand)
    return -(-ranks // time_slices(ranks, devices))


def slowdown(devices: Column, ranks: Column, demand: Column) -> Column:
    """Run time on ``devices`` over run time on ``demand``, at least 1. Shape of the columns, float64."""
    before, after = -(-ranks // np.maximum(demand, 1)), -(-ranks // np.maximum(devices, 1))
    shared = after / np.maximum(before, 1) * np.where((before <= 1) & (after > 1), 1 + OVERHEAD_MILLI / 1000, 1.0)
    slow = np.where(ranks < demand, demand / np.maximum(devices, 1), shared)
    found: Column = np.where(devices >= demand, 1.0, np.maximum(slow, 1.0))
    return found


def saved_us(view: View, rows: Column, remaining: Column, after: Column) -> Column:
    """Run time saved by growing running ``rows`` to ``after`` devices of their kind with ``remaining`` full-speed µs to go."""
    jobs = view.jobs
    before, demand, ranks = jobs.held[rows], jobs.demand[rows], jobs.ranks[rows]
    if view.rates is None or not view.rates.by_kind:
        plain: Column = remaining * (slowdown(before, ranks, demand) - slowdown(after, ranks, demand))
        return plain
    slow = [[FULL_RATE / rate for rate in _rates(view, row, count)] for row, count in zip(rows, after, strict=True)]
    found: Column = remaining * (np.array(slow) @ (1.0, -1.0))
    return found


def _rates(view: View, row: int, count: int) -> tuple[int, int]:
    """Rates of a running row: now, and on ``count`` devices of its kind."""
    assert view.rates is not None
    job, allocation = view.rated(row), view.allocations[view.jobs.id.item(row)]
    return max(view.jobs.rate.item(row), 1), view.rates.rate(job, kind_of(view.layout, allocation), int(count))
