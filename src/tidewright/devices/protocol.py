"""What every kind of device can do for a node. Implementations pass ``tidewright.testing.devices``."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..model.node import NodeSpec


class DeviceHealth(Struct, frozen=True):
    """``ok`` is False when nothing should be placed there; ``note`` says why in one line."""

    index: int
    ok: bool
    note: str = ""
    broken: bool = False
    """Nothing that runs on it can go on."""
    lasts: bool = False
    """Only a reset or a restart of the host ends it, not a restart of the agent."""


class DeviceUsage(Struct, frozen=True):
    """Memory in bytes, ids of processes on the device where known."""

    index: int
    percent: float = 0.0
    """Utilisation since the last look; negative when the device cannot tell it from that of others."""
    memory_used: int = 0
    processes: tuple[int, ...] = ()
    held: dict[int, int] = {}
    """Memory of each of ``processes``, as far as it is reported."""


class DeviceEnvironment(Struct, frozen=True):
    """How a rank is confined to its devices: variables to set, and the cores it may run on (empty: any)."""

    env: dict[str, str]
    cpus: tuple[int, ...] = ()


class Backend(Protocol):
    """One node's devices, all of one kind, numbered from 0. Methods may be called from any thread, one at a time."""

    name: str

    def discover(self) -> NodeSpec:
        """The node; same answer while the hardware stays. ``note`` is one line for ``tide nodes``."""
        ...

    def health(self) -> tuple[DeviceHealth, ...]:
        """One entry per device, by index. Raises WorldError when the devices cannot be asked."""
        ...

    def forgive(self) -> None:
        """An operator has seen to the devices: errors of the past are no longer held against them."""
        ...

    def environment(self, devices: tuple[int, ...], sharers: int = 1) -> DeviceEnvironment:
        """What a rank on ``devices`` gets when ``sharers`` ranks share them. Raises UsageError for unknown indices."""
        ...

    def usage(self) -> tuple[DeviceUsage, ...]:
        """One entry per device, by index. Raises WorldError when the devices cannot be asked."""
        ...

    def close(self) -> None:
        """Close the driver; safe to call twice."""
        ...
