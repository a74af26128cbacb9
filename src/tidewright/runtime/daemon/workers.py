"""Where a client's tasks run: a process of its own on the host's cores, or its queue in the worker of a device."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import msgspec

from ...base.errors import UsageError, WorldError
from ..padding.admission import fingerprint, gpu_fingerprint
from ..transport.messages import Hello
from .device_worker import DeviceProcess, SharedWorkerQueue
from .queue_worker import QueueWorker
from .settings import RuntimeSettings
from .worker_process import WorkerProcess

MOST_FAILURES = 3
"""Starts of a device's worker in a row that have failed after which the runtime ends."""


class Workers:
    """Starts the worker of a device when it is made. Raises UsageError where there is no such device, WorldError where its worker
    does not say whether there is."""

    def __init__(self, settings: RuntimeSettings) -> None:
        self._settings = settings
        self._failures = 0
        self._device = DeviceProcess(settings) if settings.device != "cpu" else None
        ready = self._device.await_ready() if self._device is not None else None
        self.fingerprint = fingerprint(len(settings.cores), settings.rt_threads)
        """Of the device, as slow-down tables know it."""
        facts: dict[str, Any] = {"device": settings.device}
        if ready is not None:
            facts |= {"gpu": ready.name, "sms": ready.multiprocessors, "memory": ready.memory_bytes}
            self.fingerprint = gpu_fingerprint(ready)
            largest = max(settings.shares, default=0)
            if largest >= ready.multiprocessors:
                raise UsageError(
                    f"{largest} multiprocessors of {ready.multiprocessors} leave none to real-time work",
                    "give best-effort work fewer (--padding-sms, or --sms of calibrate)",
                )
        self.facts = facts | {"fingerprint": msgspec.to_builtins(self.fingerprint)}
        """Of the device, for those who ask."""

    def spawn(self, hello: Hello, placed: bool = False) -> QueueWorker:
        """For a queue of this client. ``placed``: it has models, which are to be made again."""
        settings = self._settings
        if self._device is None:
            usual = settings.rt_threads if hello.kind == "rt" else settings.be_threads
            return WorkerProcess(settings, hello.kind, hello.threads or usual)
        if self._device.reap() or self._device.killed:
            self._restart(settings)
        return SharedWorkerQueue(self._device, hello.kind, settings.stop, placed)

    def _restart(self, settings: RuntimeSettings) -> None:
        """Raises WorldError where the device cannot be opened any more: the runtime ends, and its job is retried elsewhere."""
        assert self._device is not None
        why = "" if self._device.killed else self._device.failure()
        self._failures = self._failures + 1 if why else 0
        if self._failures >= MOST_FAILURES:
            raise WorldError(f"the device cannot be opened again: {why}")
        self._device.close()
        self._device = DeviceProcess(settings)

    def look_after(self) -> None:
        """Now and then: what clients that are gone left on the device has its time, also when no other is there."""
        if self._device is not None and self._device.exit_status is None:
            self._device.check_left_behind()

    def close(self) -> None:
        """Kill the worker of a device; those of clients are theirs to close."""
        if self._device is not None:
            self._device.kill()
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self._device.pid, 0)
            self._device.close()
