"""A process of the runtime's: spawned in a session of its own, killed, reaped.

The runtime must be the parent: only a parent learns that a child has stopped (waitid(2), WSTOPPED).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Mapping, Sequence

_DEFAULTS = (signal.SIGCHLD, signal.SIGALRM, signal.SIGTERM)


class ChildProcess:
    """``arguments`` of the interpreter. The child inherits ``connection``, which is closed here, and the descriptors ``passed``;
    it finds the first and this process by ``--connection`` and ``--parent``."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        connection: socket.socket,
        passed: Sequence[int] = (),
    ) -> None:
        self.exit_status: int | None = None
        """As subprocess gives it; None while it has not been reaped."""
        command = [sys.executable, *arguments, "--connection", str(connection.fileno()), "--parent", str(os.getpid())]
        inherited = (connection.fileno(), *passed)
        for descriptor in inherited:
            os.set_inheritable(descriptor, True)
        try:
            self.pid = os.posix_spawn(
                sys.executable, command, environment, setsid=True, setsigmask=(), setsigdef=_DEFAULTS
            )
        finally:
            for descriptor in inherited:
                os.set_inheritable(descriptor, False)
            connection.close()

    def reap(self) -> bool:
        """Whether it has ended."""
        if self.exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_status = os.waitstatus_to_exitcode(status)
        return self.exit_status is not None

    def kill(self) -> None:
        """End it, whatever it is doing. Large memory takes a while to be freed: it is reaped when it has (``reap``)."""
        if self.exit_status is None:
            os.kill(self.pid, signal.SIGKILL)
