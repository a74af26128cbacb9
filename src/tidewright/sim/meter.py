"""The meter: how many jobs wait and how many devices are held, integrated exactly and sampled for plots.

It refuses to know jobs; it sees only counts go up and down.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..base.units import SECOND

SLOTS = 512
"""Most samples kept; when they run out, neighbours are merged and the width doubles."""


class Series(Struct, frozen=True, kw_only=True):
    """Averages over equal stretches of time, each ``width_us`` long and the first beginning at 0."""

    width_us: int
    queued: tuple[float, ...]
    held_devices: tuple[float, ...]


class PoolMeter:
    """Areas under two step functions, as Python ints: sums of device-time outgrow 64 bits."""

    __slots__ = ("_held", "_queued", "_width", "at", "held_area", "held_milli", "queued", "queued_area")

    def __init__(self) -> None:
        self.at = 0
        self.queued = 0
        self.held_milli = 0
        self.queued_area = 0
        """Job-microseconds waited."""
        self.held_area = 0
        """Milli-device-microseconds held."""
        self._width = SECOND
        self._queued = [0] * SLOTS
        self._held = [0] * SLOTS

    def advance(self, now: int) -> None:
        """Count the time until ``now`` at the present levels."""
        elapsed = now - self.at
        if not elapsed:
            return
        self.queued_area += self.queued * elapsed
        self.held_area += self.held_milli * elapsed
        while now > self._width * SLOTS:
            self._queued, self._held = _halved(self._queued), _halved(self._held)
            self._width *= 2
        at, width = self.at, self._width
        while at < now:
            slot = at // width
            stop = min(now, (slot + 1) * width)
            self._queued[slot] += self.queued * (stop - at)
            self._held[slot] += self.held_milli * (stop - at)
            at = stop
        self.at = now

    def series(self) -> Series:
        """The samples so far; the last one averages over the part of its stretch that has passed."""
        width, used = self._width, -(-self.at // self._width)
        spans = [min(width, self.at - slot * width) for slot in range(used)]
        return Series(
            width_us=width,
            queued=tuple(round(area / span, 3) for area, span in zip(self._queued, spans, strict=False)),
            held_devices=tuple(round(area / span / 1000, 3) for area, span in zip(self._held, spans, strict=False)),
        )


class ArrivalMeter:
    """Jobs of a trace from their submission to their admission, and the device-time held while they came.

    Where jobs are admitted at the starts of rounds they wait before the engine knows them: they count as queued meanwhile.
    ``delayed``: whether there are such profiles at work; otherwise submission and admission are one instant, and nothing is
    counted here. ``area`` and ``until``: milli-device-microseconds held until the latest admission, and its time.
    """

    __slots__ = ("_delayed", "_meter", "_next", "_submit", "area", "until")

    def __init__(self, meter: PoolMeter, submit: Sequence[int], delayed: bool) -> None:
        self._meter = meter
        self._submit = submit
        self._delayed = delayed
        self._next = 0
        self.area = 0
        self.until = 0

    def advance(self, now: int) -> None:
        """Count the time until ``now``, with each job that is submitted meanwhile from its submission on."""
        while self._delayed and self._next < len(self._submit) and self._submit[self._next] <= now:
            self._meter.advance(max(self._submit[self._next], self._meter.at))
            self._meter.queued += 1
            self._next += 1
        self._meter.advance(now)

    def presented(self) -> None:
        """A job is presented to the engine now."""
        self.area, self.until = self._meter.held_area, self._meter.at

    def answered(self) -> None:
        """The engine has admitted or refused a job: it counts there, or no more."""
        self._meter.queued -= self._delayed


def _halved(areas: list[int]) -> list[int]:
    return [areas[at] + areas[at + 1] for at in range(0, SLOTS, 2)] + [0] * (SLOTS // 2)
