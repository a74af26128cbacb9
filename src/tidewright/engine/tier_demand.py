"""What the jobs in the book ask for, by tier: kept up to date as they come and go, so that the forecast of a submission costs
the same however many there are."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..model.job import Tier
from ..model.table import JobTable


class Demand(NamedTuple):
    """``of_shares``: of ``devices``, those of jobs that want only some memory of each, ``memory`` bytes in all. ``milli``:
    thousandths of devices' compute that other jobs want; they are not among ``devices``."""

    devices: int
    of_shares: int
    memory: int
    milli: int


class TierDemand:
    """Sums over all jobs that have not ended."""

    def __init__(self) -> None:
        self.sums = [[0, 0, 0, 0] for _ in Tier]

    @staticmethod
    def of(table: JobTable) -> TierDemand:
        """Counted anew."""
        found, n = TierDemand(), table.n
        tier, demand, memory, milli = (
            column[:n] for column in (table.tier, table.demand, table.memory, table.gpu_milli)
        )
        demand, memory = demand * (milli == 0), memory * (milli == 0)
        sums = np.zeros((4, len(Tier)), np.int64)
        for row, column in zip(sums, (demand, demand * (memory > 0), memory, milli), strict=True):
            np.add.at(row, tier, column)
        found.sums = sums.T.tolist()
        return found

    def add(self, tier: int, devices: int, memory: int, milli: int = 0, sign: int = 1) -> None:
        """A job asks for so many devices, and of each for ``milli`` thousandths of its compute, or for ``memory`` bytes (both 0:
        whole ones). ``sign`` -1: it no longer does."""
        sums = self.sums[tier]
        if milli:
            sums[3] += sign * milli
            return
        sums[0] += sign * devices
        if memory:
            sums[1] += sign * devices
            sums[2] += sign * memory

    def at_least(self, tier: int) -> Demand:
        """Of the jobs of a tier and of higher ones."""
        return Demand(*(sum(column) for column in zip(*self.sums[tier:], strict=True)))
