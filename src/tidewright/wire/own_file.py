"""Opening a file whose name another user has chosen: only a regular file of that user is opened."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path


def open_regular(path: str | Path, owner: int | None = None, flags: int = os.O_RDONLY) -> int:
    """A descriptor of a regular file that exists; ``owner``: the user whose it must be. Raises OSError.

    What it is is found out before it is opened: to open a pipe would wait, and to open a device may do anything.
    """
    found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        facts = os.fstat(found)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(f"{path} is no regular file")
        if owner is not None and facts.st_uid != owner:
            raise OSError(f"{path} does not belong to user {owner}")
        return os.open(f"/proc/self/fd/{found}", flags | os.O_CLOEXEC)
    finally:
        os.close(found)


def owner_of(run_as: str) -> int | None:
    """The user id of an account (a name, or UID[:GID]); None when it is that of the agents. Raises KeyError."""
    if not run_as:
        return None
    first = run_as.partition(":")[0]
    return int(first) if first.isdecimal() else pwd.getpwnam(run_as).pw_uid
