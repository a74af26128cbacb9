"""Whether the kernel ended a process because memory had run out: only the kernel's own log distinguishes such a rank from others.

Standard library only; loaded by the shim by the path of its file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import time

RECENT_S = 30.0
"""The kernel says so before the process is gone; older words are about others."""
_VMSTAT, _KMSG = "/proc/vmstat", "/dev/kmsg"
_RECORD = 8192
"""The longest record of the kernel's log (Documentation/ABI/testing/dev-kmsg)."""
_KILLED = re.compile(rb"Killed process (\d+)")


def kills(path: str = _VMSTAT) -> int:
    """Processes that the kernel has ended for want of memory since it was started; 0 where it does not count them."""
    with contextlib.suppress(OSError, ValueError), open(path, encoding="ascii") as file:
        return int(next((line.split()[1] for line in file if line.startswith("oom_kill ")), "0"))
    return 0


def recent(now_s: float, path: str = _KMSG) -> list[int] | None:
    """Pids (the host's) that the kernel says to have killed lately; None when its log may not be read."""
    try:
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    found: list[int] = []
    try:
        while True:
            try:
                record = os.read(log, _RECORD)
            except OSError as error:
                if error.errno == errno.EPIPE:  # records were overwritten while we read
                    continue
                return found
            if not record:
                return found
            head, _, text = record.partition(b";")
            match = _KILLED.search(text)
            with contextlib.suppress(ValueError, IndexError):
                if match and now_s - int(head.split(b",")[2]) / 1e6 <= RECENT_S:
                    found.append(int(match[1]))
    finally:
        os.close(log)


def passed(group: str) -> bool:
    """Whether the kernel killed a process of a control group for its limit of memory (memory.events, or v1's oom_control)."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError, ValueError), open(os.path.join(group, name), encoding="ascii") as file:
            return any(int(line.split()[1]) > 0 for line in file if line.startswith("oom_kill "))
    return False


def verdict(before: int, pid: int, killed: bool, *, vmstat: str = _VMSTAT, kmsg: str = _KMSG) -> str:
    """What memory has to do with a rank's end: empty, nothing that is known. ``before``: ``kills()`` at its start;
    ``pid``: its main process on the host; ``killed``: it ended by SIGKILL."""
    if kills(vmstat) <= before:
        return ""
    found = recent(time.clock_gettime(time.CLOCK_MONOTONIC), kmsg)
    if killed and found is not None and pid in found:
        return "by the kernel: out of memory"
    if found:
        return "while the kernel killed processes of this machine: out of memory (see dmesg)"
    return "probably by the kernel: it has run out of memory since (see dmesg)" if killed and found is None else ""
