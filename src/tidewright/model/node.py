"""Hosts with devices, and the allocations that name them."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

MAX_DEVICES_PER_NODE = 64
"""A mask of a node's devices must fit the journal's 64-bit numbers; the largest node sold has 16."""


class NodeSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A host whose devices are all of one kind. ``domain`` is its place in the topology, outermost first.

    ``kind`` is a lower-case device name (``"h100"``, ``"cpu"``); ``device_memory`` and ``memory`` are bytes.
    """

    name: str
    kind: str = "gpu"
    devices: int = 8
    device_memory: int = 0
    memory: int = 0
    cpus: int = 0
    domain: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    note: str = ""
    """One line on health for ``tide nodes``, e.g. why no GPU was found."""
    full: bool = False
    """Whether its agent can take full images of unmodified jobs and restore them (level FULL)."""


def usable(node: NodeSpec) -> NodeSpec:
    """The node with as many devices as a snapshot's 64-bit masks can name; its note says when these are not all."""
    if 0 <= node.devices <= MAX_DEVICES_PER_NODE:
        return node
    note = f"only {MAX_DEVICES_PER_NODE} of its {node.devices} devices are used"
    return replace(node, devices=max(0, min(node.devices, MAX_DEVICES_PER_NODE)), note=note)


class DeviceFault(Struct, frozen=True, omit_defaults=True):
    """Why a device takes no new work. ``broken``: nothing on it can go on, so a job that cannot be suspended is started again;
    otherwise its jobs are moved when they can be, and run on when they cannot."""

    device: int
    why: str
    broken: bool = False


class PartResources(NamedTuple):
    """What a part takes of its node besides the devices themselves: thousandths of host CPUs, bytes of host memory, and of a
    share the bytes of its device's memory (-1: in proportion to its ``milli``)."""

    cpus_milli: int = 0
    memory: int = 0
    device_memory: int = -1


class Part(NamedTuple):
    """Devices of one node: bit i of ``mask`` is device i. ``milli`` below 1000 is a share of each.

    ``resources``: None where nothing was asked for but devices. Journals of earlier versions have parts without it.
    """

    node: int
    mask: int
    milli: int = 1000
    resources: PartResources | None = None


Allocation = tuple[Part, ...]
"""Which devices a job has; nodes are the book's indices, in rank order."""


def without_memory(allocation: Allocation) -> Allocation:
    """The same devices and CPUs without the host's memory: what a frozen job gives up, since its memory stays where it is."""
    return tuple(
        part if part.resources is None else part._replace(resources=part.resources._replace(memory=0))
        for part in allocation
    )


def device_count(allocation: Allocation) -> int:
    """Devices touched, a share counting as one."""
    if len(allocation) == 1:
        return allocation[0].mask.bit_count()
    return sum(part.mask.bit_count() for part in allocation)


def milli_devices(allocation: Allocation) -> int:
    """Thousandths of devices held."""
    if len(allocation) == 1:
        return allocation[0].mask.bit_count() * allocation[0].milli
    return sum(part.mask.bit_count() * part.milli for part in allocation)


def lone_node(allocation: Allocation) -> int:
    """One more than the number of the only node with devices of an allocation; 0 for none or several."""
    return allocation[0].node + 1 if len(allocation) == 1 else 0


def bits(mask: int) -> list[int]:
    """Positions of the set bits, ascending."""
    found = []
    while mask:
        low = mask & -mask
        found.append(low.bit_length() - 1)
        mask ^= low
    return found


def ranks_between(first: int, after: int, seats: int, ranks: int) -> int:
    """Of ``ranks`` dealt over ``seats`` devices by ``rank_layout``, those whose first device is in ``range(first, after)``."""
    return -(-after * ranks // seats) + (-first * ranks // seats)


class RankPlace(NamedTuple):
    """One rank's seat: its node index and the device indices it sees."""

    rank: int
    local_rank: int
    node: int
    devices: tuple[int, ...]


def rank_layout(allocation: Allocation, ranks: int) -> list[RankPlace]:
    """Seats of ``ranks`` ranks over an allocation, in order; several ranks share a device when ranks outnumber devices.

    Ranks are dealt in contiguous runs, as torchrun does, so neighbouring ranks sit on one node. Those of a job without devices
    sit on its first node.
    """
    seats = [(part.node, device) for part in allocation for device in bits(part.mask)]
    if not seats:
        return [RankPlace(rank, rank, allocation[0].node, ()) for rank in range(ranks)]
    local: dict[int, int] = {}
    places = []
    for rank in range(ranks):
        first = rank * len(seats) // ranks
        last = max(first + 1, (rank + 1) * len(seats) // ranks)
        node = seats[first][0]
        mine = tuple(device for at, device in seats[first:last] if at == node)
        places.append(RankPlace(rank, local.get(node, 0), node, mine))
        local[node] = local.get(node, 0) + 1
    return places
