"""The predicate against its rules written out one by one, and against the packers that search by its sets."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tidewright.model.board import ALL_NODES, Board, Layout
from tidewright.model.cause import Cause, Code
from tidewright.model.job import JobSpec, Level, State
from tidewright.model.node import Allocation, NodeSpec, Part, PartResources, rank_layout
from tidewright.placement.find import lowest, place
from tidewright.plan.render import misused, render
from tidewright.plan.request import Request, request_of, row_request, unit_of
from tidewright.testing.views import GIB, ViewBuilder, pool

from ..sizes import examples

BIG, SMALL = 1, 2


def node(index: int, kind: str = "big", devices: int = 4, gib: int = 80, full: bool = True) -> NodeSpec:
    return NodeSpec(name=f"n{index}", kind=kind, devices=devices, device_memory=gib * GIB, full=full)


LAYOUT = Layout.of((node(0), node(1, full=False), node(2, "small", 2, 16), node(3, "small", 2, 16, False)))

requests = st.builds(
    Request,
    count=st.integers(1, 6),
    groups=st.sampled_from([(), (BIG,), (SMALL,), (SMALL, BIG), (BIG | SMALL,)]),
    memory=st.sampled_from([0, 0, 8 * GIB, 40 * GIB]),
    placement=st.sampled_from(["consolidate", "one-node", "any"]),
    pinned_node=st.sampled_from([-1, -1, 0, 2]),
    restore_kind=st.sampled_from([-1, -1, 0, 1]),
    refused=st.sampled_from([0, 0, 0b1, 0b1100]),
    floor=st.integers(0, 2),
    demand=st.sampled_from([0, 6]),
    ranks=st.integers(0, 3),
    gpu_milli=st.sampled_from([0, 0, 300]),
    cpus_milli=st.sampled_from([0, 0, 500]),
    host_memory=st.sampled_from([0, 0, GIB]),
)
beside = st.none() | st.builds(
    PartResources,
    st.sampled_from([0, 500, 1000]),
    st.sampled_from([0, GIB, 2 * GIB]),
    st.sampled_from([-1, 0, 8 * GIB]),
)
parts = st.builds(Part, st.integers(-1, 4), st.integers(0, 31), st.sampled_from([1000, 100, 300, 500]), beside)


def allowed(request: Request, allocation: Allocation) -> bool:
    """The same from the words alone."""
    nodes = [part.node for part in allocation]
    if not all(0 <= at < 4 for at in nodes) or len(set(nodes)) < len(nodes):
        return False
    for at, mask, milli, _ in allocation:
        spec = LAYOUT.nodes[at]
        share = -(-request.memory * 1000 // spec.device_memory) if request.memory else 1000
        share = request.gpu_milli if request.gpu_milli and (share <= 1000 or not request.memory) else share
        wanted = any(group >> LAYOUT.kinds.index(spec.kind) & 1 for group in request.groups)
        restores = request.restore_kind < 0 or (spec.full and LAYOUT.kinds[request.restore_kind] == spec.kind)
        here = request.pinned_node in (-1, at) and restores and not request.refused >> at & 1
        if not (wanted and here and 0 < mask < 1 << spec.devices and milli == share <= 1000):
            return False
    count = sum(part.mask.bit_count() for part in allocation)
    together = request.placement != "one-node" or len(allocation) < 2
    right_count = (request.floor or request.count) <= count <= (request.demand or request.count)
    rest = all(part.resources == due(request, allocation, at) for at, part in enumerate(allocation))
    return right_count and together and rest and not split_rank(request.ranks, allocation)


def due(request: Request, allocation: Allocation, at: int) -> PartResources | None:
    """What a part has to have besides devices, by the seats of the ranks."""
    part = allocation[at]
    here = sum(place.node == part.node for place in rank_layout(allocation, request.ranks or 1))
    apart = request.memory if request.gpu_milli and part.milli < 1000 else -1
    found = PartResources(here * request.cpus_milli, here * request.host_memory, apart)
    return None if found == (0, 0, -1) else found


def split_rank(ranks: int, allocation: Allocation) -> bool:
    """Whether a rank of several, with as many devices as the others, has some on one node and some on another."""
    seats = [part.node for part in allocation for _ in range(part.mask.bit_count())]
    unit = len(seats) // ranks if ranks > 1 and len(seats) % ranks == 0 else 1
    sizes = [LAYOUT.kind_biggest[LAYOUT.node_kind[node]] for node in seats]
    return unit <= min(sizes) and any(len(set(seats[at : at + unit])) > 1 for at in range(0, len(seats), unit))


@given(wanted=requests, allocation=st.lists(parts, max_size=3).map(tuple))
@settings(max_examples=examples(400), deadline=None)
def test_it_rejects_what_the_rules_forbid_and_nothing_else(wanted: Request, allocation: Allocation) -> None:
    said = wanted.reject(allocation, LAYOUT)
    assert (said is None) == allowed(wanted, allocation), said
    assert said is None or not misused(said)


@given(wanted=requests, used=st.tuples(*(st.integers(0, size) for size in LAYOUT.node_size)))
@settings(max_examples=examples(300), deadline=None)
def test_packers_find_nothing_that_is_rejected_and_all_that_is_not(wanted, used) -> None:
    board = Board(LAYOUT)
    board.acquire(tuple(Part(at, (1 << count) - 1) for at, count in enumerate(used) if count))
    count = 1 if wanted.shares else wanted.count  # a share is of one device
    wanted = replace(wanted, count=count, unit=unit_of(count, wanted.ranks), floor=0, demand=0)
    found = place(board, wanted)
    assert found is None or (wanted.reject(found, LAYOUT) is None and board.fits(found))
    if found is None:
        for at, free in enumerate(board.free):
            if free.bit_count() >= wanted.count:
                share = wanted.share_milli(at, LAYOUT) if wanted.shares else 1000
                here = wanted.with_resources((Part(at, lowest(free, wanted.count), share),), LAYOUT)
                assert wanted.reject(here, LAYOUT) is not None


@given(wanted=requests, within=st.sampled_from([ALL_NODES, 0b0111, 0b1010]))
@settings(max_examples=examples(200), deadline=None)
def test_the_most_it_could_have_is_added_up_over_the_nodes_it_may_be_on(wanted, within) -> None:
    mine = [at for at in range(4) if within >> at & 1 and wanted.reject_node(at, LAYOUT) is None]
    sizes = [LAYOUT.node_size[at] for at in mine]
    assert wanted.most_devices(LAYOUT, within=within) == (max(sizes, default=0) if wanted.one_node else sum(sizes))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"devices": 8}, None),
        ({"devices": 12}, None),
        ({"devices": 13}, Code.TOO_FEW_DEVICES(13, 12)),
        ({"devices": 13, "min_devices": 1}, None),
        ({"devices": 5, "placement": "one-node"}, Code.TOO_FEW_DEVICES(5, 4)),
        ({"devices": 5, "ranks": 1}, Code.TOO_FEW_DEVICES(5, 4)),
        ({"devices": 5, "ranks": 1, "min_devices": 1}, None),
        ({"devices": 5, "device_types": ("small",)}, Code.TOO_FEW_DEVICES(5, 4)),
        ({"device_types": ("huge",)}, Code.WRONG_KIND("big, small")),
        ({"gpu_memory": 81 * GIB}, Code.DEVICE_TOO_SMALL(81 * GIB, 80 * GIB)),
        ({"gpu_memory": 17 * GIB, "device_types": ("small",)}, Code.DEVICE_TOO_SMALL(17 * GIB, 16 * GIB)),
        ({"gpu_memory": 17 * GIB}, None),
    ],
)
def test_a_job_that_no_state_of_the_pool_could_hold(spec: dict, said: Cause | None) -> None:
    found = JobSpec(command=("x",), **{"ranks": spec.get("devices", 1)} | spec)
    assert request_of(LAYOUT, found, floor=found.floor).reject_pool(LAYOUT) == said


def test_a_job_that_can_only_be_frozen_is_bound_to_its_node() -> None:
    builder = ViewBuilder(pool(2, 4))
    spec = JobSpec(command=("x",), ranks=4, devices=4, min_devices=2)
    running = builder.run(spec, 2, level=int(Level.FREEZE))
    frozen = builder.queue(spec, state=int(State.SUSPENDED), level=int(Level.FREEZE), pinned_node=1)
    waiting = builder.queue(spec, level=int(Level.FREEZE))
    view = builder.view()

    def pinned(job: int) -> int:
        row = view.jobs.row[job]
        return row_request(view.layout, spec, view.jobs, row, view.allocations.get(job, ())).pinned_node

    assert [pinned(job) for job in (running, frozen, waiting)] == [0, 1, -1]


def test_a_device_that_is_too_small_is_told_in_units() -> None:
    why = Code.DEVICE_TOO_SMALL(29 * 2**30, 24 * 2**30)
    assert render(why) == "needs 29.0GiB of one device's memory; the largest has 24.0GiB"
