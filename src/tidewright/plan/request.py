"""What devices a job may have, and the one predicate that says whether it may have given ones.

The engine asks it of a plan when it lands, packers of the nodes they search, admission of the whole pool. It knows a layout's
nodes and kinds and nothing of what is free: that is the board's question.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from ..base.units import WHOLE_DEVICE
from ..model.board import ALL_NODES, Layout
from ..model.cause import Cause, Code
from ..model.job import JobSpec, Level, State
from ..model.node import Allocation, NodeSpec, Part, PartResources, bits, device_count, ranks_between
from ..model.table import JobTable
from ..model.view import JobColumns

ALL_KINDS = -1
"""The set of all kinds."""
_RUNNING, _FREEZE = int(State.RUNNING), int(Level.FREEZE)


_NO_SUCH_DEVICES, _WRONG_SHARE = Code.NO_SUCH_DEVICES(), Code.WRONG_SHARE()
_SEVERAL_NODES, _WRONG_RESOURCES = Code.SEVERAL_NODES(), Code.WRONG_RESOURCES()
_NOTHING_BESIDES = PartResources()


def reject_host(request: Request, layout: Layout) -> Cause | None:
    """Why the hosts of a pool could not hold its ranks were all of it free, or None."""
    nodes = [node for at, node in enumerate(layout.nodes) if request.reject_node(at, layout) is None]
    cpus = _reject_amount(request, nodes, Code.CPUS_TOO_FEW, request.cpus_milli, [1000 * node.cpus for node in nodes])
    if cpus is not None:
        return cpus
    sizes = [node.memory for node in nodes]
    return _reject_amount(request, nodes, Code.HOST_MEMORY_TOO_SMALL, request.host_memory, sizes)


def _reject_amount(request: Request, nodes: list[NodeSpec], code: Code, asked: int, has: list[int]) -> Cause | None:
    """The same of one resource: ``asked`` by each rank, of ``has[i]`` on node i (0: not known how much)."""
    if not asked or not nodes:
        return None
    ranks, seats = request.ranks or 1, request.floor or request.count
    single = request.one_node or seats == 1
    dealt = [ranks if single else min(ranks, -(-node.devices * ranks // seats)) for node in nodes]
    fits = [min(most, amount // asked) if amount else most for most, amount in zip(dealt, has, strict=True)]
    fit = max(fits) if single else min(ranks, sum(fits))
    nearest = max(amount // most for most, amount in zip(dealt, has, strict=True))
    return code(ranks, asked, fit, nearest) if fit < ranks else None


class Request(Struct, frozen=True):
    """What a job may have of one layout, whose indices of nodes and kinds it names. Sets of both are integers."""

    count: int
    """Devices to look for."""
    groups: tuple[int, ...]
    """Sets of kinds, most wanted first; an allocation is of one kind."""
    memory: int = 0
    """Bytes of one device; 0 asks for whole devices."""
    placement: str = "consolidate"
    unit: int = 1
    """Devices of ``count`` that must lie on one node because one rank sees them all."""
    pinned_node: int = -1
    """The only node it can be on, since its memory cannot leave it; -1 for none."""
    restore_kind: int = -1
    """The kind on whose image-taking nodes alone it can run, since its image is from there; -1 for none."""
    refused: int = 0
    """The set of nodes that refused to launch it a while ago."""
    locality: int = 0
    """The set of nodes that are better than others that are equally good: its image lies there."""
    floor: int = 0
    """Fewest devices it runs on; 0: ``count``."""
    demand: int = 0
    """Most devices it may have; 0: ``count``."""
    ranks: int = 0
    """Its ranks; 0: how devices are dealt to them does not matter."""
    gpu_milli: int = 0
    """Thousandths of one device's compute; 0: in proportion to ``memory``."""
    cpus_milli: int = 0
    """Thousandths of host CPUs of each rank; 0: none are set aside."""
    host_memory: int = 0
    """Bytes of host memory of each rank; 0: none is set aside."""
    gpu_share: int = 0
    """Thousandths of one device's memory, where it is not asked for in bytes; 0: it is."""
    best_effort: bool = False
    """Whether its share runs in what others leave: ``gpu_milli`` is then all that is set aside of the compute."""

    @property
    def kinds(self) -> int:
        """The set of kinds it may have."""
        if len(self.groups) == 1:
            return self.groups[0]
        kinds = 0
        for group in self.groups:
            kinds |= group
        return kinds

    @property
    def one_node(self) -> bool:
        """Whether it may never be spread over nodes."""
        return self.placement == "one-node"

    @property
    def shares(self) -> bool:
        """Whether it asks for a share of a device."""
        return bool(self.memory or self.gpu_milli)

    @property
    def hosted(self) -> bool:
        """Whether it asks for host CPUs or host memory."""
        return bool(self.cpus_milli or self.host_memory)

    @property
    def resourced(self) -> bool:
        """Whether parts for it have resources besides devices."""
        return bool(self.cpus_milli or self.host_memory or self.gpu_milli)

    def share_milli(self, node: int, layout: Layout) -> int:
        """Milli-devices of its share on ``node``; above 1000 when that cannot be there."""
        if not self.gpu_milli:
            return layout.share_milli(node, self.memory)
        if self.gpu_share and self.best_effort and not layout.nodes[node].device_memory:
            return self.gpu_share  # Nothing else would bound how many are on a device.
        by_memory = layout.share_milli(node, self.memory) if self.memory else 0
        unknown = bool(self.memory) and not layout.nodes[node].device_memory
        # Of a device whose memory is unknown, a share that asks for memory takes the whole.
        return by_memory if unknown or by_memory > WHOLE_DEVICE else self.gpu_milli

    def device_memory(self, node: int, layout: Layout) -> int:
        """Bytes that its share takes of a device's memory on ``node``; -1: in proportion to the milli-devices that it takes."""
        if self.gpu_share:
            return layout.nodes[node].device_memory * self.gpu_share // WHOLE_DEVICE or -1 if self.best_effort else -1
        return self.memory if self.gpu_milli else -1

    def with_resources(self, allocation: Allocation, layout: Layout) -> Allocation:
        """The same devices, each part with what it takes besides: that of the ranks dealt to it (model.node.rank_layout)."""
        if not self.resourced:
            return allocation
        seats, ranks, first, parts = device_count(allocation), self.ranks or 1, 0, []
        for node, mask, milli, _ in allocation:
            after = first + mask.bit_count()
            here = ranks_between(first, after, seats, ranks)
            apart = self.device_memory(node, layout) if milli < WHOLE_DEVICE else -1
            taken = PartResources(here * self.cpus_milli, here * self.host_memory, apart)
            parts.append(Part(node, mask, milli, None if taken == _NOTHING_BESIDES else taken))
            first = after
        return tuple(parts)

    def nodes(self, layout: Layout) -> int:
        """The nodes that its memory, its image and the refusals leave it: ``ALL_NODES`` if none of these is a limit.

        Packers search within this set and keep to a kind and to the size of a device by their own indices.
        """
        nodes = ALL_NODES if self.pinned_node < 0 else 1 << self.pinned_node
        if self.restore_kind >= 0:
            nodes &= layout.kind_imaging[self.restore_kind]
        return nodes & ~self.refused

    def reject_node(self, node: int, layout: Layout) -> Cause | None:
        """Why it may not have devices of this node, or None."""
        if not self.kinds >> layout.node_kind[node] & 1:
            return Code.WRONG_KIND(layout.nodes[node].kind)
        if self.memory and self.share_milli(node, layout) > WHOLE_DEVICE:
            return Code.DEVICE_TOO_SMALL(self.memory, layout.nodes[node].device_memory)
        if self.nodes(layout) >> node & 1:
            return None
        if self.pinned_node not in (-1, node):
            return Code.PINNED(layout.nodes[self.pinned_node].name)
        if self.refused >> node & 1:
            return Code.REFUSED(layout.nodes[node].name)
        return Code.NOT_RESTORABLE(layout.kinds[self.restore_kind])

    def reject(self, allocation: Allocation, layout: Layout) -> Cause | None:
        """Why it may not have these devices, free or not, or None."""
        seen, kinds, nodes, more = 0, self.kinds, self.nodes(layout), False
        for node, mask, milli, resources in allocation:
            if not 0 <= node < len(layout.nodes) or mask <= 0 or mask >> layout.node_size[node] or seen >> node & 1:
                return _NO_SUCH_DEVICES
            seen |= 1 << node
            more |= resources is not None
            # Every move of every plan passes here: reject_node only says why not.
            mine = kinds >> layout.node_kind[node] & nodes >> node & 1
            share = self.share_milli(node, layout) if self.memory or self.gpu_milli else WHOLE_DEVICE
            if not mine or milli != share or share > WHOLE_DEVICE:
                return self.reject_node(node, layout) or _WRONG_SHARE
        count, floor, demand = device_count(allocation), self.floor or self.count, self.demand or self.count
        if not floor <= count <= demand:
            return Code.WRONG_COUNT(count, floor, demand)
        if self.cpus_milli or self.host_memory or self.gpu_milli:
            if allocation != self.with_resources(allocation, layout):
                return _WRONG_RESOURCES
        elif more:
            return _WRONG_RESOURCES
        return self._reject_spread(allocation, count, layout) if len(allocation) > 1 else None

    def _reject_spread(self, allocation: Allocation, count: int, layout: Layout) -> Cause | None:
        """Why these devices may not be on several nodes, or None."""
        if self.one_node:
            return _SEVERAL_NODES
        unit = unit_of(count, self.ranks)
        if not any(mask.bit_count() % unit for _, mask, _, _ in allocation):
            return None
        largest = min(layout.kind_biggest[layout.node_kind[node]] for node, _, _, _ in allocation)
        # What no node of the kind could hold is spread over whole ones (placement.find.split).
        return Code.RANK_SPLIT(unit) if unit <= largest else None

    def most_devices(self, layout: Layout, free: Sequence[int] | None = None, within: int = ALL_NODES) -> int:
        """Devices it could have at most on nodes of the set ``within``, of which ``free[node]`` can be had (default: all).

        How they lie on several nodes is not looked at, so this many may still not be had together.
        """
        free = layout.node_size if free is None else free
        counts = [
            free[node]
            for node in range(len(layout.nodes))
            if within >> node & 1 and self.reject_node(node, layout) is None
        ]
        return max(counts, default=0) if self.one_node else sum(counts)

    def reject_pool(self, layout: Layout, one_kind: bool = False) -> Cause | None:
        """Why it could not run were every device free, or None. How devices lie on several nodes is not looked at.

        ``one_kind``: nor may they be of several kinds, which no packer gives; what was accepted before that was asked stays so.
        """
        kinds = bits(self.kinds)
        if not kinds:
            return Code.WRONG_KIND(", ".join(layout.kinds))
        if self.memory:
            largest = max(layout.kind_memory[kind] for kind in kinds)
            if largest and self.memory > largest:
                return Code.DEVICE_TOO_SMALL(self.memory, largest)
        if self.nodes(layout) != ALL_NODES:
            most = self.most_devices(layout)
        else:  # Every submission passes here: it does not walk the nodes. Of a share it is known that a device is large enough.
            counts = [layout.most(kind, self.one_node) for kind in kinds]
            most = max(counts) if self.one_node or one_kind else sum(counts)
        floor = self.floor or self.count
        if floor > most:
            return Code.TOO_FEW_DEVICES(floor, most)
        return reject_host(self, layout) if self.hosted else None


def unit_of(count: int, ranks: int) -> int:
    """Devices of ``count`` that each of several ranks sees: 1 where ranks share devices or do not divide them evenly."""
    return count // ranks if count > ranks > 1 and count % ranks == 0 else 1


def placement_of(spec: JobSpec) -> str:
    """How its devices may lie: those of a job of one rank on one node, since its process sees no others."""
    return "one-node" if spec.ranks == 1 and spec.devices > 1 else spec.placement


def request_of(
    layout: Layout,
    spec: JobSpec,
    count: int = 0,
    floor: int = 0,
    demand: int = 0,
    pinned_node: int = -1,
    restore_kind: int = -1,
    refused: int = 0,
    locality: int = 0,
    memory_too: bool = True,
    accepted: int = ALL_KINDS,
) -> Request:
    """What ``spec`` asks of a layout. ``count``: devices to look for (0: its full allotment); ``accepted``: kinds of devices;
    ``memory_too``: whether its host memory is still to be found; that of a frozen job has never been released."""
    count = count or spec.devices
    if not spec.device_types:
        groups: tuple[int, ...] = ((1 << len(layout.kinds)) - 1 & accepted,)
    else:
        kinds = (layout.kinds.index(name) for name in spec.device_types if name in layout.kinds)
        groups = tuple(1 << kind for kind in kinds if accepted >> kind & 1)
    return Request(
        count,
        groups,
        spec.gpu_memory,
        placement_of(spec),
        unit_of(count, spec.ranks),
        pinned_node,
        restore_kind,
        refused,
        locality,
        floor,
        demand,
        spec.ranks,
        spec.compute_milli,
        spec.cpus_milli,
        spec.memory if memory_too else 0,
        spec.gpu_share,
        spec.best_effort,
    )


def row_request(
    layout: Layout,
    spec: JobSpec,
    jobs: JobTable | JobColumns,
    row: int,
    held: Allocation = (),
    count: int = 0,
    refused: int = 0,
    locality: int = 0,
) -> Request:
    """What a job may have now, by its columns; ``count``: devices to look for (0: its floor), ``held``: those it has.

    A running job that can only be frozen is bound to its node, as a frozen one is to that with its memory.
    """
    floor: int = jobs.floor.item(row)
    pinned: int = jobs.pinned_node.item(row)
    if pinned < 0 and held and jobs.state.item(row) == _RUNNING and jobs.level.item(row) == _FREEZE:
        pinned = held[0].node
    return request_of(
        layout,
        spec,
        count or floor,
        floor,
        jobs.demand.item(row),
        pinned,
        jobs.restore_kind.item(row),
        refused,
        locality,
        jobs.pinned_node.item(row) < 0,
        jobs.kinds.item(row),
    )
