"""Whether a daemon's state directory, and the files that it holds open there, are still those that it opened.

A directory can be removed or replaced under a daemon that runs: its open files go on working, while
every path leads elsewhere. What it writes by a path then lands in a directory that is another's, and its lock, which
went with the old directory, keeps no second daemon away. So a daemon looks, and ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import syslog
from pathlib import Path

from ..base.errors import Conflict

LOOK_EVERY_S = 1.0
"""How often a daemon looks (a few calls of stat)."""

_Identity = tuple[int, int]
"""Device and inode."""


class DirectoryLost(Conflict):
    """The state directory of a daemon is not its own any more: nothing is recorded, and it ends."""


class OwnDirectory:
    """The directory ``state`` as it is now, with the lock file ``lock``, of which ``handle`` is the descriptor.

    Raises DirectoryLost where the lock was taken in a directory that has been replaced since.
    """

    def __init__(self, state: Path, lock: str, handle: int) -> None:
        self.state = state
        # Kept open: as long as it is, no other directory gets its inode's number (nor a file that of an open file).
        self._handle = os.open(state, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._directory = _of(os.fstat(self._handle))
        self._files = {lock: _of(os.fstat(handle))}
        try:
            self.require()
        except DirectoryLost:
            self.close()
            raise

    def add(self, *names: str) -> None:
        """Look after these files of the directory, too, which stay open as long as this is used. Those that are not there are
        left out."""
        for name in names:
            with contextlib.suppress(OSError):
                self._files[name] = _of(os.lstat(self.state / name))

    def drop(self, name: str) -> None:
        """Look no more after a file that is about to be closed."""
        self._files.pop(name, None)

    def lost(self) -> str:
        """What has become of the directory, or of a file; empty while all is as it was, or where that cannot be found out."""
        try:
            if _of(os.stat(self.state)) != self._directory:
                return f"another directory has been put in the place of {self.state}"
            for name, identity in self._files.items():
                if _of(os.lstat(self.state / name)) != identity:
                    return f"another file has been put in the place of {self.state / name}"
        except (FileNotFoundError, NotADirectoryError) as error:
            return f"{error.filename} has been removed or renamed"
        except OSError:  # a file server that does not answer, or a mode that was changed: nothing is known to be lost
            return ""
        return ""

    def require(self) -> None:
        """Raise DirectoryLost when it is lost."""
        if why := self.lost():
            raise lost_error(why)

    async def until_lost(self) -> str:
        """Wait; what has become of it."""
        while not (why := self.lost()):
            await asyncio.sleep(LOOK_EVERY_S)
        return why

    def close(self) -> None:
        """Look no more."""
        os.close(self._handle)


def lost_error(why: str) -> DirectoryLost:
    """What a daemon ends with."""
    return DirectoryLost(
        f"{why} while it was in use: its daemons end, processes of jobs run on",
        "if it was only renamed, rename it back, and tide up takes the jobs over; else it begins anew, and names what is left",
    )


def agent_lost_error(why: str) -> DirectoryLost:
    """What an agent ends with whose controller goes on without it."""
    return DirectoryLost(
        f"{why} while it was in use: its agent ends, and its processes of jobs are killed",
        "its controller starts another agent, and their jobs anew",
    )


def to_system_log(text: str) -> None:
    """For what its own log file cannot say any more, which went with the directory: journalctl -t tidewright shows it."""
    syslog.openlog("tidewright", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, text)


def _of(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino
