"""Host CPUs and host memory while packing: nodes whose host has no room left have fewer devices to offer, or none.

For the time of a search the devices that a host could not serve are taken on the board, so that all that is known of packing
devices holds for them; which ones these are depends on the request. A request for devices alone never comes here.
"""

from __future__ import annotations

from ..base.units import WHOLE_DEVICE
from ..model.board import Board, Layout
from ..model.node import Part, bits
from ..plan.request import Request
from .facts import HostRoom, LayoutFacts, facts

_REMEMBERED = 256
_FEW = 8
"""Nodes looked at one by one, which costs less than to list those of the whole pool that may lack room."""


def hide_unserved(board: Board, request: Request, within: int) -> int:
    """Take the devices of each node that its host has no room to serve; returns the nodes of ``within`` that have room.

    The caller undoes that. Ranks are counted as if dealt evenly, rounded up, so what is left can always be served.
    """
    ranks, seats = request.ranks or 1, request.count
    few = within >= 0 and within.bit_count() <= _FEW
    nodes = bits(within) if few else sorted({*host_room(board.layout, request).limited, *board.host})
    for node in nodes:
        if not within >> node & 1:
            continue
        fit = board.ranks_fit(node, request.cpus_milli, request.host_memory, ranks)
        served, free = fit * seats // ranks, board.free[node]
        if not fit or not served:
            within &= ~(1 << node)
        over = free.bit_count() - served
        if over > 0:
            board.acquire((Part(node, _highest(free, over), WHOLE_DEVICE),))
    return within


def host_room(layout: Layout, request: Request) -> HostRoom:
    """What the empty nodes of a layout could hold of a request by their hosts."""
    known = facts(layout)
    key = (request.cpus_milli, request.host_memory, request.ranks or 1, request.count)
    found = known.host_rooms.get(key)
    if found is None:
        if len(known.host_rooms) >= _REMEMBERED:
            known.host_rooms.clear()
        found = known.host_rooms[key] = _empty_room(layout, known, request)
    return found


def _empty_room(layout: Layout, known: LayoutFacts, request: Request) -> HostRoom:
    ranks, biggest = request.ranks or 1, [0] * len(layout.kinds)
    limited = []
    for node, (kind, size) in enumerate(zip(layout.node_kind, layout.node_size, strict=True)):
        fit = known.empty.ranks_fit(node, request.cpus_milli, request.host_memory, ranks)
        served = min(size, fit * request.count // ranks)
        biggest[kind] = max(biggest[kind], served)
        if served < size:
            limited.append(node)
    return HostRoom(tuple(limited), tuple(biggest))


def spreads(board: Board, request: Request, kind: int) -> bool:
    """Whether their hosts keep a job from all the devices that it would have of the biggest nodes of a kind."""
    usable = min(request.count, board.layout.kind_biggest[kind])
    return host_room(board.layout, request).biggest[kind] < usable


def _highest(mask: int, count: int) -> int:
    """The ``count`` highest set bits."""
    return sum(1 << bit for bit in bits(mask)[-count:])
