"""Host CPUs and memory while packing, against trying everything: what is found is real, and what there is is found."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.model.board import Board, Layout
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, Level
from tidewright.model.node import Allocation, NodeSpec, Part, PartResources, device_count
from tidewright.placement.explain import explain
from tidewright.placement.find import lowest, place, scatter
from tidewright.placement.preemption import PreemptionCandidate, PreemptionIndex
from tidewright.plan.reasons import Reason
from tidewright.plan.render import misused, render
from tidewright.plan.request import Request, request_of, unit_of
from tidewright.testing.views import GIB, ViewBuilder

from ..sizes import examples

nodes = st.lists(
    st.builds(
        NodeSpec, name=st.just("n"), kind=st.sampled_from(["a", "b"]), devices=st.integers(1, 3), device_memory=st.just(80),
        cpus=st.sampled_from([0, 1, 2, 4, 8]), memory=st.sampled_from([0, 10, 40]),
    ),
    min_size=1,
    max_size=3,
)  # fmt: skip
used = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 500, 1000]), st.sampled_from([0, 5])),
    max_size=4,
)


@st.composite
def requests(draw: st.DrawFn) -> Request:
    count = draw(st.integers(1, 6))
    ranks = draw(st.sampled_from([count, 2 * count, *(each for each in (1, count // 2) if each and count % each == 0)]))
    return Request(
        count, ((1,), (3,), (2, 1))[draw(st.integers(0, 2))], ranks=ranks, unit=unit_of(count, ranks),
        placement=draw(st.sampled_from(["consolidate", "one-node", "any"])),
        cpus_milli=draw(st.sampled_from([0, 400, 1000, 2000])), host_memory=draw(st.sampled_from([0, 3, 10])),
    )  # fmt: skip


def busy(specs: list[NodeSpec], held: list[tuple[int, int, int, int]]) -> Board:
    """A pool with jobs of one device each on it."""
    layout = Layout.of(tuple(replace(node, name=f"n{at}") for at, node in enumerate(specs)))
    board = Board(layout)
    for node, device, cpus_milli, memory in held:
        part = Part(node, 1 << device, 1000, PartResources(cpus_milli, memory))
        if node < len(specs) and device < specs[node].devices and board.fits((part,)):
            board.acquire((part,))
    return board


def of_pool(request: Request, board: Board) -> Request:
    """The request in kinds that the pool has."""
    there = (1 << len(board.layout.kinds)) - 1
    return replace(request, groups=tuple(group & there for group in request.groups if group & there))


def everything(board: Board, request: Request) -> Iterator[Allocation]:
    """Every way to take so many free devices that the request and the board allow."""
    for counts in itertools.product(*(range(free.bit_count() + 1) for free in board.free)):
        if sum(counts) == request.count:
            parts = tuple(Part(node, lowest(board.free[node], take)) for node, take in enumerate(counts) if take)
            allocation = request.with_resources(parts, board.layout)
            kinds = {board.layout.node_kind[part.node] for part in parts}
            if len(kinds) == 1 and request.reject(allocation, board.layout) is None and board.fits(allocation):
                yield allocation


def state(board: Board) -> Any:
    return [
        list(board.free),
        dict(board.host),
        dict(board.measured),
        list(board.free_total),
        [list(b) for b in board.buckets],
    ]


@given(nodes, used, requests())
@settings(max_examples=examples(600), deadline=None)
def test_what_is_found_is_real_and_what_there_is_is_found(
    specs: list[NodeSpec], held: list[tuple[int, int, int, int]], request: Request
) -> None:
    board = busy(specs, held)
    request, before = of_pool(request, board), state(board)
    found, ways = place(board, request), list(everything(board, request))
    assert state(board) == before, "the board is not written"
    if found is not None:
        assert request.reject(found, board.layout) is None and board.fits(found)
    single = [way for way in ways if len(way) == 1]
    assert not single or found is not None
    assert not single or len(request.groups) > 1 or len(found or ()) == 1, "one node is enough"
    spread = scatter(board, request)
    assert spread is None or (request.reject(spread, board.layout) is None and board.fits(spread))
    # A rank that sees devices of two nodes is counted on both, so something may be missed there.
    if ways and request.placement != "one-node" and request.ranks >= request.count:
        assert spread is not None
        assert found is not None or request.placement == "consolidate"


@given(nodes, used, requests())
@settings(max_examples=examples(300), deadline=None)
def test_a_pool_is_only_refused_when_it_could_never_hold_the_job(
    specs: list[NodeSpec], held: list[tuple[int, int, int, int]], request: Request
) -> None:
    board = busy(specs, [])
    request = of_pool(request, board)
    why = request.reject_pool(board.layout)
    if why is not None:
        assert not list(everything(board, request)) and not misused(why) and render(why)


@given(st.lists(st.tuples(st.sampled_from([0, 100, 300, 600]), st.sampled_from([0, 20, 50])), max_size=6),
       st.sampled_from([0, 100, 300, 600]), st.sampled_from([0, 20, 50]))  # fmt: skip
@settings(max_examples=examples(300), deadline=None)
def test_a_share_takes_compute_and_memory_apart(held: list[tuple[int, int]], milli: int, memory: int) -> None:
    layout = Layout.of((NodeSpec(name="n", kind="g", devices=2, device_memory=80),))
    board, taken = Board(layout), [[0, 0.0], [0, 0.0]]
    for asked in (*held, (milli, memory)):
        if asked == (0, 0):
            continue
        request = Request(1, (1,), memory=asked[1], gpu_milli=asked[0])
        mine = (asked[0] or -(-asked[1] * 1000 // 80), asked[1] if asked[0] else -(-asked[1] * 1000 // 80) * 0.08)
        there = [one for one in taken if one[0] + mine[0] <= 1000 and one[1] + mine[1] <= 80 + 1e-9]
        found = place(board, request)
        assert (found is not None) == bool(there)
        if found is not None:
            assert request.reject(found, layout) is None and board.fits(found)
            board.acquire(found)
            at = found[0].mask.bit_length() - 1
            taken[at][0] += mine[0]
            taken[at][1] += mine[1]


# -- preemption -----------------------------------------------------------------------------------------------------------


@given(nodes, st.lists(st.tuples(st.integers(0, 2), st.sampled_from([1, 3]), st.sampled_from([0, 500, 1000, 2000]),
                                 st.sampled_from([0, 5]), st.integers(1, 5)), max_size=6), requests())  # fmt: skip
@settings(max_examples=examples(400), deadline=None)
def test_victims_make_room_and_none_is_needless(
    specs: list[NodeSpec], running: list[tuple[int, int, int, int, int]], request: Request
) -> None:
    board = busy(specs, [])
    request, candidates = of_pool(request, board), []
    for row, (node, mask, cpus_milli, memory, cost) in enumerate(running):
        if node >= len(specs) or mask >> specs[node].devices:
            continue
        mine = Request(
            mask.bit_count(), (1 << board.layout.node_kind[node],), ranks=1, cpus_milli=cpus_milli, host_memory=memory
        )
        allocation = place(board, mine, 1 << node)
        if allocation is not None:
            board.acquire(allocation)
            candidates.append(PreemptionCandidate(row, allocation, float(cost)))
    if not (request.hosted and place(board, request) is None):
        return
    check, before = board.copy(), state(board)
    room = PreemptionIndex(board, candidates).find_preemption(request)
    empty = check.copy()
    for one in candidates:
        empty.release(one.allocation)
    assert (room is not None) == (place(empty, request) is not None)
    if room is None:
        assert state(board) == before
        return
    gone = {one.row: one.allocation for one in candidates if one.row in room.suspended}
    for allocation in gone.values():
        check.release(allocation)
    assert check.fits(room.allocation) and not room.shrunk
    if request.placement == "one-node" or device_count(room.allocation) == 1:
        for allocation in gone.values():
            check.acquire(allocation)
            assert place(check, request) is None or len(gone) > 1, "one victim was enough"
            check.release(allocation)


def test_a_victim_that_would_be_frozen_keeps_its_memory_in_use() -> None:
    from tidewright.policy.preempt import candidate_of

    builder = ViewBuilder((NodeSpec(name="n", kind="h100", devices=2, cpus=4, memory=10 * GIB),))
    spec = JobSpec(command=("x",), cpus_milli=3000, memory=8 * GIB)
    frozen = builder.run(spec, 1, level=int(Level.FREEZE))
    view = builder.view()
    row = view.jobs.row[frozen]
    (part,) = candidate_of(view, view.board(), row, 1.0).allocation
    assert part.resources == PartResources(3000, 0)
    asks = request_of(view.layout, JobSpec(command=("x",), cpus_milli=3000))
    found = PreemptionIndex(view.board(), [candidate_of(view, view.board(), row, 1.0)]).find_preemption(asks)
    assert found is not None and found.suspended == (row,)
    more = request_of(view.layout, JobSpec(command=("x",), memory=4 * GIB))
    assert PreemptionIndex(view.board(), [candidate_of(view, view.board(), row, 1.0)]).find_preemption(more) is None


# -- in words ---------------------------------------------------------------------------------------------------------------


def pool(**node: Any) -> ViewBuilder:
    given = {"kind": "h100", "devices": 4, "cpus": 8, "memory": 64 * GIB, **node}
    return ViewBuilder(tuple(NodeSpec(name=f"n{at}", **given) for at in range(2)))


@pytest.mark.parametrize(
    ("asked", "reason", "why"),
    [
        ({"cpus_milli": 3000}, Reason.CPUS, Code.CPUS_SHORT(3000, "h100", 2000)),
        ({"memory": 40 * GIB}, Reason.HOST_MEMORY, Code.HOST_MEMORY_SHORT(40 * GIB, "h100", 32 * GIB)),
        ({"cpus_milli": 9000}, Reason.NEVER_FITS, Code.CPUS_TOO_FEW(1, 9000, 0, 8000)),
        ({"memory": 65 * GIB}, Reason.NEVER_FITS, Code.HOST_MEMORY_TOO_SMALL(1, 65 * GIB, 0, 64 * GIB)),
        ({"cpus_milli": 1000, "ranks": 32}, Reason.NEVER_FITS, Code.CPUS_TOO_FEW(32, 1000, 8, 250)),
    ],
)
def test_the_limit_that_binds_is_named(asked: dict[str, Any], reason: Reason, why: Any) -> None:
    builder = pool()
    for _ in range(2):
        builder.run(JobSpec(command=("x",), ranks=1, devices=1, cpus_milli=6000, memory=32 * GIB))
    view = builder.view()
    said = explain(view, view.board(), 1, request_of(view.layout, JobSpec(command=("x",), **asked)))
    assert (said.reason, said.why) == (reason, why) and not misused(why)


def test_a_job_goes_over_several_nodes_where_the_hosts_of_one_are_too_small() -> None:
    view = pool().view()
    spec = JobSpec(command=("x",), ranks=4, devices=4, cpus_milli=4000)
    found = place(view.board(), request_of(view.layout, spec))
    assert found == tuple(Part(node, 3, 1000, PartResources(8000)) for node in (0, 1))
    assert place(view.board(), request_of(view.layout, replace(spec, placement="one-node"))) is None


def test_ten_thousand_ranks_are_counted_not_listed() -> None:
    builder = ViewBuilder(tuple(NodeSpec(name=f"n{at}", devices=8, cpus=64, memory=512 * GIB) for at in range(1300)))
    view = builder.view()
    spec = JobSpec(command=("x",), ranks=10_000, devices=10_000, cpus_milli=8000, memory=64 * GIB)
    found = place(view.board(), request_of(view.layout, spec))
    assert found is not None and len(found) == 1250
    assert all(part.resources == PartResources(64_000, 512 * GIB) for part in found)
    tight = place(view.board(), request_of(view.layout, replace(spec, cpus_milli=8001)))
    assert (
        tight is None and request_of(view.layout, replace(spec, cpus_milli=8001)).reject_pool(view.layout) is not None
    )
