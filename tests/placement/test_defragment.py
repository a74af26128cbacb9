"""Whole nodes made by migrations."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.model.board import Board, Layout
from tidewright.model.node import Part, device_count
from tidewright.placement.defragment import MigrationCandidate, defragment
from tidewright.placement.find import lowest, place
from tidewright.plan.request import Request
from tidewright.testing.views import pool

from ..sizes import examples


def request(count: int, kinds: int = 1, placement: str = "consolidate") -> Request:
    return Request(count, (kinds,), placement=placement)


def asked(one: MigrationCandidate) -> Request:
    return request(one.devices)


def scattered(
    board: Board, held: dict[int, list[int]], costs: dict[int, float] | None = None
) -> list[MigrationCandidate]:
    """Jobs of so many devices on each node."""
    found = []
    for node, counts in held.items():
        for count in counts:
            mine = (Part(node, lowest(board.free[node], count)),)
            board.acquire(mine)
            row = len(found)
            found.append(MigrationCandidate(row, mine, count, (costs or {}).get(row, 1.0) * count))
    return found


def test_a_node_is_cleared_into_the_gap_of_another() -> None:
    board = Board(Layout.of(pool(2)))
    candidates = scattered(board, {0: [6], 1: [2]})
    assert place(board, request(8)) is None
    found = defragment(board, request(8), candidates, asked)
    assert found is not None and found.allocation == (Part(1, 0xFF),)
    assert found.migrated == ((1, (Part(0, 0xC0),)),) and found.cost == 2.0
    assert sum(board.free_total) == 0


def test_what_cannot_be_had_leaves_the_board_alone() -> None:
    board = Board(Layout.of(pool(2)))
    candidates = scattered(board, {0: [6], 1: [3]})
    before = board.free.copy()
    assert defragment(board, request(8), candidates, asked) is None and board.free == before
    assert defragment(board, request(7), candidates[:1], asked) is None and board.free == before


def test_the_cheaper_of_two_nodes_is_cleared() -> None:
    board = Board(Layout.of(pool(3)))
    candidates = scattered(board, {0: [4], 1: [4], 2: [4]}, {0: 9.0, 1: 1.0, 2: 5.0})
    found = defragment(board, request(8), candidates, asked)
    assert found is not None and [row for row, _ in found.migrated] == [1]


def test_a_job_of_two_nodes_has_both_cleared() -> None:
    board = Board(Layout.of(pool(4)))
    candidates = scattered(board, {0: [4], 1: [4], 2: [4], 3: [4]})
    found = defragment(board, request(16), candidates, asked)
    assert found is not None and device_count(found.allocation) == 16 and len(found.migrated) == 2


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 10**6))
def test_migrations_can_be_made_one_after_the_other(seed: int) -> None:
    """On any board: replaying them in order finds every device free, and the room is there afterwards."""
    dice = random.Random(seed)
    nodes = (*pool(dice.randint(1, 5), kind="a"), *pool(dice.randint(0, 2), 4, "b"))
    board = Board(Layout.of(nodes))
    held = {node: [dice.choice((1, 1, 2, 4)) for _ in range(dice.randint(0, 3))] for node, spec in enumerate(nodes)}
    for node, counts in held.items():
        while sum(counts) > nodes[node].devices:
            counts.pop()
    candidates = scattered(board, held, {row: dice.random() for row in range(20)})
    movable = [one for one in candidates if dice.random() < 0.8]
    again = board.copy()
    wanted = request(dice.choice((2, 4, 8, 12, 16)), dice.choice((1, 2, 3)) if len(board.layout.kinds) > 1 else 1)
    if place(board, wanted) is not None:
        return
    found = defragment(board, wanted, movable, asked)
    if found is None:
        assert board.free == again.free and board.free_total == again.free_total
        return
    mine = {one.row: one for one in movable}
    for row, elsewhere in found.migrated:
        again.release(mine[row].allocation)
        assert again.fits(elsewhere) and device_count(elsewhere) == asked(mine[row]).count
        again.acquire(elsewhere)
    assert again.fits(found.allocation) and wanted.reject(found.allocation, board.layout) is None
    again.acquire(found.allocation)
    assert again.free == board.free
