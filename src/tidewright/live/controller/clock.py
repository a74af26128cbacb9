"""The engine's clock: monotonic deltas on a persisted wall-clock base.

Within one boot of the machine it never looks at the wall clock again, not even after a restart; after a reboot it
starts from the wall clock or from the last time it ever gave, whichever is later. So it never runs backwards.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from ...base.atomic import write_atomically

FILE = "clock.json"


class Base(Struct, frozen=True):
    """At ``steady_us`` of the boot ``boot`` it was ``at_us``."""

    boot: str
    steady_us: int
    at_us: int


def _wall_us() -> int:
    return time.time_ns() // 1000


def _steady_us() -> int:
    """Microseconds since boot, suspended time included (clock_gettime(2), CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def _boot_id() -> str:
    """Identity of this boot of the kernel (random(4), /proc/sys/kernel/random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class Clock:
    """``now()`` in microseconds since the Unix epoch, never less than before. ``last``: the latest journaled time."""

    def __init__(
        self,
        state: Path,
        last: int = 0,
        wall: Callable[[], int] = _wall_us,
        steady: Callable[[], int] = _steady_us,
        boot: Callable[[], str] = _boot_id,
    ) -> None:
        self._steady, self.wall = steady, wall
        path = state / FILE
        known = _read(path)
        if known is None or known.boot != boot() or known.at_us + steady() - known.steady_us < last:
            known = Base(boot(), steady(), max(wall(), last))
            _save(path, known)
        self._base = known
        self.since = known.at_us
        """When, by this clock, it was last set by the wall clock."""
        self._latest = last

    def now(self) -> int:
        """The time; two calls may give the same."""
        self._latest = max(self._latest, self._base.at_us + self._steady() - self._base.steady_us)
        return self._latest


def difference_us(
    state: Path,
    wall: Callable[[], int] = _wall_us,
    steady: Callable[[], int] = _steady_us,
    boot: Callable[[], str] = _boot_id,
) -> int | None:
    """How far the engine's time is ahead of the wall clock, microseconds (behind: negative); None before the first start in
    this boot of the machine."""
    known = _read(state / FILE)
    if known is None or known.boot != boot():
        return None
    return known.at_us + steady() - known.steady_us - wall()


def readable(path: Path) -> bool:
    """Whether a file holds the base of a clock."""
    return _read(path) is not None


def _read(path: Path) -> Base | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Base)
    except (FileNotFoundError, msgspec.DecodeError):
        return None


def _save(path: Path, base: Base) -> None:
    """A crash leaves the old or the new one."""
    write_atomically(path, msgspec.json.encode(base), draft=path.with_suffix(".part"), durable=True)
