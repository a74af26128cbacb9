"""One controller per state directory: a lock held by the process, its pid beside it, an epoch that counts starts."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

from ...base.atomic import write_atomically
from ...base.errors import UsageError
from ...wire.holder import CONTROLLER_LOCK, sign
from ...wire.own_directory import OwnDirectory
from ...wire.state_files import make_private, open_own, read_own
from .disk_space import release_when_full

LOCK = CONTROLLER_LOCK
PID = "controller.pid"
EPOCH = "epoch"
SECTOR = 512


class StateLock:
    """Holds the state directory until ``release`` or the end of the process. ``epoch`` grows with every start, so that
    agents can tell a late call of an earlier controller from a call of this one.

    Raises UsageError naming the other controller's pid when there is one.
    """

    def __init__(self, state: Path) -> None:
        self.state = state
        make_private(state)
        self._file = open_own(state / LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            pid = running_pid(state) or "unknown"
            raise UsageError(
                f"a controller already runs on {state} (pid {pid})",
                "use it as it is, stop it with tide down, or give another directory with --state",
            ) from None
        try:
            self.own = OwnDirectory(state, LOCK, self._file)
        except BaseException:
            os.close(self._file)
            raise
        try:
            release_when_full(state)
            sign(self._file)
            self.epoch = _next_epoch(state / EPOCH)
            with contextlib.suppress(OSError):  # the lock file says so as well
                write_whole(state / PID, f"{os.getpid()}\n")
        except BaseException:
            self._close()
            raise

    def release(self) -> None:
        """Unlock the directory, and remove the pid file."""
        if not self.own.lost():
            (self.state / PID).unlink(missing_ok=True)
        self._close()

    def _close(self) -> None:
        self.own.close()
        os.close(self._file)


def running_pid(state: Path) -> int | None:
    """The pid in the pid file; None when there is none. Says nothing about whether that process lives."""
    try:
        return int(read_own(state / PID))
    except (FileNotFoundError, ValueError):
        return None


def _next_epoch(path: Path) -> int:
    try:
        before = int(read_own(path))
    except FileNotFoundError:
        before = 0
    except ValueError:
        raise UsageError(
            f"{path} does not hold a number", "write the highest epoch found in agent.epoch into it"
        ) from None
    write_whole(path, f"{before + 1}\n")
    return before + 1


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """Replace a file durably: a crash leaves the old text or the new one. A link in its place is replaced, not followed."""
    try:
        write_atomically(path, text.encode(), draft=path.with_name(path.name + ".part"), mode=mode, durable=True)
    except OSError:
        if len(text) > SECTOR or not path.exists():
            raise
        _write_over(path, text)


def _write_over(path: Path, text: str) -> None:
    """On a full disk: a file within one sector is replaced where it is, which a crash leaves old or new as well."""
    file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        os.pwrite(file, text.encode(), 0)
        os.ftruncate(file, len(text.encode()))
        os.fsync(file)
    finally:
        os.close(file)
