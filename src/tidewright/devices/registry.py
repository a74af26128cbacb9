"""Device backends by name, third parties' through the entry point group ``tidewright.devices``.

A factory takes ``name`` (of the node) and ``slots`` (0: as many as there are) and raises WorldError without hardware.
"""

from __future__ import annotations

import msgspec

from ..base.errors import UsageError, WorldError
from ..base.registry import Registry
from ..model.node import NodeSpec
from .protocol import Backend, DeviceEnvironment, DeviceHealth, DeviceUsage, ShareGrant, Slice

backends = Registry(
    "device backend",
    "tidewright.devices",
    {
        "cpu": "tidewright.devices.cpu:open_backend",
        "nvidia": "tidewright.devices.nvidia:open_backend",
        "fake": "tidewright.devices.fake:open_backend",
    },
)


def open_backend(choice: str, name: str, slots: int = 0) -> Backend:
    """The backend called ``choice``; ``auto`` takes NVIDIA devices where there are any, else CPU slots with a note."""
    if choice != "auto":
        backend: Backend = backends.get(choice)(name=name, slots=slots)
        return backend
    try:
        return backends.get("nvidia")(name=name, slots=0)  # type: ignore[no-any-return]
    except (WorldError, UsageError) as absent:
        return StandIn(backends.get("cpu")(name=name, slots=slots), f"CPU slots stand in as devices: {absent}")


class StandIn:
    """A backend used for want of another; its node carries a line that says so."""

    def __init__(self, inner: Backend, note: str) -> None:
        self._inner, self._note = inner, note.splitlines()[0]
        self.name = inner.name

    def discover(self) -> NodeSpec:
        spec = self._inner.discover()
        return msgspec.structs.replace(spec, note=" · ".join(filter(None, (self._note, spec.note))))

    def health(self) -> tuple[DeviceHealth, ...]:
        return self._inner.health()

    def forgive(self) -> None:
        self._inner.forgive()

    def environment(
        self, devices: tuple[int, ...], sharers: int = 1, counted: tuple[int, ...] = ()
    ) -> DeviceEnvironment:
        return self._inner.environment(devices, sharers, counted)

    def share(self, part: Slice) -> ShareGrant:
        return self._inner.share(part)

    def release(self, holder: str) -> None:
        self._inner.release(holder)

    def shares(self) -> tuple[Slice, ...]:
        return self._inner.shares()

    def usage(self) -> tuple[DeviceUsage, ...]:
        return self._inner.usage()

    def close(self) -> None:
        self._inner.close()
