"""Packing: what is found is free, of the right shape, and as tight as promised."""

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tidewright.model.board import Board, Layout
from tidewright.model.job import JobSpec
from tidewright.model.node import NodeSpec, Part, device_count
from tidewright.placement.find import best_fit, lowest, place
from tidewright.placement.fragmentation import fragmentation
from tidewright.plan.request import Request, request_of
from tidewright.testing.views import GIB, pool, random_view, views

from ..sizes import examples

ANY = (1,)


def board(*sizes: int, kind: str = "gpu", rack: int = 2) -> Board:
    nodes = [NodeSpec(name=f"n{i}", kind=kind, devices=size, domain=(f"r{i // rack}",)) for i, size in enumerate(sizes)]
    return Board(Layout.of(tuple(nodes)))


def fill(pool_board: Board, *used: int) -> None:
    for node, count in enumerate(used):
        if count:
            pool_board.acquire((Part(node, (1 << count) - 1),))


@given(
    view=views(), count=st.integers(1, 3) | st.integers(1, 40), mode=st.sampled_from(["consolidate", "one-node", "any"])
)
@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_what_is_found_is_free_and_has_the_shape_asked_for(view, count, mode):
    scratch = view.board()
    found = place(scratch, Request(count, (2, 1), placement=mode))
    assume(found is not None)
    assert scratch.fits(found) and device_count(found) == count
    assert len({part.node for part in found}) == len(found)
    assert len({view.layout.node_kind[part.node] for part in found}) == 1
    if mode == "one-node":
        assert len(found) == 1


@given(view=views(mixed=False), count=st.integers(1, 40))
@settings(max_examples=examples(100), deadline=None)
def test_a_job_that_fits_one_node_is_never_split_and_the_node_is_the_tightest(view, count):
    scratch = view.board()
    free = [mask.bit_count() for node, mask in enumerate(scratch.free) if scratch.up >> node & 1]
    fitting = [f for f in free if f >= count]
    for mode in ("consolidate", "any"):
        found = place(scratch, Request(count, (1,), placement=mode))
        if fitting:
            assert found is not None and len(found) == 1
            assert scratch.free[found[0].node].bit_count() == min(fitting)
        elif mode == "consolidate" and count <= 8:
            assert found is None
        elif mode == "any":
            assert (found is not None) == (sum(free) >= count)


def test_large_jobs_take_whole_nodes_of_one_rack_and_the_tightest_rest():
    busy = board(8, 8, 8, 8, 8, 8)
    fill(busy, 1, 0, 0, 0, 5, 4)
    assert place(busy, Request(16, ANY)) == (Part(2, 255), Part(3, 255))
    assert place(busy, Request(11, ANY)) == (Part(1, 255), Part(0, 0b1110))
    assert place(busy, Request(32, ANY)) is None
    assert place(busy, Request(26, ANY)) == (Part(1, 255), Part(2, 255), Part(3, 255), Part(4, 0b1100000))


def test_relaxed_jobs_fill_fragments_first():
    busy = board(8, 8, 8, 8)
    fill(busy, 6, 5, 8, 0)
    assert [part.node for part in place(busy, Request(5, ANY, placement="any"))] == [3]
    fill(busy, 0, 0, 0, 4)
    assert place(busy, Request(5, ANY, placement="any")) == (Part(0, 0b11000000), Part(1, 0b11100000))


def test_kinds_are_tried_in_the_order_the_job_names_them():
    nodes = (*pool(1, 4, "a100"), *pool(1, 4, "h100"))
    mixed = Board(Layout.of(nodes))
    spec = JobSpec(devices=2, device_types=("h100", "a100"))
    assert place(mixed, request_of(mixed.layout, spec))[0].node == 1
    mixed.acquire((Part(1, 7),))
    assert place(mixed, request_of(mixed.layout, spec))[0].node == 0


def test_ranks_that_see_several_devices_are_not_cut():
    busy = board(4, 4, 4)
    spec = JobSpec(devices=9, ranks=3)
    assert [part.mask.bit_count() for part in place(busy, request_of(busy.layout, spec))] == [3, 3, 3]


def test_a_frozen_job_comes_back_to_its_home_only():
    busy = board(8, 8)
    assert place(busy, Request(2, ANY, pinned_node=1)) == (Part(1, 3),)
    fill(busy, 0, 7)
    assert place(busy, Request(2, ANY, pinned_node=1)) is None


def test_shares_go_to_the_fullest_device_that_has_room():
    memory = Board(Layout.of(pool(2, 2, memory=80 * GIB)))
    request = Request(1, ANY, memory=20 * GIB)
    first = place(memory, request)
    assert first == (Part(0, 1, 250),)
    memory.acquire(first)
    memory.acquire((Part(1, 1, 700),))
    assert place(memory, request) == (Part(1, 1, 250),)
    memory.acquire((Part(1, 1, 250),))
    assert place(memory, request) == (Part(0, 1, 250),)
    assert place(memory, Request(1, ANY, memory=81 * GIB)) is None


@pytest.mark.parametrize(("mask", "count", "expected"), [(0b1011, 2, 0b11), (0b1100, 2, 0b1100), (0b1010, 1, 0b10)])
def test_lowest(mask, count, expected):
    assert lowest(mask, count) == expected


def test_nodes_that_are_down_are_not_found():
    down = board(8)
    down.set_up(0, False)
    assert best_fit(down, 1, 1) == -1


def test_fragmentation_is_nothing_on_an_empty_pool_and_all_when_no_typical_job_fits():
    busy = board(8, 8)
    assert fragmentation(busy, {8: 1.0, 1: 3.0}) == 0
    fill(busy, 4, 4)
    assert fragmentation(busy, {8: 1.0, 4: 1.0}) == pytest.approx(0.5)
    assert fragmentation(busy, {8: 1.0}) == 1.0


def test_the_board_is_never_written_by_a_search():
    view = random_view(3)
    scratch = view.board()
    before = (list(scratch.free), dict(scratch.partial))
    for count in range(1, 30):
        place(scratch, Request(count, (3,), placement="any"))
    assert (list(scratch.free), dict(scratch.partial)) == before
