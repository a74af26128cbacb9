"""A bound on a whole exchange: time-outs of a socket are of each read, and a peer that sends a byte now and then meets them."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

MOST_S = 60.0
"""A message has been handed over within so long, or is tried again."""


@contextlib.contextmanager
def closed_after(current: Callable[[], socket.socket | None], seconds: float) -> Iterator[None]:
    """Shut the connection that ``current`` gives down when the block takes longer: what it waits for ends with OSError. It is
    asked then: TLS puts another socket in the place of the first."""

    def shut() -> None:
        sock = current()
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(seconds, shut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
