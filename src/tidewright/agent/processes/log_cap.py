"""Keeps the logs of ranks below a limit: the middle of a log that has grown beyond it gives its room back.

A hole is punched; the file keeps its size, so offsets stay what they are: those of clients that follow the log, of the rank,
which appends to it, and of images, which know how long it was. Where lines are gone a line in the log says so.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import stat
from collections.abc import Iterable

from ...base.units import format_bytes
from ...checkpoint.files.file_rollback import NOTICE

log = logging.getLogger(__name__)

LIMIT_BYTES = 2**30
"""What the log of one rank of one attempt takes at most by default."""
LEAST_BYTES = 2**20
LOOK_S = 1.0
"""Between two looks at all logs: one stat(2) each. What a rank writes in that time is taken on top of the limit."""
HEAD_BYTES = 2**20
"""Kept of a log's beginning, where programs print what they were started with; of small limits an eighth."""
NOTICE_BYTES = 160
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2
"""linux/falloc.h"""


class LogCap:
    """``limit`` in bytes on the disk for each log; 0: none."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._hopeless: dict[str, bool] = {}
        """Logs on file systems that cannot punch holes."""

    def look(self, paths: Iterable[str]) -> None:
        """Cut what has grown beyond the limit. Blocks for milliseconds; says in our log what it could not do."""
        for path in paths if self.limit else ():
            if path in self._hopeless:
                continue
            try:
                removed = trim(path, self.limit)
            except FileNotFoundError:
                continue
            except OSError as error:
                log.warning("%s cannot be kept below %s: %s", path, format_bytes(self.limit), error.strerror)
                self._hopeless[path] = True
            else:
                if removed:
                    log.info("%s: %s of it removed", path, format_bytes(removed))


def trim(path: str, limit: int) -> int:
    """Give back what lies between the beginning of a log and its last ``limit / 2`` bytes, once it takes more than
    ``limit``; the bytes that were removed now. Raises OSError."""
    if os.stat(path).st_blocks * 512 <= limit:
        return 0
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        now, block = os.fstat(handle), max(4096, os.fstatvfs(handle).f_frsize)
        start, end = _middle(handle, now.st_size, limit, block)
        if not stat.S_ISREG(now.st_mode) or end <= start:
            return 0
        text = notice(start, end, limit)
        said = _written(handle, text, start)
        punch(handle, start, end - start)
        if not said:  # there was no room for as much as that
            _written(handle, text, start)
        return (now.st_blocks - os.fstat(handle).st_blocks) * 512
    finally:
        os.close(handle)


def _middle(handle: int, size: int, limit: int, block: int) -> tuple[int, int]:
    """Whole blocks, as only those give room back: (start, end)."""
    head = max(block, min(HEAD_BYTES, limit // 8) // block * block)
    hole = os.lseek(handle, 0, os.SEEK_HOLE)
    start = hole if block <= hole < head else head  # under a higher limit: where lines are missing already
    return start, (size - limit // 2) // block * block


def notice(start: int, end: int, limit: int) -> bytes:
    """The line that ends where the hole begins; always as long, so that a later one takes its place."""
    text = f"{format_bytes(end - start)} were removed here (bytes {start} to {end}): the limit of a log is {format_bytes(limit)}"
    return b"\n" + NOTICE + text.encode().ljust(NOTICE_BYTES - len(NOTICE) - 3) + b"]\n"


def _written(handle: int, text: bytes, end: int) -> bool:
    """Put ``text`` over what ends at ``end``; never beyond the end of a file that was cut meanwhile."""
    try:
        return os.fstat(handle).st_size > end and os.pwrite(handle, text, end - len(text)) == len(text)
    except OSError:
        return False


def punch(handle: int, start: int, length: int) -> None:
    """fallocate(2) with FALLOC_FL_PUNCH_HOLE: reads as zeros, takes no room. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
    if libc.fallocate(handle, mode, ctypes.c_int64(start), ctypes.c_int64(length)):
        number = ctypes.get_errno() or errno.EOPNOTSUPP
        raise OSError(number, f"no hole can be punched there: {os.strerror(number)}")
