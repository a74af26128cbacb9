"""The socket that clients connect to, and who is at the other end of it."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from ...base.errors import UsageError


def listen(path: Path, *, take_over: bool = False) -> socket.socket:
    """A socket on ``path`` that only this user may connect to. Raises UsageError where a runtime answers there already, unless
    ``take_over``; a path left by one that was killed is taken."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return _listen(path, take_over)
    except OSError as error:
        raise UsageError(
            f"cannot listen on {path}: {error.strerror}",
            "the account that runs it must be able to write there; jobs of tide up --jobs-as cannot write to the state directory",
        ) from None


def _listen(path: Path, take_over: bool) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with contextlib.suppress(FileNotFoundError):
        if not take_over and _answers(path):
            raise UsageError(f"a runtime listens on {path} already", "use it, or stop it: tide runtime down")
        path.unlink()
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    listener.listen(64)
    listener.setblocking(False)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def peer(connection: socket.socket) -> tuple[int, int]:
    """(pid, uid) of the process at the other end (unix(7), SO_PEERCRED)."""
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    fields = memoryview(raw).cast("i")
    return fields[0], fields[1]
