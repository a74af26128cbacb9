"""What every kind of device can do for a node. Implementations pass ``tidewright.testing.devices``."""

from __future__ import annotations

from typing import Literal, Protocol

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
    alone: bool = False
    """Its program counts one device, which is 0, as on a node of its own."""


class Slice(Struct, frozen=True):
    """What ``holder`` has of one device. An equal part of it is for each of ``ranks`` processes.

    Compute of class ``rt`` is set aside, and its work goes first; of class ``be`` (best effort) none is, and its work runs in
    what the others leave. A ``frozen`` holder's processes are stopped: they need no compute, and their memory stays where it is.
    """

    holder: str
    device: int
    compute: int = 0
    """Thousandths of the device; 0: none is set aside."""
    memory: int = 0
    """Bytes; 0: not asked for."""
    share_class: Literal["rt", "be"] = "rt"
    ranks: int = 1
    frozen: bool = False

    @property
    def set_aside(self) -> int:
        """Thousandths of the device's compute that no other holder can have."""
        return self.compute if self.share_class == "rt" and not self.frozen else 0


class ShareMeans(Struct, frozen=True):
    """A way to hold a share to what it has; ``text`` says it in one line.

    ``needs``: what the host must offer for it, which the agent knows (``checkpoint.limits.HostLimits.offers``); empty: nothing.
    """

    level: str
    text: str
    needs: Literal["", "cpu weights", "idle groups"] = ""


COUNTED_ONLY = "counted only"
"""The level of what is counted when shares are placed, and enforced by nothing."""


class ShareGrant(Struct, frozen=True):
    """What each rank of a share gets, and the means by which it is enforced: of each kind those that may serve, strongest first;
    none where nothing was asked for."""

    env: dict[str, str] = {}
    """Variables; where a number is a limit (launch.memory_share), a lower one of the program's own stays."""
    weight: int = 0
    """CPU time under contention, relative to 1000 of a rank without a share; 0: like such a rank."""
    idle: bool = False
    """It is to run only in CPU time that nothing else wants."""
    compute: tuple[ShareMeans, ...] = ()
    memory: tuple[ShareMeans, ...] = ()
    share_class: tuple[ShareMeans, ...] = ()


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

    def environment(
        self, devices: tuple[int, ...], sharers: int = 1, counted: tuple[int, ...] = ()
    ) -> DeviceEnvironment:
        """What a rank on ``devices`` gets when ``sharers`` ranks share them. Raises UsageError for unknown indices.

        ``counted``: devices of all ranks of the node, in the order in which programs count them that name a device by its place
        there (``cuda:LOCAL_RANK``); empty: just ``devices``. For backends whose programs do so."""
        ...

    def share(self, part: Slice) -> ShareGrant:
        """Set a part of a device aside; in place of what its holder had until now. Raises UsageError, and changes nothing,
        when the device has not so much left: rt compute adds up to 1000 at most, memory (not of frozen ones) to the device's."""
        ...

    def release(self, holder: str) -> None:
        """The holder has no part of a device any more. Harmless for unknown ones."""
        ...

    def shares(self) -> tuple[Slice, ...]:
        """Every part that is set aside, by device and holder."""
        ...

    def usage(self) -> tuple[DeviceUsage, ...]:
        """One entry per device, by index. Raises WorldError when the devices cannot be asked."""
        ...

    def close(self) -> None:
        """Close the driver; safe to call twice."""
        ...
