"""From the engine's time to that of the wall clock and back, by offsets that are journalled: a replay shows the same times.

The engine's time only grows. Where it began at a wrong wall clock it stays wrong by a constant. The offset takes that away from
all that is shown of this span, past times included, and from deadlines that a user gave as a time of day.
"""

from __future__ import annotations

from msgspec import Struct

from ..base.units import MINUTE

SLEWED_US = MINUTE
"""Corrections up to this are made gradually, so that shown times neither jump nor repeat; larger ones at once, as by ntpd(8)."""
SLEW = 10
"""A correction takes so many times its size."""
KEPT = 64
"""Spans remembered; older ones are shown with the offset of the oldest."""


class Offset(Struct, frozen=True):
    """From ``since`` (engine time, the start of a span) on, the wall clock is ahead by ``offset_us``; while a correction of
    engine time ``at`` is under way, by something between that and ``before_us``. Microseconds."""

    since: int
    offset_us: int
    before_us: int
    at: int

    def now_us(self, now: int) -> int:
        """The offset in force at engine time ``now``."""
        missing = self.offset_us - self.before_us
        if abs(missing) > SLEWED_US:
            return self.offset_us
        moved = min(abs(missing), max(0, now - self.at) // SLEW)
        return self.before_us + (moved if missing > 0 else -moved)


Offsets = tuple[Offset, ...]
"""Oldest span first; empty: the engine's time is the wall clock's."""


def wall_time(offsets: Offsets, at: int, now: int) -> int:
    """What the wall clock showed, or will show, at engine time ``at``, as far as is known ``now``."""
    for offset in reversed(offsets):
        if offset.since <= at:
            return at + offset.now_us(now)
    return at


def engine_time(offsets: Offsets, wall: int, now: int) -> int:
    """When the wall clock will show ``wall``, by the present offset."""
    return wall - (offsets[-1].now_us(now) if offsets else 0)


def corrected(offsets: Offsets, since: int, offset_us: int, now: int) -> Offsets:
    """With the offset of the span that began at ``since``, as just measured."""
    last = offsets[-1] if offsets else None
    if last is not None and last.since == since:
        return (*offsets[:-1], Offset(since, offset_us, last.now_us(now), now))
    return (*offsets, Offset(since, offset_us, offset_us, now))[-KEPT:]
