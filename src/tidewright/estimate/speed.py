"""Speed of a job on part of its allotment, relative to the full allotment."""

from __future__ import annotations

from ..model.table import Column

FULL = 1_000
"""Thousandths of full speed on the full allotment."""


def speed_milli(devices: int, demand: int) -> int:
    """Thousandths of full speed on ``devices`` of ``demand``: linear, because the world size is constant and ranks
    share devices in turns (time-slicing measured within 6 % of linear: Singularity, arXiv 2202.07848, figure 4)."""
    return min(FULL, devices * FULL // max(demand, 1))


def saved_us(remaining: Column, before: Column, after: Column, demand: Column) -> Column:
    """Run time saved by growing from ``before`` to ``after`` devices with ``remaining`` full-speed µs to go."""
    return remaining * demand / before - remaining * demand / after
