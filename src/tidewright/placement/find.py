"""Pack one job on a board: consolidated first, the tightest fit, the smallest corner of the topology.

All searches go over sets of nodes held in integers; no search for a single node ever walks the nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..base.units import WHOLE_DEVICE
from ..model.board import ALL_NODES, Board, Layout
from ..model.node import Allocation, Part, PartResources, bits
from ..plan.request import Request
from .facts import LayoutFacts, facts
from .hosts import hide_unserved, spreads
from .locality import local_first, local_node, prefer_local

Search = Callable[[Board, Request, int], Allocation | None]
"""Looks for devices of a request on a set of nodes."""


def place(board: Board, request: Request, within: int = ALL_NODES) -> Allocation | None:
    """Devices for ``request`` that are free on nodes of the set ``within``, or None. The board is not written.

    ``consolidate`` takes one node whenever the biggest node could hold the job, else as few whole nodes as can be and
    the tightest fit for the rest; ``one-node`` never splits; ``any`` fills fragments.
    """
    within &= request.nodes(board.layout)
    if request.cpus_milli or request.host_memory:
        return _served(board, request, within, _place)
    return _place(board, request, within)


def _place(board: Board, request: Request, within: int) -> Allocation | None:
    for kinds in request.groups:
        shares = request.memory or request.gpu_milli
        found = _share(board, request, kinds, within) if shares else _devices(board, request, kinds, within)
        if found is not None:
            return request.with_resources(found, board.layout) if request.gpu_milli else found
    return None


def _served(board: Board, request: Request, within: int, search: Search) -> Allocation | None:
    """What ``search`` finds among devices whose hosts have room for the ranks on them."""
    mark = board.mark()
    within = hide_unserved(board, request, within)
    found = search(board, request, within)
    board.undo(mark)
    return request.with_resources(found, board.layout) if found is not None else None


def scatter(board: Board, request: Request, within: int = ALL_NODES) -> Allocation | None:
    """Devices on as few nodes as can be, wherever these lie, or None. The board is not written.

    For where ``place`` finds nothing and a job had better be spread than not be there at all: its user names the nodes.
    """
    within &= request.nodes(board.layout)
    if request.shares or request.one_node or request.pinned_node >= 0:
        return None
    return _served(board, request, within, _scatter) if request.hosted else _scatter(board, request, within)


def _scatter(board: Board, request: Request, within: int) -> Allocation | None:
    found = (_fewest_nodes(board, request, kind, within) for kind in bits(request.kinds))
    return next((allocation for allocation in found if allocation is not None), None)


def _fewest_nodes(board: Board, request: Request, kind: int, within: int) -> Allocation | None:
    bucket = board.buckets[kind]
    if _room(bucket, within, request.unit) < request.count:
        return None
    return _collect(board, request, (node for nodes in reversed(bucket) for node in bits(nodes & within)))


def best_fit(board: Board, kinds: int, count: int, within: int = ALL_NODES) -> int:
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


def _devices(board: Board, request: Request, kinds: int, within: int) -> Allocation | None:
    if board.free_in(kinds) < request.count:
        return None
    node = best_fit(board, kinds, request.count, within)
    if node >= 0:
        node = local_node(board, kinds, request.count, within & request.locality, node)
        return (Part(node, lowest(board.free[node], request.count)),)
    if request.one_node or request.pinned_node >= 0:
        return None
    known = facts(board.layout)
    for kind in bits(kinds):
        if request.hosted and request.placement != "any" and spreads(board, request, kind):
            found = _fewest_nodes(board, request, kind, within)
        elif request.placement == "any":
            found = _fragments(board, request, kind, within, known)
        else:
            found = _whole_nodes(board, request, kind, within, known)
        if found is not None:
            return found
    return None


def split(request: Request, kind: int, layout: Layout) -> tuple[int, int, int] | None:
    """(whole nodes, devices on each, devices on one more node) for a job larger than a node, else None."""
    size = layout.kind_biggest[kind]
    usable = size - size % request.unit if request.unit <= size else size
    if not usable or request.count <= usable:
        return None
    whole, rest = divmod(request.count, usable)
    return whole, usable, rest


def _whole_nodes(board: Board, request: Request, kind: int, within: int, known: LayoutFacts) -> Allocation | None:
    parts = split(request, kind, board.layout)
    if parts is None:
        return None
    whole, usable, rest = parts
    if known.sized[kind][board.layout.kind_biggest[kind]].bit_count() < whole + (rest > 0):
        return _largest_first(board, request, kind, within, known)
    full = board.nodes_with(1 << kind, usable) & within
    loose = board.nodes_with(1 << kind, rest) & within if rest else full
    if full.bit_count() < whole or loose.bit_count() < whole + (rest > 0):
        return None
    region = _smallest_region(known, full, loose, whole, whole + (rest > 0), request.locality)
    nodes = sorted(_gather(known, full & region, whole, request.locality))
    chosen = sum(1 << node for node in nodes)
    found = [Part(node, lowest(board.free[node], usable)) for node in nodes]
    if rest:
        node = best_fit(board, 1 << kind, rest, within & region & ~chosen)
        node = local_node(board, 1 << kind, rest, within & region & ~chosen & request.locality, node)
        found.append(Part(node, lowest(board.free[node], rest)))
    return tuple(found)


def _smallest_region(known: LayoutFacts, full: int, loose: int, whole: int, total: int, locality: int) -> int:
    """The smallest domain with enough room; of several the one with the least room to spare, then the most of ``locality``."""
    for level in known.regions:
        best, spare = 0, (-1, 0)
        for region in level:
            there = (full & region).bit_count()
            enough = there >= whole and (loose & region).bit_count() >= total
            rank = (there, -(loose & region & locality).bit_count())
            if enough and (not best or rank < spare):
                best, spare = region, rank
        if best:
            return best
    return ALL_NODES


def _gather(known: LayoutFacts, nodes: int, count: int, locality: int) -> Iterator[int]:
    """``count`` of ``nodes`` from as few innermost domains as can be; of equal ones those of ``locality``."""
    corners = [nodes & region for region in known.regions[0] if nodes & region] if known.regions else []
    stray = nodes & ~sum(corners)
    corners = sorted([*corners, stray] if stray else corners, key=lambda corner: -corner.bit_count())
    while count and corners:
        enough = [corner for corner in reversed(corners) if corner.bit_count() >= count]
        size = (enough or corners)[0].bit_count()
        alike = (corner for corner in enough or corners if corner.bit_count() == size)
        corner = max(alike, key=lambda corner: (corner & locality).bit_count())
        corners.remove(corner)
        taken = prefer_local(corner, min(count, corner.bit_count()), locality)
        count -= taken.bit_count()
        yield from bits(taken)


def _largest_first(board: Board, request: Request, kind: int, within: int, known: LayoutFacts) -> Allocation | None:
    """Untouched nodes, the largest first, for a job that the biggest nodes alone could never hold."""
    left, found, chosen = request.count, [], 0
    for size, nodes in known.sized[kind].items():
        usable = size - size % request.unit
        for node in local_first(board.buckets[kind][size] & nodes & within, request.locality):
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
    node = local_node(board, 1 << kind, left, within & ~chosen & request.locality, node)
    return (*found, Part(node, lowest(board.free[node], left)))


def _fragments(board: Board, request: Request, kind: int, within: int, known: LayoutFacts) -> Allocation | None:
    bucket = board.buckets[kind]
    region = within & _corner(bucket, request, within, known)
    if _room(bucket, region, request.unit) < request.count:
        return None
    smallest_first = (
        node for nodes in bucket[request.unit :] for node in local_first(nodes & region, request.locality)
    )
    return _collect(board, request, smallest_first)


def _collect(board: Board, request: Request, nodes: Iterator[int]) -> Allocation | None:
    """Nodes one after the other until there are devices enough, whole ranks on each."""
    left, found = request.count, []
    for node in nodes:
        free = board.free[node].bit_count()
        mine = min(left, free - free % request.unit)
        if mine:
            found.append(Part(node, lowest(board.free[node], mine)))
            left -= mine
        if not left:
            return tuple(sorted(found))
    return None


def _corner(bucket: list[int], request: Request, within: int, known: LayoutFacts) -> int:
    """A domain of the innermost level where one has room: the one with the most of ``request.locality``, then the first."""
    for level in known.regions:
        roomy = (region for region in level if _room(bucket, region & within, request.unit) >= request.count)
        if request.locality:
            found = max(roomy, key=lambda region: (region & request.locality).bit_count(), default=0)
        else:
            found = next(roomy, 0)
        if found:
            return found
    return ALL_NODES


def _room(bucket: list[int], region: int, unit: int) -> int:
    return sum((free - free % unit) * (nodes & region).bit_count() for free, nodes in enumerate(bucket))


def _memory_fits(board: Board, request: Request, node: int, device: int, share: int) -> bool:
    return board.share_fits(node, device, share, PartResources(device_memory=request.device_memory(node, board.layout)))


def _share(board: Board, request: Request, kinds: int, within: int) -> Allocation | None:
    """The fullest shared device that still has room, else a device of the tightest node."""
    layout = board.layout
    best: tuple[int, bool, int, int] | None = None
    milli, plain = 0, not request.gpu_milli and not board.measured
    for (node, device), used in board.partial.items():
        if not (board.up & within) >> node & 1 or not kinds >> layout.node_kind[node] & 1:
            continue
        if board.closed[node] & device:
            continue
        share = request.share_milli(node, layout)
        rank = (-used, not request.locality >> node & 1, node, device)
        fits = used + share <= WHOLE_DEVICE and (plain or _memory_fits(board, request, node, device, share))
        if fits and (best is None or rank < best):
            best, milli = rank, share
    if best is not None:
        return (Part(best[2], best[3], milli),)
    while (node := best_fit(board, kinds, 1, within)) >= 0:
        share = request.share_milli(node, layout)
        if share <= WHOLE_DEVICE:
            shares = {here: request.share_milli(here, layout) for here in bits(request.locality)}
            large = sum(1 << here for here, share in shares.items() if share <= WHOLE_DEVICE)
            node = local_node(board, kinds, 1, within & large, node)
            return (Part(node, lowest(board.free[node], 1), request.share_milli(node, layout)),)
        within &= ~(1 << node)
    return None
