"""How often forecasts of starts have held: of each waiting job that was forecast, whether it started inside the interval."""

from __future__ import annotations

import statistics

from msgspec import Struct

KEPT = 200
"""Outcomes kept, the latest: what is said of forecasts is said of late ones."""
EARLIER, INSIDE, LATER = -1, 0, 1


class StartOutcome(Struct, frozen=True, array_like=True):
    """A start that had been forecast: before, inside or after the interval, and by how much after its middle (microseconds)."""

    where: int
    error_us: int


class StartCalibration(Struct):
    """Outcomes of forecasts, all counted and the latest kept, oldest first. Part of the book."""

    earlier: int = 0
    inside: int = 0
    later: int = 0
    recent: list[StartOutcome] = []

    def note(self, low: int, middle: int, high: int, started: int) -> None:
        """A job has ``started`` of which ``low`` to ``high`` had been forecast; ``high`` -1: no end. Absolute microseconds."""
        where = EARLIER if started < low else LATER if 0 <= high < started else INSIDE
        self.earlier += where == EARLIER
        self.inside += where == INSIDE
        self.later += where == LATER
        self.recent.append(StartOutcome(where, started - middle))
        del self.recent[:-KEPT]

    def recently(self, where: int) -> int:
        """How many of the latest outcomes are this one."""
        return sum(one.where == where for one in self.recent)

    def median_error_us(self) -> int:
        """By how much the latest starts came after the middle of their interval, in the median; 0 before the first."""
        return round(statistics.median(one.error_us for one in self.recent)) if self.recent else 0
