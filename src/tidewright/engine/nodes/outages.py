"""What takes no new work although its agent is connected: faulty devices, devices that have changed, cordoned nodes."""

from __future__ import annotations

from msgspec import Struct

from ...model.cause import Cause, reported
from ...model.node import DeviceFault, NodeSpec


class Cordon(Struct, frozen=True):
    """A node that refused launches in a row takes no new work until ``until`` (absolute, microseconds)."""

    why: Cause
    until: int


class Drain(Struct, frozen=True):
    """When an operator drained a node (engine time, microseconds), and whether the jobs on it are to leave it."""

    since: int
    moves: bool = False


class Refusals(Struct, frozen=True):
    """Launches that a node refused in a row, of which jobs, and how often it was cordoned for such a row."""

    count: int
    jobs: tuple[int, ...]
    cordons: int = 0


class Changed(Struct, frozen=True):
    """A node that came back with other devices while jobs hold some of the old ones.

    ``node`` is its new description, ``gone`` the held devices that are not what they were; ``whole``: the others are numbered
    anew, so that nothing new is placed on the node before the jobs on ``gone`` have left.
    """

    node: NodeSpec
    gone: tuple[DeviceFault, ...]
    whole: bool = False
    why: Cause | None = None
    """What is to be said of each of ``gone``; None: what is said there (by an earlier version)."""


class DeviceOutage(Struct, frozen=True):
    """A device that takes no new work. ``broken`` as in ``DeviceFault``."""

    device: int
    why: Cause
    broken: bool


class Outages(Struct):
    """Nodes are the book's indices."""

    faults: dict[int, tuple[DeviceFault, ...]] = {}
    """What the node's agent says of its devices."""
    changed: dict[int, Changed] = {}
    cordoned: dict[int, Cordon] = {}
    refusals: dict[int, Refusals] = {}
    drains: dict[int, Drain] = {}
    """Of the nodes in ``Book.drained``; none for one that an earlier version drained."""

    def of(self, node: int) -> list[DeviceOutage]:
        """Every device of the node that takes no new work, those that have changed first."""
        changed, faults = self.changed.get(node), self.faults.get(node, ())
        gone = changed.gone if changed else ()
        why = changed.why if changed else None
        found = [DeviceOutage(fault.device, why or reported(fault.why), fault.broken) for fault in gone]
        return found + [DeviceOutage(fault.device, reported(fault.why), fault.broken) for fault in faults]

    def mask(self, node: int, size: int) -> int:
        """The devices of a node of ``size`` that take no new work."""
        changed = self.changed.get(node)
        if changed is None and node not in self.faults:
            return 0
        whole = (1 << size) - 1
        if changed is not None and changed.whole:
            return whole
        mask = 0
        for fault in self.of(node):
            mask |= 1 << fault.device
        return mask & whole
