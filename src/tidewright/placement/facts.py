"""Facts of a layout that packing asks for again and again, computed once per layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec import Struct

from ..model.board import Board, Layout
from ..model.node import bits
from ..model.table import Column

EVERYWHERE = -1
"""The set of all nodes: every bit of a negative one is set."""


class Facts(Struct, frozen=True):
    """``biggest[kind]`` is the largest node, ``sized[kind][size]`` a set of nodes; ``kind_of`` has shape (nodes,)."""

    biggest: tuple[int, ...]
    sized: tuple[dict[int, int], ...]
    kind_of: Column
    least_memory: int
    regions: tuple[tuple[int, ...], ...]
    """Sets of nodes that are near each other, innermost level first."""
    empty: Board
    """The pool with nothing on it; never written."""
    imaging: tuple[int, ...]
    """Per kind, the set of nodes of that kind that take full images; EVERYWHERE when that is every node there is."""
    fits: dict[Any, bool]
    """Answers already found to whether the empty pool could hold an ask."""


_recent: list[tuple[Layout, Facts]] = []


def facts(layout: Layout) -> Facts:
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


def _imaging(layout: Layout, kind: int) -> int:
    nodes = sum(1 << node for node, spec in enumerate(layout.nodes) if spec.full and layout.node_kind[node] == kind)
    return EVERYWHERE if nodes == (1 << len(layout.nodes)) - 1 else nodes


def _compute(layout: Layout) -> Facts:
    sized: list[dict[int, int]] = [{} for _ in layout.kinds]
    for node, (kind, size) in enumerate(zip(layout.node_kind, layout.node_size, strict=True)):
        sized[kind][size] = sized[kind].get(size, 0) | 1 << node
    memories = [node.device_memory for node in layout.nodes if node.device_memory]
    return Facts(
        tuple(max(sizes, default=0) for sizes in sized),
        tuple(dict(sorted(sizes.items(), reverse=True)) for sizes in sized),
        np.array(layout.node_kind, dtype=np.int64),
        min(memories, default=0),
        tuple(tuple(level.values()) for level in reversed(layout.domains)),
        Board(layout),
        tuple(_imaging(layout, kind) for kind in range(len(layout.kinds))),
        {},
    )
