"""What the runtime needs of whatever runs a client's tasks: a process of its own, or its queue in the worker of a device."""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from typing import Any

from msgspec import Struct

from ..ladder import StopLevel
from ..transport.messages import close_all, receive, worker_reports
from .child_process import ChildProcess


class QueueWorker(ABC):
    """``level``: how its tasks are stopped. ``connection``: on which its reports come."""

    process: ChildProcess
    level: StopLevel
    connection: socket.socket
    stop_number: int
    """Of the latest stop at a gate: an acknowledgement names it, so that a late one is not taken for another's."""
    shared = False
    """Whether other clients use the process, too."""

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    @property
    def exit_status(self) -> int | None:
        """As subprocess gives it; None while it has not been reaped."""
        return self.process.exit_status

    @property
    def killed_for_another(self) -> bool:
        """Whether its process was killed for what another client did."""
        return False

    @abstractmethod
    def send(self, message: Struct, descriptors: tuple[int, ...] = ()) -> None:
        """Hand it a request. One that is gone shows by its end."""

    def flush(self) -> None:  # noqa: B027 - most have nothing unsent
        """Send what could not be sent before."""

    def receive(self) -> Any:
        """Its next report. Raises ConnectionError where it is gone, BlockingIOError where there is none."""
        report, descriptors = receive(self.connection, worker_reports)
        close_all(descriptors)
        return report

    @abstractmethod
    def stop(self) -> bool:
        """Ask it to stop. Returns whether that need not be waited for; else ``has_stopped`` will say so, or its report."""

    @abstractmethod
    def resume(self) -> None:
        """The stop is over."""

    def pad(self, share: int) -> None:  # noqa: B027 - on cores the kernel's scheduler shares them out
        """Real-time work runs, or is over: the queue may go on beside it with this share of the device; 0: no more."""

    def has_stopped(self) -> bool:
        """Whether a stop by signal has been carried out since the last question."""
        return False

    def await_stop(self) -> None:  # noqa: B027 - only a stop by signal is waited for
        """Sleep until a stop by signal has been carried out, or it has ended."""

    def reap(self) -> bool:
        """Whether it has ended."""
        return self.process.reap()

    def kill(self) -> None:
        """End it, whatever it is doing."""
        self.process.kill()

    @abstractmethod
    def close(self) -> None:
        """Close what was shared with it, and end it where it is this client's alone."""

    def resident_bytes(self) -> int:
        """Memory that it uses now; 0 where it is gone, or not this client's alone."""
        return 0

    def cpu_s(self) -> float:
        """Processor time that it has used; 0 where it is gone, or not this client's alone."""
        return 0.0
