"""How best-effort work is stopped, strongest first, and what a host allows. Chosen when a runtime starts; shown to users."""

from __future__ import annotations

import os
from enum import Enum

from ..base.errors import UsageError


class StopLevel(Enum):
    """Of a CPU device: ``SIGNAL`` stops the worker's process anywhere (SIGSTOP, acknowledged by waitid(2)), ``GATE`` between two
    operators, ``NONE`` not at all: real-time work then has its scheduling class alone. Of a CUDA device: ``CTA`` stops at the
    gates of kernels, ``KERNEL`` between two kernels, few of which are launched at once, ``NONE`` not at all: real-time work has
    the priority of its stream."""

    SIGNAL = "signal"
    GATE = "gate"
    CTA = "cta"
    KERNEL = "kernel"
    NONE = "none"


_NAMES = {
    ("cpu", StopLevel.SIGNAL): "C3 signal",
    ("cpu", StopLevel.GATE): "C2 operator gate",
    ("cpu", StopLevel.NONE): "C0 none",
    ("cuda", StopLevel.CTA): "G4 CTA gate",
    ("cuda", StopLevel.KERNEL): "G2 launch throttle",
    ("cuda", StopLevel.NONE): "G1 stream priority",
}


def level_name(device: str, level: StopLevel) -> str:
    """As users see it."""
    return _NAMES[device, level]


def real_time_level(device: str, fifo: bool) -> str:
    """How real-time work comes first, for users."""
    if device == "cuda":
        return "stream of high priority"
    return "SCHED_FIFO" if fifo else "usual class; best-effort work in SCHED_IDLE"


STOP_BOUND_MS = {
    StopLevel.SIGNAL: 1.0,
    StopLevel.GATE: 5.0,
    StopLevel.CTA: 1.0,
    StopLevel.KERNEL: 1.0,
    StopLevel.NONE: 1.0,
}
"""Longest that real-time work waits for stops. A process that was sent SIGSTOP computes nothing more from the moment in which its
processor has taken the interrupt, microseconds later; on a busy host it may take long until it gets a processor to say so."""


LEVELS = {
    "cpu": (StopLevel.SIGNAL, StopLevel.GATE, StopLevel.NONE),  # every POSIX system lets a parent stop its children
    "cuda": (StopLevel.CTA, StopLevel.KERNEL, StopLevel.NONE),
}
"""Of each kind of device, strongest first."""


def choose(asked: str, device: str = "cpu") -> StopLevel:
    """The level for what the user asks for (``auto``: the strongest). Raises UsageError for what does not exist."""
    levels = LEVELS[device]
    found = next((level for level in levels if asked in ("auto", level.value)), None)
    if found is None:
        names = ", ".join(["auto", *(level.value for level in levels)])
        raise UsageError(f"there is no way {asked!r} to stop best-effort work here", f"choose one of {names}")
    return found


def may_use_fifo() -> bool:
    """Whether this process may enter SCHED_FIFO (CAP_SYS_NICE, or a limit that allows it, and a kernel that does)."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, before, parameters)
    return True
