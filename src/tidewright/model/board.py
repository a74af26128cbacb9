"""The board: which devices are free, searchable in microseconds and undoable.

Nodes with equally many free devices share one bucket, an ``int`` used as a set of node indices: the best-fit node is
the lowest bit of the first non-empty bucket, copying a bucket is free, and iteration order never depends on hashing.
"""

from __future__ import annotations

from msgspec import Struct

from ..base.errors import Bug
from ..base.units import WHOLE_DEVICE
from .node import Allocation, NodeSpec, Part, PartResources, device_count
from .rate import TOGETHER, Spread

_NOTHING = (0, 0)
ALL_NODES = -1
"""The set of all nodes: every bit of a negative number is set."""


class Layout(Struct, frozen=True):
    """The fixed part of a pool: index i of ``nodes``, ``node_kind`` and ``node_size`` is node i, of the ``kind_`` tuples kind i.

    Sets of nodes are integers. ``domains[level][path]`` is such a set.
    """

    nodes: tuple[NodeSpec, ...]
    kinds: tuple[str, ...]
    node_kind: tuple[int, ...]
    node_size: tuple[int, ...]
    domains: tuple[dict[tuple[str, ...], int], ...]
    kind_devices: tuple[int, ...]
    """Devices of each kind in all, those of nodes that are down included."""
    kind_biggest: tuple[int, ...]
    """Devices of the biggest node of each kind."""
    kind_memory: tuple[int, ...]
    """Bytes of the largest device of each kind; 0 where no node says."""
    kind_imaging: tuple[int, ...]
    """The nodes of each kind that take full images; ``ALL_NODES`` when that is every node there is."""

    def most(self, kind: int, one_node: bool) -> int:
        """Devices of a kind that a job could have at most were all free, on one node or on any."""
        return (self.kind_biggest if one_node else self.kind_devices)[kind]

    @staticmethod
    def of(nodes: tuple[NodeSpec, ...]) -> Layout:
        """Index ``nodes``; kinds are numbered in order of first appearance."""
        kinds = tuple(dict.fromkeys(node.kind for node in nodes))
        depth = max((len(node.domain) for node in nodes), default=0)
        domains: list[dict[tuple[str, ...], int]] = [{} for _ in range(depth)]
        for index, node in enumerate(nodes):
            for level in range(len(node.domain)):
                path = node.domain[: level + 1]
                domains[level][path] = domains[level].get(path, 0) | (1 << index)
        node_kind = tuple(kinds.index(node.kind) for node in nodes)
        devices, biggest, memory, imaging = ([0] * len(kinds) for _ in range(4))
        for index, (node, kind) in enumerate(zip(nodes, node_kind, strict=True)):
            devices[kind] += node.devices
            biggest[kind] = max(biggest[kind], node.devices)
            memory[kind] = max(memory[kind], node.device_memory)
            imaging[kind] |= node.full << index
        every = (1 << len(nodes)) - 1
        return Layout(
            nodes, kinds, node_kind, tuple(node.devices for node in nodes), tuple(domains), tuple(devices), tuple(biggest),
            tuple(memory), tuple(ALL_NODES if takers == every else takers for takers in imaging),
        )  # fmt: skip

    def kind_mask(self, names: tuple[str, ...]) -> int:
        """Set of kind indices for device type names; no names means every kind."""
        if not names:
            return (1 << len(self.kinds)) - 1
        return sum(1 << index for index, kind in enumerate(self.kinds) if kind in names)

    def kind_index(self, name: str) -> int:
        """Index of a kind; -1 when no node is of it."""
        return self.kinds.index(name) if name in self.kinds else -1

    def share_milli(self, node: int, gpu_memory: int) -> int:
        """Milli-devices that ``gpu_memory`` bytes are on ``node``, rounded up; above 1000 when it cannot fit."""
        memory = self.nodes[node].device_memory
        if not gpu_memory:
            return WHOLE_DEVICE
        return -(-gpu_memory * WHOLE_DEVICE // memory) if memory else WHOLE_DEVICE


def kind_of(layout: Layout, allocation: Allocation) -> str:
    """The kind of device of an allocation, which is of one kind."""
    return layout.kinds[layout.node_kind[allocation[0].node]]


def spread_of(layout: Layout, allocation: Allocation) -> Spread:
    """On how many nodes an allocation lies, and on how few it could."""
    if len(allocation) == 1:
        return TOGETHER
    largest = layout.kind_biggest[layout.node_kind[allocation[0].node]]
    return Spread(len(allocation), -(-device_count(allocation) // largest))


class Board:
    """Occupancy of a layout. ``untouched[i]`` is the mask of devices of node i that nothing holds, ``closed[i]`` of those out
    of service, ``free[i]`` of those untouched and in service; down nodes are in no bucket.

    ``host[i]`` is (thousandths of CPUs, bytes of memory) in use on node i, where any is; ``measured[i, device]`` is (milli,
    bytes of device memory) of those shares of a device whose memory was asked for apart from their milli.
    """

    __slots__ = (
        "_log", "buckets", "closed", "free", "free_total", "host", "layout", "measured", "partial", "untouched", "up",
    )  # fmt: skip

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.untouched = [(1 << size) - 1 for size in layout.node_size]
        self.free = self.untouched.copy()
        self.closed = (0,) * len(layout.nodes)
        self.partial: dict[tuple[int, int], int] = {}
        self.host: dict[int, tuple[int, int]] = {}
        self.measured: dict[tuple[int, int], tuple[int, int]] = {}
        self.up = 0
        biggest = max(layout.node_size, default=0)
        self.buckets = [[0] * (biggest + 1) for _ in layout.kinds]
        self.free_total = [0] * len(layout.kinds)
        self._log: list[tuple[int, int, int, int]] = []
        """(node, untouched, device, milli) as they were; of ``host`` and ``measured`` (~node, first, device or 0, second)."""
        for node in range(len(layout.nodes)):
            self.set_up(node, True)

    def copy(self) -> Board:
        """An independent board; costs a few microseconds per thousand nodes."""
        twin = Board.__new__(Board)
        twin.layout, twin.up = self.layout, self.up
        twin.free, twin.partial = self.free.copy(), self.partial.copy()
        twin.host, twin.measured = self.host.copy(), self.measured.copy()
        twin.untouched, twin.closed = self.untouched.copy(), self.closed
        twin.buckets = [bucket.copy() for bucket in self.buckets]
        twin.free_total = self.free_total.copy()
        twin._log = []
        return twin

    def set_up(self, node: int, up: bool) -> None:
        """Make a node schedulable, or not. What is held on it stays held."""
        bit = 1 << node
        if bool(self.up & bit) == up:
            return
        kind, count = self.layout.node_kind[node], self.free[node].bit_count()
        self.up ^= bit
        self.buckets[kind][count] ^= bit
        self.free_total[kind] += count if up else -count

    def close(self, node: int, mask: int) -> None:
        """Take these devices of a node, and no others, out of service. What they hold stays held."""
        self.closed = (*self.closed[:node], mask, *self.closed[node + 1 :])
        self._store_free(node, self.untouched[node])

    @property
    def any_closed(self) -> bool:
        """Whether a device is out of service."""
        return any(self.closed)

    def open_for(self, allocation: Allocation) -> bool:
        """Whether none of these devices is out of service."""
        return not any(self.closed[node] & mask for node, mask, _, _ in allocation)

    def fits(self, allocation: Allocation) -> bool:
        """Whether every part is free and in service on a node that is up."""
        for node, mask, milli, resources in allocation:
            if not self.up >> node & 1 or self.closed[node] & mask:
                return False
            if resources is not None and not self.part_fits(node, mask, milli, resources):
                return False
            if milli >= WHOLE_DEVICE:
                if self.free[node] & mask != mask:
                    return False
            elif (
                self.partial.get((node, mask), 0) + milli > WHOLE_DEVICE
                or ((node, mask) not in self.partial and self.free[node] & mask != mask)
                or (self.measured and resources is None and not self.share_fits(node, mask, milli, None))
            ):
                return False
        return True

    def part_fits(self, node: int, mask: int, milli: int, resources: PartResources) -> bool:
        """Whether a node has free what a part takes of it besides devices."""
        if not self.host_fits(node, resources.cpus_milli, resources.memory):
            return False
        return milli >= WHOLE_DEVICE or self.share_fits(node, mask, milli, resources)

    def host_fits(self, node: int, cpus_milli: int, memory: int) -> bool:
        """Whether a node has so much of its host's CPUs and memory free; what a node does not know of it has without limit."""
        spec = self.layout.nodes[node]
        cpus_used, memory_used = self.host.get(node, _NOTHING)
        return (not cpus_milli or not spec.cpus or cpus_used + cpus_milli <= 1000 * spec.cpus) and (
            not memory or not spec.memory or memory_used + memory <= spec.memory
        )

    def ranks_fit(self, node: int, cpus_milli: int, memory: int, most: int) -> int:
        """How many ranks that each need so much of the host fit a node as it is, at most ``most``."""
        spec = self.layout.nodes[node]
        cpus_used, memory_used = self.host.get(node, _NOTHING)
        if cpus_milli and spec.cpus:
            most = min(most, max(0, 1000 * spec.cpus - cpus_used) // cpus_milli)
        if memory and spec.memory:
            most = min(most, max(0, spec.memory - memory_used) // memory)
        return most

    def host_free(self, node: int) -> tuple[int, int]:
        """Thousandths of CPUs and bytes of memory that a node's host has free; 0 where it is unknown how many it has."""
        spec = self.layout.nodes[node]
        cpus_used, memory_used = self.host.get(node, _NOTHING)
        return max(0, 1000 * spec.cpus - cpus_used), max(0, spec.memory - memory_used)

    def share_fits(self, node: int, device: int, milli: int, resources: PartResources | None) -> bool:
        """Whether a device has the memory of one more share free; where its size is unknown, memory is no limit."""
        total = self.layout.nodes[node].device_memory
        apart_milli, taken = self.measured.get((node, device), _NOTHING)
        in_proportion = self.partial.get((node, device), 0) - apart_milli
        if resources is None or resources.device_memory < 0:
            in_proportion += milli
        else:
            taken += resources.device_memory
        return not total or taken * WHOLE_DEVICE + in_proportion * total <= total * WHOLE_DEVICE

    def acquire(self, allocation: Allocation) -> None:
        """Occupy an allocation. Raises Bug when a device of it is held: callers ask ``fits`` first.

        Of a node that was described anew with less, more of the host may be in use than it has; nothing more then fits there.
        """
        for node, mask, milli, resources in allocation:
            if resources is not None:
                self._take(node, mask, milli, resources, 1)
            if milli >= WHOLE_DEVICE:
                if self.untouched[node] & mask != mask:
                    raise Bug(f"devices {mask:#x} of node {node} reserved twice")
                self._set_free(node, self.untouched[node] & ~mask)
            else:
                self._set_share(node, mask, self.partial.get((node, mask), 0) + milli)

    def release(self, allocation: Allocation) -> None:
        """Release an allocation. Raises Bug when part of it is already free."""
        for node, mask, milli, resources in allocation:
            if resources is not None:
                self._take(node, mask, milli, resources, -1)
            if milli >= WHOLE_DEVICE:
                if self.untouched[node] & mask:
                    raise Bug(f"devices {mask:#x} of node {node} freed twice")
                self._set_free(node, self.untouched[node] | mask)
            else:
                self._set_share(node, mask, self.partial.get((node, mask), 0) - milli)

    def mark(self) -> int:
        """A point to ``undo`` to."""
        return len(self._log)

    def undo(self, mark: int) -> None:
        """Undo every acquisition and release since ``mark``."""
        log = self._log
        while len(log) > mark:
            node, untouched, device, used = log.pop()
            if node < 0:
                self._store_pair(~node, device, untouched, used)
                continue
            if device:
                self._store_share(node, device, used)
            self._store_free(node, untouched)

    def restore_free(self, node: int, untouched: int) -> None:
        """Set a node's untouched devices, outside the undo log (rebuilding a board)."""
        self._store_free(node, untouched)

    def forget_marks(self) -> None:
        """Drop the undo log (a long-lived board calls this once a batch has landed)."""
        self._log.clear()

    def free_in(self, kinds: int) -> int:
        """Untouched devices on nodes that are up, over a set of kinds."""
        if len(self.free_total) == 1:
            return self.free_total[0] if kinds & 1 else 0
        return sum(total for kind, total in enumerate(self.free_total) if kinds >> kind & 1)

    def spare_milli(self) -> list[int]:
        """By kind: thousandths of devices that shared ones have left, on nodes that are up."""
        found = [0] * len(self.layout.kinds)
        for (node, device), used in self.partial.items():
            if self.up >> node & 1 and not self.closed[node] & device:
                found[self.layout.node_kind[node]] += WHOLE_DEVICE - used
        return found

    def nodes_with(self, kinds: int, at_least: int) -> int:
        """Set of nodes of these kinds with at least so many untouched devices."""
        found = 0
        for kind, bucket in enumerate(self.buckets):
            if kinds >> kind & 1:
                for nodes in bucket[at_least:]:
                    found |= nodes
        return found

    def held_milli(self) -> int:
        """Milli-devices in use over the whole layout, nodes that are down included."""
        untouched = sum(mask.bit_count() for mask in self.untouched)
        shared = sum(self.partial.values()) - WHOLE_DEVICE * len(self.partial)
        return WHOLE_DEVICE * (sum(self.layout.node_size) - untouched) + shared

    def _set_free(self, node: int, untouched: int) -> None:
        self._log.append((node, self.untouched[node], 0, 0))
        self._store_free(node, untouched)

    def _store_free(self, node: int, untouched: int) -> None:
        free = untouched & ~self.closed[node]
        before, after = self.free[node].bit_count(), free.bit_count()
        self.untouched[node] = untouched
        self.free[node] = free
        if before != after and self.up >> node & 1:
            kind, bit = self.layout.node_kind[node], 1 << node
            bucket = self.buckets[kind]
            bucket[before] ^= bit
            bucket[after] |= bit
            self.free_total[kind] += after - before

    def _take(self, node: int, mask: int, milli: int, resources: PartResources, sign: int) -> None:
        """Count (``sign`` 1) or no longer count (-1) what a part takes besides devices."""
        cpus_milli, memory, device_memory = resources
        if cpus_milli or memory:
            before = self.host.get(node, _NOTHING)
            self._log.append((~node, before[0], 0, before[1]))
            self._store_pair(node, 0, before[0] + sign * cpus_milli, before[1] + sign * memory)
        if device_memory >= 0 and milli < WHOLE_DEVICE:
            before = self.measured.get((node, mask), _NOTHING)
            self._log.append((~node, before[0], mask, before[1]))
            self._store_pair(node, mask, before[0] + sign * milli, before[1] + sign * device_memory)

    def _store_pair(self, node: int, device: int, first: int, second: int) -> None:
        """Write an entry of ``measured``, or with device 0 of ``host``; none is kept of nothing in use."""
        if first < 0 or second < 0:
            raise Bug(f"of node {node} more was freed than is in use: {first}, {second}")
        if device:
            if first:
                self.measured[node, device] = (first, second)
            else:
                self.measured.pop((node, device), None)
        elif first or second:
            self.host[node] = (first, second)
        else:
            self.host.pop(node, None)

    def _set_share(self, node: int, device: int, used: int) -> None:
        if not 0 <= used <= WHOLE_DEVICE or device.bit_count() != 1:
            raise Bug(f"device {device:#x} of node {node} would have {used} of {WHOLE_DEVICE} milli in use")
        before = self.partial.get((node, device), 0)
        untouched = self.untouched[node]
        if not before and not untouched & device:
            raise Bug(f"device {device:#x} of node {node} reserved twice")
        self._log.append((node, untouched, device, before))
        self._store_share(node, device, used)
        self._store_free(node, untouched & ~device if used else untouched | device)

    def _store_share(self, node: int, device: int, used: int) -> None:
        if used:
            self.partial[node, device] = used
        else:
            self.partial.pop((node, device), None)


def extend(board: Board, layout: Layout) -> Board:
    """The same occupancy on a layout that has grown; new nodes start up and empty."""
    grown = Board(layout)
    grown.closed = (*board.closed, *grown.closed[len(board.closed) :])
    for node, untouched in enumerate(board.untouched):
        grown.set_up(node, bool(board.up >> node & 1))
        grown.restore_free(node, untouched)
    grown.partial, grown.host, grown.measured = board.partial.copy(), board.host.copy(), board.measured.copy()
    return grown


def relaid(board: Board, layout: Layout, holders: list[Allocation]) -> Board:
    """The same occupancy on a layout where a node is described anew."""
    fresh = Board(layout)
    for node, size in enumerate(layout.node_size):
        fresh.set_up(node, bool(board.up >> node & 1))
        if board.closed[node]:
            fresh.close(node, board.closed[node] & (1 << size) - 1)
    for allocation in holders:
        fresh.acquire(allocation)
    fresh.forget_marks()
    return fresh


def whole(node: int, mask: int) -> Part:
    """Whole devices of one node."""
    return Part(node, mask, WHOLE_DEVICE)
