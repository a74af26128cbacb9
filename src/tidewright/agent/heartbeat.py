"""The answer to a controller's heartbeat, given by a thread: an event loop that waits for a busy disk is no dead agent."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

from ..wire.own_directory import OwnDirectory
from ..wire.socket_file import SocketFile

STUCK_S = 300.0
"""An event loop that has not moved for so long hangs for good: no disk is that busy."""
_RETRY_S = 0.1
_BACKLOG = 16


class Heartbeat:
    """Writes one byte to each client that connects, as long as ``tick`` was called lately."""

    def __init__(self) -> None:
        self._endpoint: socket.socket | None = None
        self._file: SocketFile | None = None
        self._ticked = time.monotonic()

    def tick(self) -> None:
        """The event loop moves."""
        self._ticked = time.monotonic()

    def open(self, path: Path, own: OwnDirectory | None = None) -> None:
        """Listen; what lies there is a dead agent's. Raises OSError."""
        self._file = SocketFile(path, own)
        self._listen(self._file)

    def look(self) -> None:
        """Listen anew where the socket's file has vanished. Raises OSError."""
        if self._file is not None and self._file.gone:
            self._listen(self._file)

    def _listen(self, file: SocketFile) -> None:
        fresh = file.bind(_BACKLOG)
        self._hang_up()
        self._endpoint = fresh
        threading.Thread(target=self._answer, args=(fresh,), name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._hang_up()
        if self._file is not None:
            self._file.remove()

    def _hang_up(self) -> None:
        endpoint, self._endpoint = self._endpoint, None
        if endpoint is not None:
            endpoint.shutdown(socket.SHUT_RDWR)  # wakes the thread out of accept(2), which close(2) does not
            endpoint.close()

    def _answer(self, endpoint: socket.socket) -> None:
        while self._endpoint is endpoint:
            try:
                line, _ = endpoint.accept()
            except OSError:  # closed, or out of descriptors
                time.sleep(_RETRY_S)
                continue
            with line, contextlib.suppress(OSError):
                if time.monotonic() - self._ticked < STUCK_S:
                    line.send(b".")
