"""Clocks as a process sees them: in a time namespace they go on from where they stood when its image was taken."""

from __future__ import annotations

import time

from ..processes import PROC


def clocks(pid: int) -> dict[str, int]:
    """CLOCK_MONOTONIC and CLOCK_BOOTTIME as a process sees them, nanoseconds (time_namespaces(7))."""
    theirs, ours = _offsets(str(pid)), _offsets("self")
    now = {"monotonic": time.CLOCK_MONOTONIC, "boottime": time.CLOCK_BOOTTIME}
    return {name: time.clock_gettime_ns(clock) + theirs.get(name, 0) - ours.get(name, 0) for name, clock in now.items()}


def _offsets(pid: str) -> dict[str, int]:
    try:
        lines = (PROC / pid / "timens_offsets").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(seconds) * 10**9 + int(rest) for name, seconds, rest in (line.split() for line in lines)}
