"""Among places that are equally good, those where a job's image lies.

Coming back where the image lies costs a restore; coming back elsewhere costs fetching and unpacking it first. That is
seconds to minutes, once. A hole broken in the pool can keep a larger job waiting for hours, a gang spread over more nodes
or a wider corner is slower for as long as it runs, and a dearer victim loses work. So locality settles ties and no more:
see docs/why/image-locality.md. This file knows sets of nodes, not images.
"""

from __future__ import annotations

import numpy as np

from ..model.board import Board, Layout
from ..model.cause import Cause, Code
from ..model.node import Allocation, Part, bits
from ..model.table import Column


def local_node(board: Board, kinds: int, count: int, locality: int, tightest: int) -> int:
    """The node of ``locality`` for ``count`` devices if that breaks no larger hole than on the ``tightest``, else that one."""
    if not locality:
        return tightest
    least, best = _broken(board, tightest, count), tightest
    rank: tuple[int, int] | None = None
    for node in bits(locality & board.up):
        free = board.free[node].bit_count()
        if free < count or not kinds >> board.layout.node_kind[node] & 1:
            continue
        mine = (_broken(board, node, count), free)
        if mine[0] <= least and (rank is None or mine < rank):
            rank, best = mine, node
    return best


def _broken(board: Board, node: int, count: int) -> int:
    """Devices of the hole that is gone once ``count`` of a node's free devices are; 0 when as large a one is left."""
    free, size = board.free[node].bit_count(), board.layout.node_size[node]
    before = _hole(free, size)
    return before if _hole(free - count, size) < before else 0


def _hole(free: int, size: int) -> int:
    """The largest job that this many free devices of a node can take: an untouched node, or a power of two, since that is
    what jobs ask for.
    """
    return free if free == size or not free else 1 << free.bit_length() - 1


def members(nodes: tuple[int, ...]) -> int:
    """Node indices as a set."""
    return sum(1 << node for node in dict.fromkeys(nodes))


def prefer_local(nodes: int, count: int, locality: int) -> int:
    """``count`` of a set of nodes: those of ``locality`` first, then the lowest."""
    return sum(1 << node for node in local_first(nodes, locality)[:count])


def local_first(nodes: int, locality: int) -> list[int]:
    """A set of nodes as a list, those of ``locality`` before the others."""
    return [*bits(nodes & locality), *bits(nodes & ~locality)] if locality else list(bits(nodes))


def cheapest_nodes(prices: Column, count: int, locality: int) -> Column:
    """Indices of the ``count`` lowest prices; of equal ones those of ``locality``, then the lowest. Shape (count,), int64."""
    if not locality:
        return np.argsort(prices, kind="stable")[:count]
    away = np.ones(len(prices), bool)
    away[bits(locality)] = False
    return np.lexsort((away, prices))[:count]


def in_rank_order(allocation: Allocation, image_nodes: tuple[int, ...]) -> Allocation:
    """The same devices, each node at the place in the gang that it has in ``image_nodes`` where that can be.

    Ranks are dealt out part by part, so that a rank comes to the node that has its own image.
    """
    if len(allocation) < 2:
        return allocation
    left = {part.node: part for part in allocation}
    placed: list[Part | None] = [left.pop(node, None) for node in image_nodes[: len(allocation)]]
    placed += [None] * (len(allocation) - len(placed))
    others = iter([part for part in allocation if part.node in left])
    return tuple(part if part is not None else next(others) for part in placed)


def locality_note(layout: Layout, allocation: Allocation, image_nodes: tuple[int, ...]) -> Cause:
    """Where the image lies, seen from these devices."""
    names = tuple(layout.nodes[node].name for node in dict.fromkeys(image_nodes))
    here = all(part.node in image_nodes for part in allocation)
    return Code.AT_ITS_IMAGE(names) if here else Code.IMAGE_FETCHED(names)
