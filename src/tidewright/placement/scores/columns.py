"""What scores see: nodes as columns of numbers, and one request for parts of devices. Pure data.

Devices are counted in units of one whole device, 1,000 (milli-devices) unless ``size`` says otherwise.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
from msgspec import Meta
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Positive = Annotated[int, Meta(ge=1)]
"""A setting of a score by which it divides."""

WHOLE = 1_000
"""Units of a whole device: milli-devices, as Alibaba's traces and FGD (ATC'23) count."""
ABSENT = -1
"""Free units where a node has no device: less than any request."""
NO_KIND = 62
"""Bit of ``ShareRequest.kinds`` that stands for kinds which no node has."""


class ShareRequest(NamedTuple):
    """What one pod asks for on one node: ``units`` of each of so many ``devices``, CPU and memory beside them."""

    units: int
    """Of each device; 0 without devices."""
    devices: int
    """How many of them; 0: none."""
    cpu: int = 0
    """Millicores."""
    memory: int = 0
    """MiB."""
    kinds: int = 0
    """Bit k: kind k of ``NodeColumns.kind`` will do; 0: any."""

    @property
    def total(self) -> int:
        """Units over all devices."""
        return self.units * self.devices


class NodeColumns(NamedTuple):
    """Nodes by row: N of them with at most G devices. A score must not write them."""

    free: Ints
    """[N, G] units free on each device; below 0 where there is none."""
    cpu: Ints
    """[N] free millicores."""
    memory: Ints
    """[N] free MiB."""
    kind: Ints
    """[N] number of the kind of its devices."""
    size: Ints
    """[N] units of one whole device."""
    devices: Ints
    """[N] how many devices it has."""
    pods: Ints
    """[N, 1 + G] pods there: column 0 counts those on a part of one device, column k those on k whole devices."""
    row: Ints
    """[N] each node's own number, the same in every selection of rows."""

    def take(self, rows: Ints | Mask) -> NodeColumns:
        """Copies of some rows."""
        return NodeColumns(*(column[rows] for column in self))

    def idle(self) -> Ints:
        """[N] units free over all devices."""
        found: Ints = np.maximum(self.free, 0).sum(axis=1)
        return found


def group_of(request: ShareRequest, size: int = WHOLE) -> int:
    """The column of ``NodeColumns.pods`` that counts a request; -1 for one without devices."""
    if not request.devices:
        return -1
    return 0 if request.devices == 1 and request.units < size else request.devices


def fits(nodes: NodeColumns, request: ShareRequest) -> Mask:
    """[N] where ``request`` can go: kind, CPU, memory, and so many devices with ``units`` free each."""
    found: Mask = (nodes.cpu >= request.cpu) & (nodes.memory >= request.memory)
    if request.kinds:
        found &= (request.kinds >> nodes.kind) & 1 == 1
    if request.devices == 1:
        found &= nodes.free.max(axis=1, initial=ABSENT) >= request.units
    elif request.devices:
        found &= (nodes.free >= request.units).sum(axis=1) >= request.devices
    return found


def fullest(free: Ints, units: int, count: int) -> tuple[int, ...]:
    """Devices of one node, ``free[G]``, by index: the ``count`` with the least free among those that have ``units``; the first
    among equals. Empty when so many do not fit."""
    enough = np.flatnonzero(free >= units)
    if len(enough) < count:
        return ()
    order = np.argsort(free[enough], kind="stable")[:count]
    return tuple(sorted(int(device) for device in enough[order]))
