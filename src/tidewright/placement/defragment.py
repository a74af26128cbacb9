"""Room on whole nodes made by migrating running jobs into the gaps that others leave.

A request that the free devices would satisfy, if only they lay together, is placed on the nodes that are cheapest to clear. It
refuses to know what a migration gains and whether it is worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from msgspec import Struct

from ..model.board import ALL_NODES, Board
from ..model.node import Allocation, bits
from ..plan.request import Request
from .find import place, split

_NODES = 16
"""Nodes that are looked at in full for each one to clear: those that by their prices are the cheapest."""


class MigrationCandidate(Struct, frozen=True):
    """A running row on one node that may be moved, its devices, and the device-microseconds that moving it costs."""

    row: int
    allocation: Allocation
    devices: int
    cost: float


_Wanted: TypeAlias = Callable[[MigrationCandidate], Request]


class Defragmentation(Struct, frozen=True):
    """Migrations in the order in which they can be made, and the allocation whose devices they free."""

    allocation: Allocation
    migrated: tuple[tuple[int, Allocation], ...]
    cost: float


def defragment(
    board: Board,
    request: Request,
    candidates: Iterable[MigrationCandidate],
    wanted: _Wanted,
) -> Defragmentation | None:
    """The cheapest room found for ``request``, taken on the board with the migrations; None (board untouched) for none.
    ``wanted``: what a candidate may have elsewhere; few are asked for it.

    Searches one kind at a time, node by node, cheapest first: not every room that there is.
    """
    if request.shares or request.placement == "any":
        return None  # neither lacks nodes that are whole
    on: dict[int, list[MigrationCandidate]] = {}
    for one in candidates:
        on.setdefault(one.allocation[0].node, []).append(one)
    mark = board.mark()
    for kinds in request.groups:
        for kind in bits(kinds):
            found = _on_kind(board, request, kind, on, wanted) if board.free_in(1 << kind) >= request.count else None
            if found is not None:
                return found
            board.undo(mark)
    return None


def _on_kind(
    board: Board, request: Request, kind: int, on: dict[int, list[MigrationCandidate]], wanted: _Wanted
) -> Defragmentation | None:
    parts = split(request, kind, board.layout)
    if parts is None:
        needs = [request.count]
    elif request.one_node or request.pinned_node >= 0:
        return None
    else:
        needs = [parts[1]] * parts[0] + ([parts[2]] if parts[2] else [])
    cleared, migrated, cost = 0, [], 0.0
    for need in needs:
        node, moves, price = _clear_one(board, request, kind, need, on, cleared, wanted)
        if node < 0:
            return None
        cleared |= 1 << node
        migrated += moves
        cost += price
    within = request.nodes(board.layout) & cleared
    allocation = place(board, request, within) if within else None
    if allocation is None:
        return None
    board.acquire(allocation)
    return Defragmentation(allocation, tuple(migrated), cost)


def _clear_one(
    board: Board,
    request: Request,
    kind: int,
    need: int,
    on: dict[int, list[MigrationCandidate]],
    cleared: int,
    wanted: _Wanted,
) -> tuple[int, list[tuple[int, Allocation]], float]:
    """(node, migrations made on the board, their cost) of the cheapest node with ``need`` devices free; node -1 for none."""
    best: tuple[float, int] | None = None
    for price, node in sorted(_prices(board, request, kind, need, on, cleared))[:_NODES]:
        if best is not None and price >= best[0]:
            break
        mark = board.mark()
        moves = _clear(board, node, need, on.get(node, []), cleared, wanted)
        board.undo(mark)
        if moves is not None:
            cost = sum(one.cost for one, _ in moves)
            if best is None or cost < best[0]:
                best = cost, node
    if best is None:
        return -1, [], 0.0
    cost, node = best
    made = _clear(board, node, need, on.get(node, []), cleared, wanted)
    assert made is not None
    return node, [(one.row, allocation) for one, allocation in made], cost


def _prices(
    board: Board, request: Request, kind: int, need: int, on: dict[int, list[MigrationCandidate]], cleared: int
) -> Iterator[tuple[float, int]]:
    """(what clearing it costs at least, node) for nodes where that many devices can be free."""
    allowed = request.nodes(board.layout) & board.up & ~cleared
    for free, nodes in enumerate(board.buckets[kind]):
        for node in bits(nodes & allowed):
            if free >= need:
                yield 0.0, node
                continue
            mine = on.get(node, ())
            if free + sum(one.devices for one in mine) >= need:
                rates = sorted(one.cost / one.devices for one in mine)
                yield rates[0] * (need - free), node


def _clear(
    board: Board, node: int, need: int, candidates: list[MigrationCandidate], cleared: int, wanted: _Wanted
) -> list[tuple[MigrationCandidate, Allocation]] | None:
    """Migrate candidates off a node, cheapest per device first, until ``need`` devices are free; None if that cannot be."""
    moves: list[tuple[MigrationCandidate, Allocation]] = []
    elsewhere = ALL_NODES & ~(1 << node) & ~cleared
    for one in sorted(candidates, key=lambda one: (one.cost / one.devices, one.row)):
        if board.free[node].bit_count() >= need:
            break
        board.release(one.allocation)
        found = place(board, wanted(one), elsewhere)
        if found is None or not _same_kind(board, found, node):
            board.acquire(one.allocation)
            continue
        board.acquire(found)
        moves.append((one, found))
    return moves if board.free[node].bit_count() >= need else None


def _same_kind(board: Board, allocation: Allocation, node: int) -> bool:
    kinds = board.layout.node_kind
    return kinds[allocation[0].node] == kinds[node]
