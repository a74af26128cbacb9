"""The worker of a whole device, shared by all clients, and one client's queue on it, as the runtime sees them.

A CUDA device's streams and priorities belong to one context, so its clients have one process. When that is lost, all of them
lose what they had launched; another one makes their models again.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
import time
from collections import deque
from typing import Any

from msgspec import Struct

from ...base.errors import UsageError, WorldError
from ..ladder import StopLevel
from ..transport import messages as ms
from .child_process import ChildProcess
from .queue_worker import QueueWorker
from .settings import RuntimeSettings

log = logging.getLogger("tidewright.runtime")

MOST_UNSENT = 10_000
"""Requests that a queue of the worker is behind with before it is taken to hang."""
START_S = 120.0
"""Importing torch and opening a device may take as long on a busy host with a cold disk."""


class DeviceProcess(ChildProcess):
    """Started when it is made. Raises UsageError with what it says where it has no device, WorldError where it says nothing."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self.killed = self._ready = False
        self._refusal = ""
        self.settings = settings
        self._left_behind: dict[socket.socket, tuple[float, float]] = {}
        """Queues of clients that are gone, until the worker has nothing of theirs: the time for that, and when it is over."""
        self._unopened: deque[tuple[ms.OpenQueue, socket.socket]] = deque()
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.setblocking(False)
        options = ["--stop", settings.stop.value]
        if settings.shares:
            options += ["--shares", ",".join(map(str, settings.shares))]
        super().__init__((*settings.device_worker, *options), os.environ, theirs)

    def await_ready(self) -> ms.DeviceReady:
        """What device it has opened."""
        if not select.select([self.control], [], [], START_S)[0]:
            self.kill()
            raise WorldError(f"the device's worker said nothing within {START_S:g} s")
        try:
            said, _ = ms.receive(self.control, ms.device_reports)
        except OSError:
            raise WorldError("the device's worker ended before it had opened the device; see the log") from None
        if isinstance(said, ms.DeviceFailed):
            raise UsageError(said.message, said.remedy)
        found: ms.DeviceReady = said
        self._ready = True
        return found

    def _hear(self) -> None:
        """What a process that was started again says of its device."""
        if self._ready or self._refusal:
            return
        try:
            said, _ = ms.receive(self.control, ms.device_reports)
        except OSError:
            return
        self._ready = isinstance(said, ms.DeviceReady)
        self._refusal = said.message if isinstance(said, ms.DeviceFailed) else ""

    def failure(self) -> str:
        """Why it never had a device, of one that has ended; empty for one that had."""
        self._hear()
        self._hear()  # it may have left requests unread: that is said once, before what it has sent
        if self._ready:
            return ""
        return self._refusal or "its worker ended before it had opened the device"

    def open_queue(self, kind: Any, placed: bool = False) -> socket.socket:
        """The connection of a new queue. Of a process that is starting it is read later; of one that is gone it is closed."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._unopened.append((ms.OpenQueue(kind, placed), theirs))
        self.flush()
        return ours

    def leave(self, connection: socket.socket, limit_s: float) -> None:
        """The client of a queue is gone. What it has on the device, or is loading, has this time to end: it would keep all others
        from the device without end."""
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        self._left_behind[connection] = limit_s, time.monotonic() + limit_s

    def check_left_behind(self) -> None:
        """Now and then: see that no queue that was left behind keeps the device."""
        self._hear()
        for connection, (limit_s, until) in list(self._left_behind.items()):
            if _has_ended(connection):
                connection.close()
                del self._left_behind[connection]
            elif not self._ready:  # it is still starting: the time has not begun
                self._left_behind[connection] = limit_s, time.monotonic() + limit_s
            elif time.monotonic() > until and not self.killed:
                log.warning(
                    "what a client that is gone left on the device took more than %g s; a new worker starts", limit_s
                )
                self.kill()

    def flush(self) -> None:
        """Ask for the queues that could not be asked for before."""
        while self._unopened:
            request, theirs = self._unopened[0]
            try:
                ms.send(self.control, request, (theirs.fileno(),))
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                    return
            theirs.close()
            self._unopened.popleft()

    def kill(self) -> None:
        """End it, whatever it is doing, and remember that it was this runtime."""
        self.killed = True
        super().kill()

    def close(self) -> None:
        """Of one that has ended: what was shared with it."""
        for connection in (self.control, *self._left_behind):
            connection.close()


class SharedWorkerQueue(QueueWorker):
    """A client's queue in the worker of a device. Real-time work is launched before stops are acknowledged: its graph closes the
    gates itself, on the device."""

    shared = True
    process: DeviceProcess

    def __init__(self, process: DeviceProcess, kind: Any, level: StopLevel, placed: bool) -> None:
        self.process, self.level = process, level
        self.connection = process.open_queue(kind, placed)
        self._loading: set[int] = set()
        self.stop_number = 0
        self._killed = False
        self._unsent: deque[tuple[Struct, tuple[int, ...]]] = deque()

    @property
    def killed_for_another(self) -> bool:
        """Whether the process was killed for what another client did."""
        return self.process.killed and not self._killed

    def send(self, message: Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Hand it a request, in order; later (``flush``) where it is behind. One that stays behind hangs."""
        if isinstance(message, ms.MakeModel):
            self._loading.add(message.model)
        self._unsent.append((message, descriptors))
        self.flush()
        if len(self._unsent) > MOST_UNSENT:
            self.kill()

    def flush(self) -> None:
        """Send what could not be sent before."""
        self.process.flush()
        try:
            while self._unsent:
                ms.send(self.connection, *self._unsent[0])
                self._unsent.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._unsent.clear()  # it is reaped in a moment

    def receive(self) -> Any:
        """Its next report. Raises ConnectionError where it is gone, BlockingIOError where there is none."""
        self.flush()
        report = super().receive()
        if isinstance(report, ms.ModelMade | ms.ModelFailed):
            self._loading.discard(report.model)
        return report

    def stop(self) -> bool:
        """Stopped as far as others must wait: always at once."""
        if self.level is not StopLevel.NONE:
            self.stop_number = self.stop_number % 0xFFFFFFFF + 1
            self.send(ms.StopQueue(self.stop_number))
        return True

    def resume(self) -> None:
        if self.level is not StopLevel.NONE:
            self.send(ms.ResumeQueue())

    def pad(self, share: int) -> None:
        self.send(ms.PadQueue(share))

    def reap(self) -> bool:
        """Whether the process has ended; of one that was left alone, whether there is nothing to wait for."""
        return self.process.reap() or (self.connection.fileno() < 0 and not self._killed)

    def kill(self) -> None:
        """End the process of the device, with the queues of all clients."""
        self._killed = True
        self.process.kill()

    def close(self) -> None:
        """End this queue; what it has on the device is dropped there."""
        if self.process.killed or self.process.exit_status is not None:
            self.connection.close()
        elif self.connection.fileno() >= 0:
            settings = self.process.settings
            limit_s = settings.load_timeout_s if self._loading else settings.task_timeout_s
            self.process.leave(socket.socket(fileno=self.connection.detach()), limit_s)


def _has_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed it; reports that it had sent before are dropped."""
    try:
        while connection.recv(1, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True
