"""How best-effort work is stopped, strongest first, and what a host allows. Chosen when a runtime starts; shown to users."""

from __future__ import annotations

import os
from enum import Enum

from ..base.errors import UsageError


class StopLevel(Enum):
    """Of a CPU device: ``SIGNAL`` stops the worker's process anywhere (SIGSTOP, acknowledged by waitid(2)), ``GATE`` between two
    operators, ``NONE`` not at all: real-time work then has its scheduling class alone."""

    SIGNAL = "signal"
    GATE = "gate"
    NONE = "none"


NAMES = {StopLevel.SIGNAL: "C3 signal", StopLevel.GATE: "C2 operator gate", StopLevel.NONE: "C0 none"}


STOP_BOUND_MS = {StopLevel.SIGNAL: 1.0, StopLevel.GATE: 5.0, StopLevel.NONE: 1.0}
"""Longest that real-time work waits for stops. A process that was sent SIGSTOP computes nothing more from the moment in which its
processor has taken the interrupt, microseconds later; on a busy host it may take long until it gets a processor to say so."""


def choose(asked: str) -> StopLevel:
    """The level for what the user asks for (``auto``: the strongest). Raises UsageError for what does not exist."""
    if asked == "auto":
        return StopLevel.SIGNAL  # every POSIX system lets a parent stop its children
    try:
        return StopLevel(asked)
    except ValueError:
        names = ", ".join(["auto", *(level.value for level in StopLevel)])
        raise UsageError(f"there is no way {asked!r} to stop best-effort work", f"choose one of {names}") from None


def may_use_fifo() -> bool:
    """Whether this process may enter SCHED_FIFO (CAP_SYS_NICE, or a limit that allows it, and a kernel that does)."""
    before, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except OSError:
        return False
    os.sched_setscheduler(0, before, parameters)
    return True
