"""Which of some NVIDIA devices had a critical error, by NVML's events. Used by whoever gives devices out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})
"""XID errors caused by a program, not the device (the list that NVIDIA's k8s-device-plugin skips, health.go)."""


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


class CriticalErrors:
    """Those of ``handles``, from now on; ``uuids`` in the same order. ``nvml`` is open."""

    def __init__(self, nvml: Any, handles: Sequence[Any], uuids: Sequence[str]) -> None:
        self._nvml, self._uuids = nvml, tuple(uuids)
        self._events = self._subscribe(handles)

    def take(self) -> dict[int, int]:
        """The XID of each device hit since the last call, by place in ``handles``; waits for none."""
        found: dict[int, int] = {}
        while self._events is not None:
            try:
                event = self._nvml.nvmlEventSetWait_v2(self._events, 0)
            except self._nvml.NVMLError:
                break
            if (xid := int(event.eventData)) not in APPLICATION_XIDS:
                found.update(dict.fromkeys(self._hit(event.device), xid))
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
