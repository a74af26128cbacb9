"""What is wrong with devices over time: which errors close a device, for how long, and what ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from msgspec import Struct

from .protocol import DeviceHealth
from .xids import xid_effect

QUARANTINE_S = 600.0
"""How long a device takes no new work after an error that passes by itself; one that recurs is bad enough to stay out."""


class _Fault(Struct):
    """One device's worst fault; ``until`` is monotonic seconds, 0 for a fault that lasts until the device is reset."""

    note: str
    broken: bool
    until: float


class FaultLog:
    """The faults of one node's devices, by index. ``clock`` gives monotonic seconds."""

    def __init__(self, quarantine_s: float = QUARANTINE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self.quarantine_s = quarantine_s
        self._clock = clock
        self._faults: dict[int, _Fault] = {}

    def xid(self, index: int, number: int) -> None:
        """The driver reported this XID on a device. Errors of programs are no fault of the device."""
        effect = xid_effect(number)
        if effect is not None:
            self._note(index, f"XID {number}: {effect.text}", effect.broken, effect.lasts)

    def lost(self, index: int) -> None:
        """The driver does not answer for a device now; once it does the device is watched for a while."""
        self._note(index, "the driver has lost the device", broken=True, lasts=False)

    def recovered(self, index: int) -> None:
        """The device was reset: nothing of what was is held against it."""
        self._faults.pop(index, None)

    def lasting(self) -> list[int]:
        """Devices with a fault that only a reset ends."""
        return [index for index, fault in self._faults.items() if not fault.until]

    def health(self, indices: Iterable[int]) -> tuple[DeviceHealth, ...]:
        """One entry per device; faults whose quarantine is over are forgotten."""
        now = self._clock()
        self._faults = {index: one for index, one in self._faults.items() if not one.until or one.until > now}
        return tuple(self._one(index) for index in indices)

    def _one(self, index: int) -> DeviceHealth:
        fault = self._faults.get(index)
        if fault is None:
            return DeviceHealth(index, True)
        return DeviceHealth(index, False, fault.note, fault.broken, not fault.until)

    def _note(self, index: int, note: str, broken: bool, lasts: bool) -> None:
        """The worse of two faults stays: one that lasts, then one on which nothing can go on, then the later."""
        until = 0.0 if lasts else self._clock() + self.quarantine_s
        before = self._faults.get(index)
        if before is None or (lasts, broken) >= (not before.until, before.broken):
            self._faults[index] = _Fault(note, broken, until)
