"""TCP connections out of repair mode: what a CRIU that was killed, or has left a rank stopped, does not do itself.

In repair mode (tcp(7), TCP_REPAIR; net/ipv4/tcp.c) a connection neither sends nor receives for its program, which gets
EPERM or hears nothing for good.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from ..processes import PROC
from .socket_blockers import NAME

TCP_REPAIR, OFF_NO_WP = 19, -1
"""include/uapi/linux/tcp.h. No window probe: nothing was lost, and a peer outside might answer to it."""
PIDFD_GETFD = 438
"""The system call's number, the same on all architectures; in Linux since 5.6."""
TCP = frozenset({b"TCP", b"TCPv6"})

_libc = ctypes.CDLL(None, use_errno=True)


def lift_repair(pids: Iterable[int]) -> int:
    """Take every TCP connection that these processes have open out of repair mode; how many were in it.

    SO_REUSEADDR, which the kernel forgets with this, is set: a server that listens again on its port needs it on the
    connections that it has accepted, and it does others no harm. Processes that end meanwhile are skipped.
    """
    return sum(_lift(pid) for pid in pids)


def _lift(pid: int) -> int:
    found = 0
    with contextlib.suppress(OSError):
        names = [int(entry.name) for entry in (PROC / str(pid) / "fd").iterdir() if _is_tcp(entry)]
        pidfd = os.pidfd_open(pid) if names else -1
        try:
            for number in names:
                with contextlib.suppress(OSError), socket.socket(fileno=_copy(pidfd, number)) as connection:
                    found += _end_repair(connection)
        finally:
            if pidfd >= 0:
                os.close(pidfd)
    return found


def _is_tcp(entry: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(entry).startswith("socket:") and os.getxattr(entry, NAME).rstrip(b"\0") in TCP
    return False


def _copy(pidfd: int, number: int) -> int:
    """A descriptor of ours for one of another process (pidfd_getfd(2)). Raises OSError."""
    copy: int = _libc.syscall(PIDFD_GETFD, pidfd, number, 0)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return copy


def _end_repair(connection: socket.socket) -> bool:
    if not connection.getsockopt(socket.IPPROTO_TCP, TCP_REPAIR):
        return False
    connection.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, OFF_NO_WP)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    return True
