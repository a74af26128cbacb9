"""Speed of a job on part of its allotment, relative to the full allotment."""

from __future__ import annotations

import numpy as np

from ..model.splice import FULL_SPEED, OVERHEAD_MILLI, time_slices
from ..model.splice import speed_milli as speed_milli  # the ledger charges by it too, so it is a fact of the model
from ..model.table import Column

FULL = FULL_SPEED
"""Thousandths of full speed on the full allotment."""


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


def saved_us(remaining: Column, before: Column, after: Column, demand: Column, ranks: Column) -> Column:
    """Run time saved by growing from ``before`` to ``after`` devices with ``remaining`` full-speed µs to go."""
    saved: Column = remaining * (slowdown(before, ranks, demand) - slowdown(after, ranks, demand))
    return saved
