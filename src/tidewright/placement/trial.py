"""Which jobs to preempt where devices are not the only limit: release candidates, cheapest first, until the job can be placed.

Prices per node (placement.preemption) count devices alone. For requests for host CPUs, host memory, or both the compute and
the memory of a share, each node is tried with its own candidates, and where no single node does, the whole pool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from ..model.board import Board
from ..model.node import Allocation, milli_devices
from ..plan.request import Request
from .find import place

Candidates = Mapping[int, tuple[float, Allocation]]
"""Row to (cost, what its release frees)."""


def tried(
    board: Board, request: Request, kinds: int, candidates: Candidates, on: Mapping[int, Iterable[int]]
) -> dict[int, bool] | None:
    """Rows whose release frees what ``request`` needs, each with False (none is only shrunk); they are released on the board.
    None, with the board as it was, where releasing all would not do. ``on``: node to rows.
    """
    request, layout = replace(request, groups=(kinds,)), board.layout
    order = sorted(candidates, key=lambda row: (candidates[row][0] / max(milli_devices(candidates[row][1]), 1), row))
    rank = {row: at for at, row in enumerate(order)}
    chosen = _on_one_node(
        board, request, kinds, candidates, {node: sorted(on[node], key=rank.__getitem__) for node in on}
    )
    if chosen is None and not request.one_node and request.pinned_node < 0:
        usable = {node: kinds >> kind & 1 and board.up >> node & 1 for node, kind in enumerate(layout.node_kind)}
        order = [row for row in order if any(usable[part.node] for part in candidates[row][1])]
        chosen = _anywhere(board, request, candidates, order)
    if chosen is None:
        return None
    _release(board, candidates, chosen)
    return dict.fromkeys(chosen, False)


def _release(board: Board, candidates: Candidates, rows: Sequence[int]) -> None:
    for row in rows:
        board.release(candidates[row][1])


def _on_one_node(
    board: Board, request: Request, kinds: int, candidates: Candidates, on: Mapping[int, list[int]]
) -> list[int] | None:
    """The rows whose release costs least of those that free enough on a single node."""
    nodes, layout = request.nodes(board.layout) & board.up, board.layout
    best: tuple[float, int, list[int]] | None = None
    for node in sorted(on):
        if not nodes >> node & 1 or not kinds >> layout.node_kind[node] & 1 or layout.node_size[node] < request.count:
            continue
        mark, cost, rows = board.mark(), 0.0, []
        for row in on[node]:
            if best is not None and cost >= best[0]:
                break
            board.release(candidates[row][1])
            cost += candidates[row][0]
            rows.append(row)
            if _room_on(board, request, node):
                if best is None or (cost, node) < best[:2]:
                    best = (cost, node, rows)
                break
        board.undo(mark)
    return best[2] if best is not None else None


def _room_on(board: Board, request: Request, node: int) -> bool:
    if request.shares:
        return place(board, request, 1 << node) is not None
    ranks = request.ranks or 1
    enough = board.free[node].bit_count() >= request.count
    return enough and board.ranks_fit(node, request.cpus_milli, request.host_memory, ranks) >= ranks


def _anywhere(board: Board, request: Request, candidates: Candidates, order: list[int]) -> list[int] | None:
    """The fewest of ``order``, from its start, whose release frees enough: what is released never hinders."""
    few, many = 0, len(order)
    if not _does(board, request, candidates, order):
        return None
    while few < many:
        half = (few + many) // 2
        if _does(board, request, candidates, order[:half]):
            many = half
        else:
            few = half + 1
    return _without_needless(board, request, candidates, order[:many])


def _without_needless(board: Board, request: Request, candidates: Candidates, rows: list[int]) -> list[int]:
    """The rows without those whose devices the job does not need, the dearest first."""
    for row in sorted(rows, key=lambda row: (-candidates[row][0], row)):
        others = [other for other in rows if other != row]
        if _does(board, request, candidates, others):
            rows = others
    return rows


def _does(board: Board, request: Request, candidates: Candidates, rows: Sequence[int]) -> bool:
    mark = board.mark()
    _release(board, candidates, rows)
    found = place(board, request) is not None
    board.undo(mark)
    return found
