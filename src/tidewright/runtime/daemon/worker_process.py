"""A worker as its parent sees it: spawned, stopped and continued with acknowledgement, killed, reaped.

The runtime must be the parent: only a parent learns that a child has stopped (waitid(2), WSTOPPED).
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys

from msgspec import Struct

from ..ladder import StopLevel
from ..transport import memory
from ..transport.messages import send
from ..worker.gate import FLAG_BYTES
from .queue_worker import QueueWorker
from .settings import RuntimeSettings

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
_DEFAULTS = (signal.SIGCHLD, signal.SIGALRM, signal.SIGTERM)
FIFO_WORKER, FIFO_RUNTIME = 50, 60
"""The runtime comes before its workers: it must be able to end one that spins."""


class WorkerProcess(QueueWorker):
    """``kind``: rt or be. Real-time workers are never stopped, and run on the first cores of the device alone."""

    def __init__(self, settings: RuntimeSettings, kind: str, threads: int) -> None:
        self.level = settings.stop if kind == "be" else StopLevel.NONE
        self._nice = settings.fifo
        self.fifo = FIFO_WORKER if kind == "rt" and settings.fifo else 0
        self._exit_status: int | None = None
        self.stop_number = 0
        self._flag = self._resumed = -1
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.setblocking(False)
        arguments, passed = self._arguments(kind, theirs)
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        for descriptor in passed:
            os.set_inheritable(descriptor, True)
        try:
            self._pid = os.posix_spawn(
                sys.executable, arguments, environment, setsid=True, setsigmask=(), setsigdef=_DEFAULTS
            )
        finally:
            for descriptor in passed:
                os.set_inheritable(descriptor, False)
            theirs.close()
        cores = settings.cores[:threads] if kind == "rt" else settings.cores
        with contextlib.suppress(OSError):  # it may have died already: that is seen when it is reaped
            os.sched_setaffinity(self.pid, cores)

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def exit_status(self) -> int | None:
        return self._exit_status

    def _arguments(self, kind: str, theirs: socket.socket) -> tuple[list[str], list[int]]:
        arguments = [sys.executable, "-m", "tidewright.runtime.worker"]
        arguments += ["--connection", str(theirs.fileno()), "--parent", str(os.getpid()), "--fifo", str(self.fifo)]
        passed = [theirs.fileno()]
        if kind == "be":
            # In SCHED_IDLE a worker waits behind everything else on its core, also to stop: only where nothing better keeps it
            # out of the way of real-time work.
            arguments += ["--nice", "10"] if self._nice else ["--idle"]
        if self.level is StopLevel.GATE:
            self._flag = memory.create("gate", FLAG_BYTES)
            self._resumed = os.eventfd(0, os.EFD_CLOEXEC)
            self._page = memoryview(memory.attach(self._flag, FLAG_BYTES)).cast("I")
            arguments += ["--gate", str(self._flag), str(self._resumed)]
            passed += [self._flag, self._resumed]
        return arguments, passed

    def send(self, message: Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Hand it a request. One that is gone, or takes in nothing though little is ever under way, shows by its end."""
        try:
            send(self.connection, message, descriptors)
        except BlockingIOError:
            self.kill()
        except OSError:
            pass  # it is reaped in a moment

    def stop(self) -> bool:
        """Ask it to stop. Returns whether that is acknowledged already; else ``has_stopped`` will say so, or its report."""
        if self.level is StopLevel.SIGNAL:
            os.kill(self.pid, signal.SIGSTOP)
        elif self.level is StopLevel.GATE:
            self.stop_number = self.stop_number % 0xFFFFFFFF + 1
            self._page[0] = self.stop_number
        return self.level is StopLevel.NONE

    def resume(self) -> None:
        if self.level is StopLevel.SIGNAL:
            os.kill(self.pid, signal.SIGCONT)
        elif self.level is StopLevel.GATE:
            self._page[0] = 0
            os.eventfd_write(self._resumed, 1)

    def has_stopped(self) -> bool:
        """Whether a stop by signal has been carried out since the last question."""
        try:
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        except ChildProcessError:
            return False  # it has ended and was reaped

    def await_stop(self) -> None:
        """Sleep until a stop by signal has been carried out, or it has ended; what happened stays to be asked for."""
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def reap(self) -> bool:
        """Whether it has ended; ``exit_status`` as subprocess gives it."""
        if self._exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_status = os.waitstatus_to_exitcode(status)
        return self._exit_status is not None

    def kill(self) -> None:
        """End it, whatever it is doing. Large memory takes a while to be freed: it is reaped when it has (``reap``)."""
        if self._exit_status is None:
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it and close what was shared with it."""
        self.kill()
        self.connection.close()
        for descriptor in (self._flag, self._resumed):
            if descriptor >= 0:
                os.close(descriptor)
        self._flag = self._resumed = -1

    def resident_bytes(self) -> int:
        """Memory that it uses now (proc(5), statm); 0 where it is gone."""
        try:
            with open(f"/proc/{self.pid}/statm", encoding="ascii") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError):
            return 0

    def cpu_s(self) -> float:
        """Processor time that it has used (proc(5), stat); 0 where it is gone."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="ascii", errors="replace") as stat:
                fields = stat.read().rsplit(")", 1)[1].split()
        except (OSError, IndexError):
            return 0.0
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
