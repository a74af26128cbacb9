"""Who holds a lock file: the pid and start time that its holder wrote into it, so that no other process is mistaken for it.

Pids are reused; a pid with the time the process started, in clock ticks after boot (proc(5), field 22), is not.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from pathlib import Path
from typing import NamedTuple

CONTROLLER_LOCK, AGENT_LOCK = "controller.lock", "agent.lock"
START, PARENT, _STATE = 19, 1, 0
"""Fields of /proc/PID/stat behind the command."""


class Process(NamedTuple):
    """One process of this machine since its boot."""

    pid: int
    start: int


def sign(file: int) -> None:
    """Write this process into the lock file that it has just locked."""
    text = f"{os.getpid()} {_started(os.getpid())}\n".encode()
    # A file opened for appending takes everything at its end, whatever the offset (pwrite(2), "BUGS").
    fcntl.fcntl(file, fcntl.F_SETFL, fcntl.fcntl(file, fcntl.F_GETFL) & ~os.O_APPEND)
    os.pwrite(file, text, 0)  # cut afterwards: on a full disk the room of what was there may be all there is
    os.ftruncate(file, len(text))


def held(lock: Path) -> bool:
    """Whether a process holds the lock."""
    try:
        file = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def holder(lock: Path) -> Process | None:
    """The process that holds the lock; None when none does, or when it has not signed (an older version's)."""
    if not held(lock):
        return None
    try:
        pid, start = map(int, lock.read_text().split())
    except (OSError, ValueError):
        return None
    found = Process(pid, start)
    return found if alive(found) else None


def alive(process: Process) -> bool:
    """Whether it still runs: the same process, not one that has got its pid."""
    try:
        return _started(process.pid) == process.start and stat_fields(process.pid)[_STATE] not in (b"Z", b"X")
    except (OSError, ValueError, IndexError):
        return False


def age_s(process: Process) -> float:
    """For how many seconds it has run."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) - process.start / os.sysconf("SC_CLK_TCK")


def end(process: Process, number: int = signal.SIGTERM) -> bool:
    """Send it a signal; false when it is gone. The pid cannot be another's by then: it is looked at through a pidfd."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            signal.pidfd_send_signal(handle, signal.SIGCONT)  # a stopped process takes no other signal than SIGKILL
        return True
    finally:
        os.close(handle)


def stat_fields(pid: int) -> list[bytes]:
    """The fields of /proc/PID/stat behind the command. Raises OSError."""
    return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()


def _started(pid: int) -> int:
    return int(stat_fields(pid)[START])
