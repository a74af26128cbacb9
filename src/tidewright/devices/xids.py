"""NVIDIA's XID errors: which of some devices had one, by NVML's events, and what each means for work on the device.

The classes follow NVIDIA's catalog (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html) and the list that NVIDIA's
k8s-device-plugin skips (health.go): an immediate action of RESTART_APP is the program's affair, RESET_GPU and RESTART_BM are the
device's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

APPLICATION_XIDS = frozenset({8, 11, 13, 31, 32, 43, 45, 68, 69, 109})
"""Errors caused by a program, which fails by itself: illegal addresses and instructions, timeouts of its kernels, its end."""


class XidEffect(NamedTuple):
    """What a hardware XID means. ``lasts``: until the device is reset. ``broken``: nothing on the device can go on."""

    text: str
    lasts: bool
    broken: bool


_HARDWARE = {
    46: XidEffect("the GPU stopped processing; reset it", lasts=True, broken=True),
    48: XidEffect("uncorrectable (double bit) ECC error; reset the GPU", lasts=True, broken=True),
    62: XidEffect("its internal microcontroller halted; reset the GPU", lasts=True, broken=True),
    63: XidEffect(
        "a memory row is to be remapped (page retired); reset the GPU when it is idle", lasts=True, broken=False
    ),
    64: XidEffect("a memory row could not be remapped; reset the GPU", lasts=True, broken=True),
    74: XidEffect("NVLink error; reset the GPU, check its links if it recurs", lasts=True, broken=True),
    79: XidEffect("the GPU has fallen off the bus; restart the host", lasts=True, broken=True),
    92: XidEffect("many correctable (single bit) ECC errors", lasts=False, broken=False),
    94: XidEffect("contained ECC error: the program that met it was ended", lasts=False, broken=False),
    95: XidEffect("uncontained ECC error; reset the GPU", lasts=True, broken=True),
    110: XidEffect("security fault; reset the GPU", lasts=True, broken=True),
    119: XidEffect("its system processor (GSP) does not answer; reset the GPU", lasts=True, broken=True),
    120: XidEffect("error of its system processor (GSP); reset the GPU", lasts=True, broken=True),
    140: XidEffect("unrecovered ECC error; reset the GPU", lasts=True, broken=True),
    143: XidEffect("the GPU could not be initialised; reset it", lasts=True, broken=True),
}
_UNKNOWN = XidEffect("device error; see dmesg", lasts=False, broken=False)
"""An XID that is not listed here: the device is watched for a while."""


def xid_effect(number: int) -> XidEffect | None:
    """What an XID means for the device; None for an error of a program."""
    return None if number in APPLICATION_XIDS else _HARDWARE.get(number, _UNKNOWN)


def text(value: str | bytes) -> str:
    """NVML gave bytes before nvidia-ml-py 11.5, str since."""
    return value.decode() if isinstance(value, bytes) else value


def answers(nvml: Any, handle: Any) -> bool:
    """Whether the driver still has a device."""
    try:
        nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:
        return False
    return True


def recovery_action(nvml: Any, handle: Any) -> int | None:
    """What the driver wants done about a device: 0 nothing, otherwise a reset or a restart; None where it does not say
    (NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, drivers of 2025 and later)."""
    try:
        [value] = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    except (AttributeError, ValueError, nvml.NVMLError):
        return None
    return int(value.value.uiVal) if not value.nvmlReturn else None


class CriticalErrors:
    """Those of ``handles``, from now on; ``uuids`` in the same order. ``nvml`` is open."""

    def __init__(self, nvml: Any, handles: Sequence[Any], uuids: Sequence[str]) -> None:
        self._nvml, self._uuids = nvml, tuple(uuids)
        self._events = self._subscribe(handles)

    def take(self) -> list[tuple[int, int]]:
        """(place in ``handles``, XID) of every critical error since the last call, in order; waits for none."""
        found: list[tuple[int, int]] = []
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                break
            if (xid := int(event.eventData)) not in APPLICATION_XIDS:
                found += [(device, xid) for device in self._hit(event.device)]
        return found

    def _subscribe(self, handles: Sequence[Any]) -> Any:
        """An event set of critical XIDs, or None where the driver offers none (MIG, some virtual machines)."""
        nvml = self._nvml
        try:
            events = nvml.nvmlEventSetCreate()
            for handle in handles:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError:
            return None
        return events

    def _hit(self, device: Any) -> Sequence[int]:
        """A handle that NVML cannot name is blamed on every device, as NVIDIA's device plugin does."""
        try:
            return [self._uuids.index(text(self._nvml.nvmlDeviceGetUUID(device)))]
        except (self._nvml.NVMLError, ValueError):
            return range(len(self._uuids))
