"""The worker of one client on the host's cores, as its parent sees it: stopped and continued with acknowledgement."""

from __future__ import annotations

import contextlib
import os
import signal
import socket

from msgspec import Struct

from ..ladder import StopLevel
from ..transport import memory
from ..transport.messages import send
from ..worker.gate import FLAG_BYTES
from .child_process import ChildProcess
from .queue_worker import QueueWorker
from .settings import RuntimeSettings

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
FIFO_WORKER, FIFO_RUNTIME = 50, 60
"""The runtime comes before its workers: it must be able to end one that spins."""


class WorkerProcess(QueueWorker):
    """``kind``: rt or be. Real-time workers are never stopped, and run on the first cores of the device alone."""

    def __init__(self, settings: RuntimeSettings, kind: str, threads: int) -> None:
        self.level = settings.stop if kind == "be" else StopLevel.NONE
        self._nice = settings.fifo
        self.fifo = FIFO_WORKER if kind == "rt" and settings.fifo else 0
        self.stop_number = 0
        self._flag = self._resumed = -1
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.connection.setblocking(False)
        arguments, passed = self._arguments(kind)
        environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads))}
        self.process = ChildProcess(arguments, environment, theirs, passed)
        cores = settings.cores[:threads] if kind == "rt" else settings.cores
        with contextlib.suppress(OSError):  # it may have died already: that is seen when it is reaped
            os.sched_setaffinity(self.pid, cores)

    def _arguments(self, kind: str) -> tuple[list[str], list[int]]:
        arguments, passed = ["-m", "tidewright.runtime.worker", "--fifo", str(self.fifo)], []
        if kind == "be":
            # In SCHED_IDLE a worker waits behind everything else on its core, also to stop: only where nothing better keeps it
            # out of the way of real-time work.
            arguments += ["--nice", "10"] if self._nice else ["--idle"]
        if self.level is StopLevel.GATE:
            self._flag = memory.create("gate", FLAG_BYTES)
            self._resumed = os.eventfd(0, os.EFD_CLOEXEC)
            self._page = memoryview(memory.attach(self._flag, FLAG_BYTES)).cast("I")
            arguments += ["--gate", str(self._flag), str(self._resumed)]
            passed = [self._flag, self._resumed]
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
