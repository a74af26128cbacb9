"""Whether preempting could help at all: asked before anything is priced."""

from __future__ import annotations

from collections.abc import Iterable

from ..model.board import ALL_NODES, Board
from ..model.node import Allocation, bits
from ..plan.request import Request
from .find import split


def could_hold(board: Board, request: Request, allocations: Iterable[Allocation]) -> bool:
    """Whether preempting all these could free enough devices: a necessary condition, far cheaper than looking for victims."""
    if request.memory or request.placement == "any":
        return True
    gain = [0] * len(board.free)
    nodes = request.nodes(board.layout)
    plain = nodes == ALL_NODES and len(board.layout.kinds) == 1
    for allocation in allocations:
        for node, mask, _ in allocation:
            gain[node] += mask.bit_count()
            # One node that could hold it all settles the question, usually after a few candidates.
            if plain and gain[node] >= request.count - board.free[node].bit_count() and board.up >> node & 1:
                return True
    return any(_could_hold(board, request, nodes, kind, gain) for kinds in request.groups for kind in bits(kinds))


def _could_hold(board: Board, request: Request, nodes: int, kind: int, gain: list[int]) -> bool:
    """Whether those of ``nodes`` that are of this kind could have the devices, if each had its ``gain`` more."""
    rooms = [free.bit_count() + more for free, more in zip(board.free, gain, strict=True)]
    if len(board.layout.kinds) > 1 or board.up.bit_count() < len(rooms) or nodes != ALL_NODES:
        kinds, up = board.layout.node_kind, board.up & nodes
        rooms = [room if kinds[node] == kind and up >> node & 1 else 0 for node, room in enumerate(rooms)]
    if max(rooms) >= request.count:
        return True
    parts = None if request.one_node or request.pinned_node >= 0 else split(request, kind, board.layout)
    if parts is None:
        return False
    whole, usable, rest = parts
    full = sum(room >= usable for room in rooms)
    return full >= whole and (not rest or sum(room >= rest for room in rooms) > whole)
