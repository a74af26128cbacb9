"""Where a user's wish can be met: devices for one job on named nodes, its own counted as free.

No policy: the fewest nodes, the tightest fit. Planning for many jobs is the room ``placement``'s business.
"""

from __future__ import annotations

from ..base.units import WHOLE_DEVICE
from ..model.board import Board
from ..model.node import Allocation, Part, bits
from .book import Book

EVERYWHERE = -1
"""The set of all nodes: every bit of a negative one is set."""


def find(book: Book, job: int, count: int, within: int) -> Allocation | None:
    """``count`` devices for ``job`` on nodes of the set ``within`` that are up, or None."""
    board, mine = book.board, book.allocations.get(job)
    mark = board.mark()
    if mine is not None and not book.jobs[job].leaving:
        board.give(mine)
    try:
        nodes = [node for node in range(len(board.free)) if usable(book, job, node, within)]
        memory = book.specs[job].gpu_memory
        return _share(board, nodes, memory) if memory else _whole(book, job, nodes, count)
    finally:
        board.undo(mark)


def usable(book: Book, job: int, node: int, within: int) -> bool:
    """Whether the job may run on a node at all."""
    row, table, layout = book.table.row[job], book.table, book.board.layout
    origin, home, kind = table.origin.item(row), table.home.item(row), layout.node_kind[node]
    if not (within & book.board.up) >> node & 1 or not table.kinds.item(row) >> kind & 1:
        return False
    if origin >= 0 and not (layout.nodes[node].full and kind == origin):
        return False
    return home in (-1, node)


def _whole(book: Book, job: int, nodes: list[int], count: int) -> Allocation | None:
    board, spec = book.board, book.specs[job]
    free = {node: board.free[node].bit_count() for node in nodes}
    roomy = [node for node in nodes if free[node] >= count]
    if roomy:
        node = min(roomy, key=lambda node: (free[node], node))
        return (Part(node, _lowest(board.free[node], count)),)
    if spec.placement == "one-node":
        return None
    unit = count // spec.ranks if count > spec.ranks > 1 and count % spec.ranks == 0 else 1
    for kind in dict.fromkeys(board.layout.node_kind[node] for node in nodes):
        found = _spread(board, [node for node in nodes if board.layout.node_kind[node] == kind], count, unit)
        if found is not None:
            return found
    return None


def _spread(board: Board, nodes: list[int], count: int, unit: int) -> Allocation | None:
    """Over as few nodes as can be, ``unit`` devices at least together."""
    parts = []
    for node in sorted(nodes, key=lambda node: (-board.free[node].bit_count(), node)):
        free = board.free[node].bit_count()
        take = min(count, free - free % unit)
        if take:
            parts.append(Part(node, _lowest(board.free[node], take)))
            count -= take
        if not count:
            return tuple(sorted(parts))
    return None


def _share(board: Board, nodes: list[int], memory: int) -> Allocation | None:
    """A share of one device, a shared one before a fresh one."""
    fresh: Allocation | None = None
    for node in nodes:
        share = board.layout.share_milli(node, memory)
        if share > WHOLE_DEVICE:
            continue
        for device in range(board.layout.node_size[node]):
            used = board.partial.get((node, 1 << device), 0)
            if used and used + share <= WHOLE_DEVICE and not board.closed[node] >> device & 1:
                return (Part(node, 1 << device, share),)
        if fresh is None and board.free[node]:
            fresh = (Part(node, _lowest(board.free[node], 1), share),)
    return fresh


def _lowest(mask: int, count: int) -> int:
    return sum(1 << bit for bit in bits(mask)[:count])
