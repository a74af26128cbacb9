"""How the runtime hears of its children: a descriptor for the loop, and a wait for one stop that has a limit."""

from __future__ import annotations

import ctypes
import os
import signal
import time

from ...base.errors import Bug
from .queue_worker import QueueWorker

_SIGSET_BYTES = 128
_REST_NS = 250_000_000


def children_descriptor() -> int:
    """Readable when a child has stopped or ended (signalfd(2), which Python's library has not). Blocks SIGCHLD in this thread;
    the caller closes the descriptor. Raises Bug where there are other threads: the kernel gives the signal to one of those, and
    it is lost."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise Bug("the runtime has more than one thread: some library that starts threads was imported")
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    libc = ctypes.CDLL(None, use_errno=True)
    mask = (1 << (signal.SIGCHLD - 1)).to_bytes(_SIGSET_BYTES, "little")
    descriptor = libc.signalfd(-1, mask, os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), "signalfd")
    return int(descriptor)


class _TooLate(Exception):
    """Raised by the handler, so that waitid(2) is not begun anew after the signal."""


class StopAlarm:
    """Ends a wait for a stop after ``every_s`` at the latest. The timer goes on from one stop to the next: to set one for each
    costs 15 to 25 µs on a virtual machine (two exits to the host), more than the stop itself."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._waiting = self._armed = False
        self._last_ns = 0

    def wait(self, worker: QueueWorker) -> bool:
        """Sleep until the worker has stopped. Returns False where it had not at the alarm."""
        if not self._armed:
            signal.signal(signal.SIGALRM, self._rings)
            signal.setitimer(signal.ITIMER_REAL, self._every_s, self._every_s)
            self._armed = True
        self._last_ns = time.monotonic_ns()
        try:
            self._waiting = True
            worker.await_stop()
            self._waiting = False
        except _TooLate:
            pass
        return worker.has_stopped()

    def _rings(self, *_: object) -> None:
        if self._waiting:
            self._waiting = False
            raise _TooLate

    def rest(self, now_ns: int) -> None:
        """Stop the timer where nothing was stopped for a while."""
        if self._armed and now_ns - self._last_ns > _REST_NS:
            self.close()

    def close(self) -> None:
        """Stop the timer. An interpreter that ends gives signals their usual handlers: its next tick would kill the process."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._armed = False
