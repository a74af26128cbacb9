"""Where a client's tasks run: a process of its own on the host's cores, or its queue in the worker of a device."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from ..transport.messages import Hello
from .device_worker import DeviceProcess, SharedWorkerQueue
from .queue_worker import QueueWorker
from .settings import RuntimeSettings
from .worker_process import WorkerProcess


class Workers:
    """Starts the worker of a device when it is made. Raises UsageError where there is no such device, WorldError where its worker
    does not say whether there is."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._device = DeviceProcess(settings) if settings.device != "cpu" else None
        ready = self._device.await_ready() if self._device is not None else None
        self.facts: dict[str, Any] = {"device": settings.device}
        """Of the device, for those who ask."""
        if ready is not None:
            self.facts |= {"gpu": ready.name, "sms": ready.multiprocessors, "memory": ready.memory_bytes}

    def spawn(self, hello: Hello) -> QueueWorker:
        """For a queue of this client."""
        settings = self._settings
        if self._device is None:
            usual = settings.rt_threads if hello.kind == "rt" else settings.be_threads
            return WorkerProcess(settings, hello.kind, hello.threads or usual)
        if self._device.reap() or self._device.killed:
            self._device = DeviceProcess(settings)
        return SharedWorkerQueue(self._device, hello.kind, settings.stop)

    def close(self) -> None:
        """Kill the worker of a device; those of clients are theirs to close."""
        if self._device is not None:
            self._device.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._device.pid, 0)
            self._device.control.close()
