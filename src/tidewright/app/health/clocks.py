"""The engine's clock against this machine's, and this machine's against the network's time."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ...base.units import format_duration
from ...live.controller.clock import FILE, difference_us, readable
from ...live.controller.loop import CLOCK_TOLERANCE_US
from .finding import NOTE, OK, Finding

STA_UNSYNC = 0x40
"""linux/timex.h: no daemon disciplines the clock."""
_TIMEX_BYTES = 512
"""struct timex has 208 bytes on 64-bit Linux; the kernel writes no more."""
_STATUS_AT, _MAXERROR_AT = 40, 24
"""Offsets of ``status`` (int) and ``maxerror`` (long) in struct timex on 64-bit Linux (adjtimex(2))."""


def check_clocks(state: Path) -> list[Finding]:
    """The engine's clock, where there is one, and the wall clock."""
    return [*_engine(state), *_network()]


def _engine(state: Path) -> list[Finding]:
    ahead = difference_us(state)
    if ahead is None:
        return _unreadable(state)
    if abs(ahead) < CLOCK_TOLERANCE_US:
        return [Finding("clock", OK, "the engine's time agrees with this machine's clock")]
    where = "ahead of" if ahead > 0 else "behind"
    text = f"the engine's time is {format_duration(abs(ahead))} {where} this machine's clock, which was set meanwhile"
    return [
        Finding(
            "clock", NOTE, text, "the journal keeps the engine's time; what tide shows is corrected by the difference"
        )
    ]


def _unreadable(state: Path) -> list[Finding]:
    """Of the file in which the engine's clock is kept; nothing where it is not there, or of before this machine's last start."""
    path = state / FILE
    if not path.exists() or readable(path):
        return []
    advice = "tide up begins the engine's time anew by this machine's clock, not before the journal's last turn"
    return [Finding("clock", NOTE, f"{path} is unreadable", advice)]


def _network() -> list[Finding]:
    known = synchronized()
    if known is None:
        return []
    synchronous, error_us = known
    if synchronous:
        return [Finding("ntp", OK, f"the clock is synchronized, within {format_duration(max(1, error_us))}")]
    text = "no daemon synchronizes this machine's clock: deadlines and the times of several machines may drift apart"
    return [
        Finding("ntp", NOTE, text, "start one: timedatectl set-ntp true, or chronyd (a container has its host's clock)")
    ]


def synchronized() -> tuple[bool, int] | None:
    """Whether the kernel's clock is disciplined, and its largest error in microseconds, by adjtimex(2); None: not known."""
    if ctypes.sizeof(ctypes.c_long) != 8:
        return None
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)  # modes 0: nothing is changed
    try:
        answer = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    except (AttributeError, OSError):
        return None
    if answer < 0:
        return None
    status = ctypes.c_int.from_buffer(timex, _STATUS_AT).value
    return not status & STA_UNSYNC, ctypes.c_long.from_buffer(timex, _MAXERROR_AT).value
