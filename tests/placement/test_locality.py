"""Nearness to an image settles ties and no more."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.model.board import Board, Layout
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.model.node import Allocation, NodeSpec, Part, device_count
from tidewright.placement.find import place
from tidewright.placement.locality import in_rank_order
from tidewright.placement.preemption import PreemptionCandidate, PreemptionIndex
from tidewright.plan.moves import Resume, Start
from tidewright.plan.request import Request
from tidewright.policy.registry import make
from tidewright.testing.views import GIB, NOW, ViewBuilder, pool, views

from ..sizes import examples

ANY = (1,)


def board(*sizes: int, rack: int = 2, **node) -> Board:
    nodes = (
        NodeSpec(name=f"n{i}", kind="gpu", devices=size, domain=(f"r{i // rack}",), **node)
        for i, size in enumerate(sizes)
    )
    return Board(Layout.of(tuple(nodes)))


def used(sizes: tuple[int, ...], *taken: int, rack: int = 2) -> Board:
    made = board(*sizes, rack=rack)
    made.acquire(tuple(Part(node, (1 << count) - 1) for node, count in enumerate(taken) if count))
    return made


def nodes(found: Allocation | None) -> list[int]:
    assert found is not None
    return [part.node for part in found]


@pytest.mark.parametrize(
    ("taken", "count", "home", "expected"),
    [
        ((0, 0, 0), 1, 2, 2),  # all alike
        ((4, 0, 4), 2, 2, 2),
        ((4, 0, 4), 2, 1, 0),  # an untouched node is for large jobs
        ((7, 4, 0), 1, 1, 0),  # room for a job of four is not broken into when a single device will do
        ((7, 5, 0), 1, 1, 1),  # of three free devices one is odd
        ((7, 8, 0), 1, 1, 0),  # the pinned node is full: the job does not wait for it
        ((4, 4, 0), 8, 0, 2),
    ],
)
def test_a_job_comes_home_if_that_breaks_no_larger_hole(taken, count, home, expected):
    assert nodes(place(used((8, 8, 8), *taken, rack=3), Request(count, ANY, locality=1 << home))) == [expected]


def test_a_node_that_takes_no_work_is_no_home():
    empty = board(8, 8)
    empty.set_up(1, False)
    assert nodes(place(empty, Request(1, ANY, locality=2))) == [0]


def test_a_gang_comes_home_within_the_corner_it_would_have_anyway():
    assert nodes(place(board(*[8] * 8, rack=4), Request(16, ANY, locality=0b10100000))) == [5, 7]
    assert nodes(place(board(*[8] * 8, rack=4), Request(20, ANY, locality=0b11100000))) == [5, 6, 7]
    tight = used((8,) * 6, 0, 0, 0, 0, 8, 0)  # racks of two: home would be spread over two racks
    assert nodes(place(tight, Request(16, ANY, locality=0b100100))) == [2, 3]
    spare = used((8,) * 6, 0, 0, 0, 8, 0, 0, rack=3)  # a rack with nothing to spare leaves the other whole
    assert nodes(place(spare, Request(16, ANY, locality=0b100100))) == [4, 5]


def test_a_scattered_job_comes_home_among_equal_fragments():
    scattered = used((8,) * 6, 6, 6, 6, 6, 6, 6, rack=3)
    assert nodes(place(scattered, Request(4, ANY, placement="any", locality=0b101000))) == [3, 5]


def test_a_share_comes_home_among_equally_full_devices():
    shared = board(2, 2, 2, device_memory=80 * GIB)
    assert nodes(place(shared, Request(1, ANY, memory=20 * GIB, locality=0b100))) == [2]
    shared.acquire((Part(0, 1, 250), Part(1, 1, 250)))
    assert nodes(place(shared, Request(1, ANY, memory=20 * GIB, locality=0b010))) == [1]
    assert nodes(place(shared, Request(1, ANY, memory=20 * GIB, locality=0b100))) == [0], (
        "a fresh device is left for others"
    )


def test_a_share_is_not_sent_home_to_devices_too_small_for_it():
    sizes = {"a": 80 * GIB, "b": 8 * GIB}
    small = tuple(NodeSpec(name=name, kind="gpu", devices=2, device_memory=size) for name, size in sizes.items())
    assert nodes(place(Board(Layout.of(small)), Request(1, ANY, memory=20 * GIB, locality=0b10))) == [0]


@pytest.mark.parametrize(("costs", "expected"), [((5.0, 5.0, 5.0), [2]), ((5.0, 5.0, 6.0), [0])])
def test_of_equally_dear_victims_those_at_home_go_and_never_dearer_ones(costs, expected):
    full = used((4, 4, 4), 4, 4, 4)
    holders = [PreemptionCandidate(node, (Part(node, 15),), cost) for node, cost in enumerate(costs)]
    room = PreemptionIndex(full, holders).find_preemption(Request(3, ANY, locality=0b100))
    assert room is not None and nodes(room.allocation) == expected


def test_a_gang_takes_the_nodes_of_its_image_from_equally_dear_victims():
    full = used((4, 4, 4, 4), 4, 4, 4, 4, rack=4)
    room = PreemptionIndex(
        full, [PreemptionCandidate(node, (Part(node, 15),), 1.0) for node in range(4)]
    ).find_preemption(Request(8, ANY, locality=0b1010))
    assert room is not None and nodes(room.allocation) == [1, 3]


@given(
    view=views(),
    count=st.integers(1, 20),
    locality=st.integers(0, 4095),
    mode=st.sampled_from(["consolidate", "one-node", "any"]),
)
@settings(max_examples=examples(150), deadline=None)
def test_nearness_never_decides_whether_nor_over_how_many_nodes(view, count, locality, mode):
    scratch = view.board()
    plain, home = (place(scratch, Request(count, (2, 1), placement=mode, locality=nodes)) for nodes in (0, locality))
    assert (plain is None) == (home is None)
    if plain is not None and home is not None:
        assert scratch.fits(home) and device_count(home) == count and len(home) == len(plain)


@pytest.mark.parametrize(
    ("home", "expected"),
    [((3, 1), [3, 1]), ((1, 3), [1, 3]), ((5, 3), [1, 3]), ((3, 3, 3), [3, 1]), ((7, 8, 9, 1), [1, 3]), ((), [1, 3])],
)
def test_each_node_has_the_ranks_whose_images_it_holds(home, expected):
    assert nodes(in_rank_order((Part(1, 3), Part(3, 3)), home)) == expected


def waiting(state: str, home: tuple[int, ...], busy: int, devices: int = 1):
    builder = ViewBuilder(pool(3, 4))
    if busy >= 0:
        builder.run(JobSpec(command=("x",), devices=4, ranks=4), allocation=(Part(busy, 15),))
    columns = {"state": 5} if state == "suspended" else {}
    spec = JobSpec(command=("x",), devices=devices, ranks=devices)
    builder.image_nodes[builder.queue(spec, submit=NOW - 1, **columns)] = home
    return make("sla").plan(builder.view()).moves[-1]


@pytest.mark.parametrize(("state", "kind"), [("suspended", Resume), ("queued", Start)])
def test_a_plan_brings_a_job_home_and_says_so(state, kind):
    move = waiting(state, (2,), busy=-1)
    assert isinstance(move, kind) and nodes(move.allocation) == [2]
    assert move.why.args[-1] == Code.AT_ITS_IMAGE(("gpu-2",))


def test_a_plan_that_cannot_says_where_the_image_comes_from():
    move = waiting("suspended", (2,), busy=2)
    assert nodes(move.allocation) == [0] and move.why.args[-1] == Code.IMAGE_FETCHED(("gpu-2",))


def test_a_gang_is_planned_rank_by_rank():
    move = waiting("suspended", (2, 0), busy=-1, devices=8)
    assert nodes(move.allocation) == [2, 0]
