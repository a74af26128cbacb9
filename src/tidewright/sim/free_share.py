"""How much of the free device-time was of use to jobs like the trace's. It refuses to know who could have run there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..model.board import Board
from ..model.node import NodeSpec
from ..placement.fragmentation import fragmentation
from .trace import Trace

SAMPLES = 1_000
"""Taken at equal distances until the last submission."""


class FreeDevices:
    """Samples of a board; between two of them it counts as it was at the second.

    A job asks for min(its devices, those of the largest node) on one node; jobs weigh by how often the trace has them.
    """

    __slots__ = ("_demands", "_free", "_lost", "_step", "_until", "due")

    def __init__(self, trace: Trace, nodes: Sequence[NodeSpec]) -> None:
        largest = max((node.devices for node in nodes), default=1)
        self._demands = {
            devices: float(often)
            for devices, often in sorted(Counter(min(k, largest) for k in trace.devices.tolist()).items())
        }
        self._until = int(trace.submit[-1])
        self._step = max(self._until // SAMPLES, 1)
        self._free = self._lost = 0.0
        self.due = self._step
        """When the next sample is taken at the latest, microseconds; beyond any run's end after the last submission."""

    def sample(self, now: int, board: Board) -> None:
        """Count the board, which is as it has been since the last event, for every sample that is due by ``now``."""
        samples = (min(now, self._until) - self.due) // self._step + 1
        if samples > 0:
            free = samples * sum(board.free_total)
            self._free += free
            self._lost += free * fragmentation(board, self._demands)
            self.due += samples * self._step
        if now >= self._until:
            self.due = 2**63

    @property
    def fragmentation(self) -> float:
        """Share of the free device-time that too few devices on a node made useless to a job drawn from the trace; 0 to 1."""
        return self._lost / self._free if self._free else 0.0
