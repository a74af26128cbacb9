"""The health of a node's devices: looked at every few seconds, published when it changes, remembered over restarts of the agent.

A fault that only a reset ends is kept in ``health.json`` until the host is restarted, the backend sees the reset, or an operator
says that the devices are sound (``tide undrain``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from ..base.atomic import write_atomically
from ..base.errors import WorldError
from ..devices.protocol import Backend, DeviceHealth
from ..model.node import DeviceFault

log = logging.getLogger(__name__)

LOOK_S = 5.0
"""Between two looks; an error is known within this, and acted on within a few seconds more."""
ANSWER_S = 20.0
"""Longest wait for the driver; calls into one that hangs (a GPU off the bus) may never return."""

Faults = tuple[DeviceFault, ...]


class _Kept(Struct, omit_defaults=True):
    """``health.json``: the faults of this boot that last, by device."""

    boot: str
    faults: dict[int, DeviceFault] = {}


class HealthMonitor:
    """Watches ``backend``; ``publish`` is called in the event loop with all faults, whenever they have changed."""

    def __init__(self, backend: Backend, path: Path, boot: str, publish: Callable[[Faults], None]) -> None:
        self._backend, self._path, self._publish = backend, path, publish
        self._devices = backend.discover().devices
        self._one = threading.Lock()
        self._unanswered: asyncio.Future[Faults] | None = None
        """A look that took longer than ANSWER_S, and its thread with it."""
        self._kept = _load(path, boot)
        self._seen: dict[int, bool] = {}
        """Devices whose lasting fault the backend has reported itself, so that it decides on their recovery."""
        self.faults: Faults = ()

    def look(self) -> Faults:
        """Ask the devices now; blocks. A driver that does not answer closes all of them."""
        with self._one:
            try:
                found = {
                    one.index: DeviceFault(one.index, one.note, one.broken)
                    for one in self._remembered(self._backend.health())
                    if not one.ok
                }
            except WorldError as error:
                found = {index: DeviceFault(index, str(error)) for index in range(self._devices)}
            faults = {**{index: one for index, one in self._kept.faults.items() if index < self._devices}, **found}
            return tuple(faults[index] for index in sorted(faults))

    def _remembered(self, health: tuple[DeviceHealth, ...]) -> tuple[DeviceHealth, ...]:
        """Bring what is kept in line with what the backend reports."""
        kept = dict(self._kept.faults)
        for one in health:
            if one.lasts:
                self._seen[one.index] = True
                kept[one.index] = DeviceFault(one.index, one.note, one.broken)
            elif self._seen.pop(one.index, False):
                kept.pop(one.index, None)
        if kept != self._kept.faults:
            self._kept.faults = kept
            self._save()
        return health

    def forgive(self) -> None:
        """An operator says that the devices are sound: only what is wrong from now on counts."""
        with self._one:
            self._backend.forgive()
            self._kept.faults = {}
            self._seen.clear()
            self._save()

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the next agent will not know, this one does
            write_atomically(self._path, msgspec.json.encode(self._kept))

    async def under(self, devices: tuple[int, ...]) -> str:
        """Why a rank on these devices may have died through no fault of its own; empty when they are sound."""
        await self.refresh()
        return next((f"device {one.device}: {one.why}" for one in self.faults if one.device in devices), "")

    async def refresh(self) -> None:
        """Look, and publish what is new."""
        faults = await self._answer()
        if faults != self.faults:
            log.warning("devices out of service: %s", "; ".join(f"{one.device}: {one.why}" for one in faults) or "none")
            self.faults = faults
            self._publish(faults)

    async def _answer(self) -> Faults:
        """What ``look`` finds; all devices while the driver hangs, and what was known before when ``look`` itself fails:
        ends of ranks and the controller's first question wait for this."""
        if self._unanswered is None or self._unanswered.done():
            looking = asyncio.ensure_future(asyncio.to_thread(self.look))
            await asyncio.wait({looking}, timeout=ANSWER_S)
            self._unanswered = None if looking.done() else looking
            if looking.done():
                try:
                    return looking.result()
                except Exception:
                    log.exception("the devices' health cannot be asked")
                    return self.faults
        why = f"the driver has not answered for {ANSWER_S:.0f} s; see dmesg, reset the device or restart the host"
        return tuple(DeviceFault(index, why) for index in range(self._devices))

    async def watch(self) -> None:
        """Look again and again."""
        while True:
            await self.refresh()
            await asyncio.sleep(getattr(self._backend, "look_s", LOOK_S))


def _load(path: Path, boot: str) -> _Kept:
    try:
        kept = msgspec.json.decode(path.read_bytes(), type=_Kept)
    except (OSError, msgspec.MsgspecError):
        return _Kept(boot)
    return kept if kept.boot == boot else _Kept(boot)
