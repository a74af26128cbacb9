"""Facts of a layout that packing asks for again and again, computed once per layout."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from msgspec import Struct

from ..model.board import Board, Layout
from ..model.node import bits
from ..model.table import Column
from ..plan.request import Request


class HostRoom(NamedTuple):
    """Devices of each node whose ranks its host could hold were it empty."""

    limited: tuple[int, ...]
    """Nodes of which that is not every device."""
    biggest: tuple[int, ...]
    """Of each kind, the most of one node."""


class LayoutFacts(Struct, frozen=True):
    """``sized[kind][size]`` is a set of nodes; ``kind_of`` has shape (nodes,)."""

    sized: tuple[dict[int, int], ...]
    kind_of: Column
    least_memory: int
    regions: tuple[tuple[int, ...], ...]
    """Sets of nodes that are near each other, innermost level first."""
    empty: Board
    """The pool with nothing on it; never written."""
    fits: dict[Request, bool]
    """Answers already found to whether the empty pool could hold a request."""
    host_rooms: dict[tuple[int, ...], HostRoom]
    """By what a rank asks of its host, its ranks and devices: what the empty nodes could hold."""


_recent: list[tuple[Layout, LayoutFacts]] = []


def facts(layout: Layout) -> LayoutFacts:
    """The facts of a layout; the last few layouts are remembered (by identity, a layout is never written)."""
    for known, found in _recent:
        if known is layout:
            return found
    _recent.insert(0, (layout, _compute(layout)))
    del _recent[4:]
    return _recent[0][1]


def flags(nodes: int, count: int) -> Column:
    """A set of nodes as flags over ``count`` of them, shape (count,), bool."""
    found = np.zeros(count, bool)
    found[bits(nodes & ((1 << count) - 1))] = True
    return found


def _compute(layout: Layout) -> LayoutFacts:
    sized: list[dict[int, int]] = [{} for _ in layout.kinds]
    for node, (kind, size) in enumerate(zip(layout.node_kind, layout.node_size, strict=True)):
        sized[kind][size] = sized[kind].get(size, 0) | 1 << node
    memories = [node.device_memory for node in layout.nodes if node.device_memory]
    return LayoutFacts(
        tuple(dict(sorted(sizes.items(), reverse=True)) for sizes in sized),
        np.array(layout.node_kind, dtype=np.int64),
        min(memories, default=0),
        tuple(tuple(level.values()) for level in reversed(layout.domains)),
        Board(layout),
        {},
        {},
    )
