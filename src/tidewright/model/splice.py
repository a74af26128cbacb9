"""Splicing: the ranks of a job share fewer devices than it asked for by taking turns, so its world size never changes."""

from __future__ import annotations

FULL_SPEED = 1_000
"""Thousandths of full speed on the full allotment."""
LINEAR = -1
"""As an overhead: speed in proportion to devices, whatever the number of ranks (how journals before splicing were kept)."""
OVERHEAD_MILLI = 60
"""Thousandths that taking turns adds: within 6 % (Singularity, arXiv 2202.07848, section 6)."""


def time_slices(ranks: int, devices: int) -> int:
    """Most ranks that share one device: they run one after the other, and the others wait for the slowest device."""
    return max(1, -(-ranks // max(devices, 1)))


def speed_milli(ranks: int, devices: int, demand: int, overhead_milli: int = OVERHEAD_MILLI) -> int:
    """Thousandths of the speed on ``demand`` devices that ``ranks`` ranks have on ``devices``; at least 1.

    Ranks with several devices each cannot share them; what such a job gains is taken as linear.
    """
    if devices >= demand:
        return FULL_SPEED
    if overhead_milli == LINEAR or ranks < demand:
        return max(1, devices * FULL_SPEED // max(demand, 1))
    before, after = time_slices(ranks, demand), time_slices(ranks, devices)
    if after == before:
        return FULL_SPEED
    scale = FULL_SPEED if before > 1 else FULL_SPEED + overhead_milli
    return max(1, FULL_SPEED * FULL_SPEED * before // (after * scale))
