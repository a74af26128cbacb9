"""A listening unix socket and its file, which can vanish (a clean-up job) while connections to it live on."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

from .own_directory import OwnDirectory

LOOK_EVERY_S = 1.0
"""How often a daemon looks whether its socket's file is still there (one lstat)."""


class SocketFile:
    """The socket at ``path``, which only its owner can open. The caller holds the lock of the directory, so that a file
    found there is a leftover; ``own`` says whether that still holds."""

    def __init__(self, path: Path, own: OwnDirectory | None = None) -> None:
        self.path = path
        self._own = own
        self._bound: tuple[int, int] | None = None

    def bind(self, backlog: int) -> socket.socket:
        """Listen, in place of whatever lies there. Raises OSError, also where the directory is another's by now."""
        if self._own is not None and (why := self._own.lost()):
            raise OSError(errno.ESTALE, why)
        self.path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o077)  # not stricter: other threads may be making directories
        try:
            folder = os.open(self.path.parent, os.O_PATH | os.O_DIRECTORY)
            try:
                # Through the directory's descriptor: sockaddr_un holds 108 bytes (unix(7)), directories may be deeper.
                listener.bind(f"/proc/self/fd/{folder}/{self.path.name}")
                os.chmod(f"/proc/self/fd/{folder}/{self.path.name}", 0o600)
            finally:
                os.close(folder)
            listener.listen(backlog)
        except BaseException:
            listener.close()
            raise
        finally:
            os.umask(before)
        self._bound = self._identity()
        return listener

    @property
    def gone(self) -> bool:
        """Whether the file that was bound is not there any more, or another is in its place."""
        return self._bound is not None and self._identity() != self._bound

    def remove(self) -> None:
        """Take the file away, unless another's is in its place."""
        if not self.gone:
            self.path.unlink(missing_ok=True)
        self._bound = None

    def _identity(self) -> tuple[int, int] | None:
        try:
            info = self.path.lstat()
        except OSError:
            return None
        return info.st_dev, info.st_ino
