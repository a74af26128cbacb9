"""Why a job cannot be placed now: the binding limit."""

from __future__ import annotations

import numpy as np
from msgspec import structs

from ..model.board import ALL_NODES, Board
from ..model.cause import Cause, Code
from ..model.node import bits
from ..model.view import View
from ..plan.reasons import Blocked, Reason
from ..plan.request import Request, reject_host
from .facts import facts
from .find import place

_HOLDERS = 5
_REMEMBERED = 1024


def explain(
    view: View, board: Board, job: int, request: Request, known: dict[tuple[int, int], tuple[int, ...]] | None = None
) -> Blocked:
    """The limit that keeps ``job`` from starting on ``board`` (the view's, with this plan's moves made), and who holds what
    it needs. ``known``: holders already found for this view, by kinds and pinned node; adds to it.
    """
    said, wanted = limit(view, board, job, request), (request.kinds, request.pinned_node)
    holders = known.get(wanted) if known is not None else None
    if holders is None:
        holders = _holders(view, *wanted)
        if known is not None:
            known[wanted] = holders
    return structs.replace(said, holders=holders)


def limit(view: View, board: Board, job: int, request: Request) -> Blocked:
    """The same without the holders: cheap enough for every plan."""
    kinds, nodes = request.kinds, request.nodes(board.layout)
    elsewhere = nodes == ALL_NODES or request.pinned_node >= 0
    free = board.free_in(kinds) if elsewhere else _free_on(board, kinds, nodes)
    reason, why = _limit(view, board, request, kinds, free)
    return Blocked(job, reason, why, request.count, free)


def _free_on(board: Board, kinds: int, nodes: int) -> int:
    of_kind = (node for node, kind in enumerate(board.layout.node_kind) if kinds >> kind & 1)
    return sum(board.free[node].bit_count() for node in of_kind if (nodes & board.up) >> node & 1)


def _limit(view: View, board: Board, request: Request, kinds: int, free: int) -> tuple[Reason, Cause]:
    names, count = "/".join(view.layout.kinds[kind] for kind in bits(kinds)), request.count
    by_host = _by_host(view, board, request, names) if request.hosted else None
    if by_host is not None:
        return by_host
    if request.pinned_node >= 0:
        return _on_pinned_node(view, board, request)
    if free < count or request.shares:
        away = _absent(board, kinds)
        if away and _fits_empty(view, request) and not _fits_empty(view, request, board.up):
            return Reason.NODES_DOWN, Code.DEVICES_UNSCHEDULABLE(count, names, away)
        if not _fits_empty(view, request):
            return _never(view, request, names)
        if request.gpu_share:
            return Reason.NO_CAPACITY, Code.FRACTION_SHORT(request.gpu_share, names)
        if request.gpu_milli and request.memory:
            return Reason.NO_CAPACITY, Code.DEVICE_MEMORY_SHORT(request.gpu_milli, request.memory, names)
        return Reason.NO_CAPACITY, Code.DEVICES_SHORT(count, names, free)
    if not _fits_empty(view, request):
        return _never(view, request, names)
    if not _fits_empty(view, request, board.up):
        return Reason.NODES_DOWN, Code.NODES_UNSCHEDULABLE(count, names)
    most = max((size for kind in bits(kinds) for size, nodes in enumerate(board.buckets[kind]) if nodes), default=0)
    return Reason.FRAGMENTED, Code.DEVICES_SCATTERED(count, names, free, most)


def _by_host(view: View, board: Board, request: Request, names: str) -> tuple[Reason, Cause] | None:
    """The limit where devices are free and CPUs or memory of their hosts are not, or never will be."""
    if not _fits_empty(view, request):
        why = reject_host(request, view.layout)
        return (Reason.NEVER_FITS, why) if why is not None else None
    if place(board, structs.replace(request, cpus_milli=0, host_memory=0)) is None:
        return None
    nodes = request.nodes(board.layout) & board.up
    there = [
        n for n, k in enumerate(board.layout.node_kind) if request.kinds >> k & 1 and nodes >> n & 1 and board.free[n]
    ]
    free = [board.host_free(node) for node in there]
    if request.cpus_milli and place(board, structs.replace(request, host_memory=0)) is None:
        return Reason.CPUS, Code.CPUS_SHORT(request.cpus_milli, names, max((cpus for cpus, _ in free), default=0))
    most = max((memory for _, memory in free), default=0)
    return Reason.HOST_MEMORY, Code.HOST_MEMORY_SHORT(request.host_memory, names, most)


def _never(view: View, request: Request, names: str) -> tuple[Reason, Cause]:
    if request.refused:
        return Reason.NODES_DOWN, Code.ALL_NODES_REFUSED(request.count)
    if request.nodes(view.layout) != ALL_NODES:
        return Reason.NODES_DOWN, Code.NO_IMAGE_NODES(request.count)
    return Reason.NEVER_FITS, Code.NO_SUCH_LAYOUT(request.count, names, request.placement)


def _on_pinned_node(view: View, board: Board, request: Request) -> tuple[Reason, Cause]:
    name = view.layout.nodes[request.pinned_node].name
    if not board.up >> request.pinned_node & 1:
        return Reason.NODES_DOWN, Code.PINNED_UNSCHEDULABLE(name)
    there = board.free[request.pinned_node].bit_count()
    return Reason.PINNED_NODE_BUSY, Code.PINNED_BUSY(name, there, request.count)


def _absent(board: Board, kinds: int) -> int:
    """Devices that are unschedulable: those of unschedulable nodes, and those out of service."""
    down = ((1 << len(board.free)) - 1) & ~board.up
    if not down and not board.any_closed:
        return 0
    sizes, kind_of = board.layout.node_size, board.layout.node_kind
    closed = sum(
        mask.bit_count() for node, mask in enumerate(board.closed) if kinds >> kind_of[node] & 1 & ~down >> node
    )
    return closed + sum(sizes[node] for node in bits(down) if kinds >> kind_of[node] & 1)


def _fits_empty(view: View, request: Request, within: int = ALL_NODES) -> bool:
    """Whether an empty pool (of these nodes) could hold it."""
    known, request = facts(view.layout), structs.replace(request, locality=0, floor=0, demand=0)
    if within.bit_count() == len(view.layout.nodes):
        within = ALL_NODES
    if within != ALL_NODES:
        return place(known.empty, request, within) is not None
    found = known.fits.get(request)
    if found is None:
        if len(known.fits) >= _REMEMBERED:
            known.fits.clear()
        found = known.fits[request] = place(known.empty, request) is not None
    return found


def _holders(view: View, kinds: int, pinned_node: int) -> tuple[int, ...]:
    """Ids of the jobs that hold most of these kinds (or of the pinned node), most first."""
    jobs = view.jobs
    rows = np.flatnonzero(jobs.active)
    if pinned_node < 0:
        rows = rows[(jobs.kinds[rows] & kinds) != 0]
    else:
        there = [any(p.node == pinned_node for p in view.allocations.get(int(job), ())) for job in jobs.id[rows]]
        rows = rows[np.array(there, dtype=bool)]
    held = jobs.held[rows]
    if len(rows) > _HOLDERS:
        rows = rows[np.argpartition(-held, _HOLDERS - 1)[:_HOLDERS]]
    rows = rows[np.lexsort((jobs.id[rows], -jobs.held[rows]))]
    return tuple(int(job) for job in jobs.id[rows])
