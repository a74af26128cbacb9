"""Opening what lies in the box of a rank. The rank writes there, and may run as another user than this agent: a link in the
place of a file, or of a directory on the way to it, is never followed, and a pipe never waited for.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

_CALM = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def open_inside(rank_dir: Path, name: str, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of the regular file ``name`` (with ``/`` for files of subdirectories). Raises OSError.

    A file with a second name may be anybody's, and is refused as well.
    """
    *folders, last = name.split("/")
    at = os.open(rank_dir, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        handle = os.open(last, flags | _CALM, mode, dir_fd=at)
    finally:
        os.close(at)
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        os.close(handle)
        raise OSError(f"{rank_dir / name} is no file of its own")
    return handle


def read_inside(rank_dir: Path, name: str, limit: int) -> bytes:
    """The first ``limit`` bytes of a file. Raises OSError."""
    with os.fdopen(open_inside(rank_dir, name), "rb") as file:
        return file.read(limit)


def listed_inside(rank_dir: Path, folder: str, suffix: str = "") -> Iterator[str]:
    """Names in a folder of the box that end so, sorted; none when there is no such folder."""
    with contextlib.suppress(OSError):
        at = os.open(rank_dir / folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            names = sorted(name for name in os.listdir(at) if name.endswith(suffix))
        finally:
            os.close(at)
        yield from names
