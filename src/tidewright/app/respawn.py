"""A service that is started again where it stands when it is killed or crashes.

A container whose main process ends is started again by its kubelet, when that comes to it; a parent in the container does it in a
fraction of a second. The parent forks before there is any connection or driver, and does nothing else, so there is little that
could end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections import deque
from collections.abc import Callable

from ..base.signals import signal_name

MOST, WITHIN_S = 5, 60.0
"""After so many restarts within so long the parent gives up and exits, so that the failure is seen."""
SERVED_S = 10.0
"""A service that ends sooner with an error never worked: to start it again would only repeat its message."""
FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
PR_SET_PDEATHSIG = 1
"""linux/prctl.h"""


def respawning(note: Callable[[str], None], served_s: float = SERVED_S) -> None:
    """Returns in a child process, which runs the service; when that is killed, or fails after ``served_s`` seconds, returns in
    another one. The parent passes SIGTERM, SIGINT and SIGHUP on and exits as the child does, 128 + N after signal N.

    Call it before threads and event loops exist. ``note`` gets a line for each restart."""
    # Where it is ignored, which is inherited, no end of a child would be heard of.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    watched = {*FORWARDED, signal.SIGCHLD}
    parent, before = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    restarts: deque[float] = deque(maxlen=MOST)
    while True:
        child, begun_s = os.fork(), time.monotonic()
        if not child:
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        status, stopping = _until_ended(child, watched)
        ran_s, now_s = time.monotonic() - begun_s, time.monotonic()
        often = len(restarts) == MOST and now_s - restarts[0] < WITHIN_S
        if stopping or status == 0 or often or (status > 0 and ran_s < served_s):
            raise SystemExit(status if status >= 0 else 128 - status)
        restarts.append(now_s)
        with contextlib.suppress(OSError):  # the log may have no reader any more
            note(f"ended after {ran_s:.0f} s{_why(status)}; starts again")


def _until_ended(child: int, watched: set[signal.Signals]) -> tuple[int, bool]:
    """Its exit code, -N after signal N; and whether a signal to end was passed on to it."""
    stopping = False
    while True:
        number = signal.sigwait(watched)
        if number != signal.SIGCHLD:
            stopping = True
            os.kill(child, number)
            continue
        # As the first process of a container we inherit other processes, too.
        ended = dict(iter(_reap, None))
        if child in ended:
            return ended[child], stopping


def _reap() -> tuple[int, int] | None:
    """(pid, exit code) of a child that has ended."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, os.waitstatus_to_exitcode(status)) if pid else None


def _end_with(parent: int) -> None:
    """Two services after each other must never be there at once: without its parent a child is killed."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _why(status: int) -> str:
    if status >= 0:
        return f" with exit code {status}"
    return f", killed by {signal_name(-status) or f'signal {-status}'}"
