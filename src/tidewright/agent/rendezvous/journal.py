"""The journal file of one job: where its keys survive the agent, also one that is killed at any moment.

Writing errors (a full disk) are reported as False and logged once until writing works again.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

from ...wire.state_files import open_own

log = logging.getLogger(__name__)


class RendezvousJournal:
    """Appended to between rewrites. A file that could not be written to the end is not appended to before it is rewritten."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle = -1
        self._failing = False

    def read(self) -> bytes:
        """What is there; nothing when it cannot be read."""
        try:
            return self._path.read_bytes()
        except OSError:
            return b""

    def append(self, record: bytes) -> bool:
        """Add a record. False: it is not there, or not to its end."""
        return self._handle >= 0 and self._try(lambda: write_all(self._handle, record))

    def rewrite(self, content: bytes) -> bool:
        """Replace the file in one step, and append to the new one from now on. False: it is the old one."""
        self.close()
        return self._try(lambda: self._replace(content))

    def _replace(self, content: bytes) -> None:
        draft = self._path.with_suffix(".new")
        handle = open_own(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(handle, content)
            os.replace(draft, self._path)
        except OSError:
            os.close(handle)
            raise
        self._handle = handle

    def delete(self) -> bool:
        """Remove the file. False: it is still there."""
        self.close()
        return self._try(lambda: self._path.unlink(missing_ok=True))

    def close(self) -> None:
        """Close the file; it stays."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _try(self, write: Callable[[], None]) -> bool:
        try:
            write()
            self._failing = False
        except OSError as error:
            if not self._failing:
                log.error("cannot write %s: %s; an agent started now would miss keys", self._path, error.strerror)
            self._failing = True
            self.close()
        return not self._failing


def write_all(handle: int, data: bytes) -> None:
    """Write all of it. Raises OSError; a part may be there then."""
    while data:
        data = data[os.write(handle, data) :]
