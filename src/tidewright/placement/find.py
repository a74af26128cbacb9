"""Pack one job on a board: consolidated first, the tightest fit, the smallest corner of the topology.

All searches go over sets of nodes held in integers; no search for a single node ever walks the nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from ..base.units import WHOLE_DEVICE
from ..model.board import Board, Layout
from ..model.job import JobSpec
from ..model.node import Allocation, Part, bits
from .facts import EVERYWHERE, Facts, facts
from .near import at_home, home_first, nearest


class Ask(Struct, frozen=True):
    """What a job needs of a board. ``groups`` are sets of kinds, most wanted first; ``home`` pins it to one node."""

    count: int
    groups: tuple[int, ...]
    memory: int = 0
    mode: str = "consolidate"
    unit: int = 1
    """Devices that must lie on one node because one rank sees them all."""
    home: int = -1
    nodes: int = EVERYWHERE
    """The set of nodes it can run on."""
    near: int = 0
    """The set of nodes that are better than others that are equally good: its image lies there."""


def ask_of(layout: Layout, spec: JobSpec, count: int = 0, home: int = -1, origin: int = -1, near: int = 0) -> Ask:
    """What ``spec`` asks for with ``count`` devices (0: its full allotment). ``home`` and ``origin`` are those columns."""
    count = count or spec.devices
    if not spec.device_types:
        groups: tuple[int, ...] = ((1 << len(layout.kinds)) - 1,)
    else:
        groups = tuple(1 << layout.kinds.index(name) for name in spec.device_types if name in layout.kinds)
    unit = count // spec.ranks if count > spec.ranks > 1 and count % spec.ranks == 0 else 1
    nodes = facts(layout).imaging[origin] if origin >= 0 else EVERYWHERE
    return Ask(count, groups, spec.gpu_memory, spec.placement, unit, home, nodes, near)


def place(board: Board, ask: Ask, within: int = EVERYWHERE) -> Allocation | None:
    """Devices for ``ask`` that are free on nodes of the set ``within``, or None. The board is not written.

    ``consolidate`` takes one node whenever the biggest node could hold the job, else as few whole nodes as can be and
    the tightest fit for the rest; ``one-node`` never splits; ``any`` fills fragments.
    """
    within &= ask.nodes
    if ask.home >= 0:
        within &= 1 << ask.home
    for kinds in ask.groups:
        found = _share(board, ask, kinds, within) if ask.memory else _devices(board, ask, kinds, within)
        if found is not None:
            return found
    return None


def best_fit(board: Board, kinds: int, count: int, within: int = EVERYWHERE) -> int:
    """The node with the fewest free devices of those with at least ``count``, lowest index first; -1 for none."""
    layers = [bucket for kind, bucket in enumerate(board.buckets) if kinds >> kind & 1]
    for free in range(max(count, 1), len(layers[0]) if layers else 0):
        for bucket in layers:
            nodes = bucket[free] & within
            if nodes:
                return (nodes & -nodes).bit_length() - 1
    return -1


def lowest(mask: int, count: int) -> int:
    """The ``count`` lowest set bits."""
    if mask.bit_count() == count:
        return mask
    rest = mask
    for _ in range(count):
        rest &= rest - 1
    return mask ^ rest


def _devices(board: Board, ask: Ask, kinds: int, within: int) -> Allocation | None:
    if board.free_in(kinds) < ask.count:
        return None
    node = best_fit(board, kinds, ask.count, within)
    if node >= 0:
        node = at_home(board, kinds, ask.count, within & ask.near, node)
        return (Part(node, lowest(board.free[node], ask.count)),)
    if ask.mode == "one-node" or ask.home >= 0:
        return None
    known = facts(board.layout)
    for kind in bits(kinds):
        if ask.mode == "any":
            found = _fragments(board, ask, kind, within, known)
        else:
            found = _whole_nodes(board, ask, kind, within, known)
        if found is not None:
            return found
    return None


def split(ask: Ask, kind: int, known: Facts) -> tuple[int, int, int] | None:
    """(whole nodes, devices on each, devices on one more node) for a job larger than a node, else None."""
    size = known.biggest[kind]
    usable = size - size % ask.unit if ask.unit <= size else size
    if not usable or ask.count <= usable:
        return None
    whole, rest = divmod(ask.count, usable)
    return whole, usable, rest


def _whole_nodes(board: Board, ask: Ask, kind: int, within: int, known: Facts) -> Allocation | None:
    parts = split(ask, kind, known)
    if parts is None:
        return None
    whole, usable, rest = parts
    if known.sized[kind][known.biggest[kind]].bit_count() < whole + (rest > 0):
        return _largest_first(board, ask, kind, within, known)
    full = board.nodes_with(1 << kind, usable) & within
    loose = board.nodes_with(1 << kind, rest) & within if rest else full
    if full.bit_count() < whole or loose.bit_count() < whole + (rest > 0):
        return None
    region = _smallest_region(known, full, loose, whole, whole + (rest > 0), ask.near)
    nodes = sorted(_gather(known, full & region, whole, ask.near))
    chosen = sum(1 << node for node in nodes)
    found = [Part(node, lowest(board.free[node], usable)) for node in nodes]
    if rest:
        node = best_fit(board, 1 << kind, rest, within & region & ~chosen)
        node = at_home(board, 1 << kind, rest, within & region & ~chosen & ask.near, node)
        found.append(Part(node, lowest(board.free[node], rest)))
    return tuple(found)


def _smallest_region(known: Facts, full: int, loose: int, whole: int, total: int, near: int) -> int:
    """The smallest domain with enough room; of several the one with the least room to spare, then the most of ``near``."""
    for level in known.regions:
        best, spare = 0, (-1, 0)
        for region in level:
            there = (full & region).bit_count()
            enough = there >= whole and (loose & region).bit_count() >= total
            rank = (there, -(loose & region & near).bit_count())
            if enough and (not best or rank < spare):
                best, spare = region, rank
        if best:
            return best
    return EVERYWHERE


def _gather(known: Facts, nodes: int, count: int, near: int) -> Iterator[int]:
    """``count`` of ``nodes`` from as few innermost domains as can be; of equal ones those of ``near``."""
    corners = [nodes & region for region in known.regions[0] if nodes & region] if known.regions else []
    stray = nodes & ~sum(corners)
    corners = sorted([*corners, stray] if stray else corners, key=lambda corner: -corner.bit_count())
    while count and corners:
        enough = [corner for corner in reversed(corners) if corner.bit_count() >= count]
        size = (enough or corners)[0].bit_count()
        alike = (corner for corner in enough or corners if corner.bit_count() == size)
        corner = max(alike, key=lambda corner: (corner & near).bit_count())
        corners.remove(corner)
        taken = nearest(corner, min(count, corner.bit_count()), near)
        count -= taken.bit_count()
        yield from bits(taken)


def _largest_first(board: Board, ask: Ask, kind: int, within: int, known: Facts) -> Allocation | None:
    """Untouched nodes, the largest first, for a job that the biggest nodes alone could never hold."""
    left, found, chosen = ask.count, [], 0
    for size, nodes in known.sized[kind].items():
        usable = size - size % ask.unit
        for node in home_first(board.buckets[kind][size] & nodes & within, ask.near):
            if not usable or left < usable:
                break
            found.append(Part(node, lowest(board.free[node], usable)))
            chosen |= 1 << node
            left -= usable
    if not left:
        return tuple(found)
    node = best_fit(board, 1 << kind, left, within & ~chosen)
    if node < 0:
        return None
    node = at_home(board, 1 << kind, left, within & ~chosen & ask.near, node)
    return (*found, Part(node, lowest(board.free[node], left)))


def _fragments(board: Board, ask: Ask, kind: int, within: int, known: Facts) -> Allocation | None:
    bucket = board.buckets[kind]
    region = within & _corner(bucket, ask, within, known)
    if _room(bucket, region, ask.unit) < ask.count:
        return None
    left, found = ask.count, []
    for free in range(ask.unit, len(bucket)):
        for node in home_first(bucket[free] & region, ask.near):
            mine = min(left, free - free % ask.unit)
            found.append(Part(node, lowest(board.free[node], mine)))
            left -= mine
            if not left:
                return tuple(sorted(found))
    return None


def _corner(bucket: list[int], ask: Ask, within: int, known: Facts) -> int:
    """A domain of the innermost level where one has room: the one with the most of ``ask.near``, then the first."""
    for level in known.regions:
        roomy = (region for region in level if _room(bucket, region & within, ask.unit) >= ask.count)
        found = (
            max(roomy, key=lambda region: (region & ask.near).bit_count(), default=0) if ask.near else next(roomy, 0)
        )
        if found:
            return found
    return EVERYWHERE


def _room(bucket: list[int], region: int, unit: int) -> int:
    return sum((free - free % unit) * (nodes & region).bit_count() for free, nodes in enumerate(bucket))


def _share(board: Board, ask: Ask, kinds: int, within: int) -> Allocation | None:
    """The fullest shared device that still has room, else a device of the tightest node."""
    layout = board.layout
    best: tuple[int, bool, int, int] | None = None
    milli = 0
    for (node, device), used in board.partial.items():
        if not (board.up & within) >> node & 1 or not kinds >> layout.node_kind[node] & 1:
            continue
        if board.closed[node] & device:
            continue
        share = layout.share_milli(node, ask.memory)
        rank = (-used, not ask.near >> node & 1, node, device)
        if used + share <= WHOLE_DEVICE and (best is None or rank < best):
            best, milli = rank, share
    if best is not None:
        return (Part(best[2], best[3], milli),)
    while (node := best_fit(board, kinds, 1, within)) >= 0:
        share = layout.share_milli(node, ask.memory)
        if share <= WHOLE_DEVICE:
            large = sum(1 << home for home in bits(ask.near) if layout.share_milli(home, ask.memory) <= WHOLE_DEVICE)
            node = at_home(board, kinds, 1, within & large, node)
            return (Part(node, lowest(board.free[node], 1), layout.share_milli(node, ask.memory)),)
        within &= ~(1 << node)
    return None
