"""Running jobs go to faster devices that no other job can use, where the time saved is worth the pause."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from ..estimate.cost import pause_us
from ..estimate.rates import rate_on
from ..model.cause import Code
from ..model.node import Allocation, device_count
from ..model.rate import FULL_RATE
from ..model.table import Column
from ..placement.find import place
from .compose import Composer
from .consolidate import migratable

_ROWS = 64
"""Rows that are looked at in one plan, those that run longest yet."""


def upgrade(composer: Composer, movable: Column, left: Column, gain: float) -> None:
    """Migrate running rows of ``movable`` to a kind, or nearer together, where they run faster.

    The one that runs longest yet goes first.

    ``left``: full-speed microseconds that each still has to do; the run time saved must be ``gain`` times the pause.
    """
    view, jobs = composer.view, composer.jobs
    rates = view.rates
    if rates is None or not rates.by_kind or composer.unplaced or not any(composer.board.free_total):
        return
    rows = np.flatnonzero(migratable(composer, movable) & (jobs.rate > 0))
    lasts = left[rows] / jobs.rate[rows]
    pause = pause_us(jobs)
    for row in rows[np.argsort(-lasts, kind="stable")][:_ROWS].tolist():
        found = _faster(composer, row)
        if found is None:
            continue
        allocation, rate = found
        less = left.item(row) * (FULL_RATE / jobs.rate.item(row) - FULL_RATE / rate)
        if less > gain * pause.item(row):
            composer.migrate(row, allocation, Code.FASTER_THERE(round(1000 * rate / jobs.rate.item(row))))


def _faster(composer: Composer, row: int) -> tuple[Allocation, int] | None:
    """Free devices on which a running row would be faster than now, and the rate there; those of the fastest kind."""
    view, board, jobs = composer.view, composer.board, composer.jobs
    assert view.rates is not None
    mine, layout = view.allocations[jobs.id.item(row)], view.layout
    request = composer.request(row, device_count(mine))
    job = view.rated(row)
    board.release(mine)
    best: tuple[Allocation, int] | None = None
    for kind in range(len(layout.kinds)):
        if request.kinds >> kind & 1:
            found = place(board, replace(request, groups=(1 << kind,)))
            if found is not None:
                rate = rate_on(view.rates, job, layout, found)
                if rate > (best[1] if best else jobs.rate.item(row)):
                    best = found, rate
    board.acquire(mine)
    return best
