"""Whether preempting many jobs could help at all, by counting devices: asked before any search for the cheapest of them."""

from __future__ import annotations

import numpy as np

from ..model.board import ALL_NODES, Board
from ..model.node import bits
from ..model.table import Column
from ..model.view import View
from ..plan.request import Request
from .find import split


def devices_on(view: View, rows: Column) -> list[float]:
    """Devices that the running rows ``rows`` (flags) hold on each node."""
    jobs, picked = view.jobs, rows.nonzero()[0]
    lone = jobs.lone_node[picked]
    found: list[float] = np.bincount(lone, jobs.held[picked], len(view.layout.nodes) + 1).tolist()
    if found[0]:
        for job in jobs.id[picked[lone == 0]].tolist():
            for node, mask, _, _ in view.allocations[job]:
                found[node + 1] += mask.bit_count()
    del found[0]
    return found


def could_hold(board: Board, request: Request, gain: list[float]) -> bool:
    """Whether the devices would be enough were ``gain[node]`` more free on each node (``devices_on``): a necessary condition, far
    cheaper than looking for victims."""
    if request.shares or request.hosted or request.placement == "any":
        return True
    nodes = request.nodes(board.layout)
    return any(_could_hold(board, request, nodes, kind, gain) for kinds in request.groups for kind in bits(kinds))


def _could_hold(board: Board, request: Request, nodes: int, kind: int, gain: list[float]) -> bool:
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
    full = len([room for room in rooms if room >= usable])
    return full >= whole and (not rest or len([room for room in rooms if room >= rest]) > whole)
