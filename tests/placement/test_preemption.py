"""Victims: the room found is real, no victim is needless, and among equals the cheapest go."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.model.board import Board, Layout
from tidewright.model.job import Level, State
from tidewright.model.node import Part, device_count
from tidewright.placement.find import place
from tidewright.placement.preemption import PreemptionCandidate, PreemptionIndex
from tidewright.plan.request import Request
from tidewright.testing.views import GIB, pool, views

from ..sizes import examples


def holders_of(view, spare=True):
    jobs = view.jobs
    found = []
    for job, allocation in view.allocations.items():
        row = jobs.row[job]
        if jobs.state[row] == State.RUNNING and jobs.level[row] > Level.NONE:
            room = int(jobs.held[row] - jobs.floor[row]) if spare else 0
            found.append(PreemptionCandidate(row, allocation, float(jobs.held[row] * (1 + job % 7)), room, 0.5))
    return found


@given(
    view=views(),
    count=st.integers(1, 30),
    mode=st.sampled_from(["consolidate", "one-node", "any"]),
    share=st.booleans(),
)
@settings(max_examples=examples(150), deadline=None)
def test_room_is_real_and_nobody_goes_needlessly(view, count, mode, share):
    request = Request(1, (2, 1), memory=20 * GIB) if share else Request(count, (2, 1), placement=mode)
    holders = {holder.row: holder for holder in holders_of(view)}
    board = view.board()
    before = list(board.free), dict(board.partial)
    if place(board, request) is not None:
        return
    room = PreemptionIndex(board, holders.values()).find_preemption(request)
    if room is None:
        assert (list(board.free), dict(board.partial)) == before
        return
    check = view.board()
    for row in room.suspended:
        check.release(holders[row].allocation)
    for row, kept in room.shrunk:
        held, least = device_count(holders[row].allocation), device_count(holders[row].allocation) - holders[row].spare
        assert least <= device_count(kept) < held
        check.release(holders[row].allocation)
        check.acquire(kept)
    assert check.fits(room.allocation)
    check.acquire(room.allocation)
    assert check.free == board.free and check.partial == board.partial
    for spared in room.suspended:
        assert (
            any(part.node in {p.node for p in room.allocation} for part in holders[spared].allocation) or mode == "any"
        )


@given(view=views(mixed=False, elastic=False), count=st.integers(1, 8))
@settings(max_examples=examples(100), deadline=None)
def test_a_job_of_one_node_finds_room_whenever_some_node_could_be_cleared(view, count):
    board = view.board()
    holders = holders_of(view, spare=False)
    possible = False
    for node in range(len(board.free)):
        gain = sum(p.mask.bit_count() for h in holders for p in h.allocation if p.node == node)
        possible |= board.free[node].bit_count() + gain >= count
    assert (PreemptionIndex(board, holders).find_preemption(Request(count, (1,))) is not None) == possible


def crowded(*costs):
    board = Board(Layout.of(pool(len(costs), 4)))
    holders = [PreemptionCandidate(row, (Part(row, 15),), float(cost)) for row, cost in enumerate(costs)]
    for holder in holders:
        board.acquire(holder.allocation)
    return board, holders


def test_the_cheapest_victim_goes_and_only_it():
    board, holders = crowded(5, 3, 9)
    assert PreemptionIndex(board, holders).find_preemption(Request(2, (1,))).suspended == (1,)


def test_a_gang_clears_the_cheapest_nodes():
    board, holders = crowded(5, 3, 9, 1)
    room = PreemptionIndex(board, holders).find_preemption(Request(8, (1,)))
    assert sorted(room.suspended) == [1, 3]


def test_shrinking_comes_before_suspending_where_it_is_cheaper():
    board, _ = crowded(5)
    room = PreemptionIndex(board, [PreemptionCandidate(0, (Part(0, 15),), 5.0, spare=3, squeeze=1.0)]).find_preemption(
        Request(2, (1,))
    )
    assert room.suspended == () and room.shrunk == ((0, (Part(0, 0b1100),)),)


def test_a_retired_holder_stays():
    board, holders = crowded(5, 3)
    victims = PreemptionIndex(board, holders)
    victims.remove(1)
    assert victims.find_preemption(Request(2, (1,))).suspended == (0,)
    assert victims.find_preemption(Request(4, (1,))) is None


def test_room_in_a_shared_device_costs_the_cheapest_sharers():
    board = Board(Layout.of(pool(1, 1, memory=80 * GIB)))
    holders = [PreemptionCandidate(row, (Part(0, 1, 250),), cost) for row, cost in enumerate((4.0, 1.0, 2.0, 8.0))]
    for holder in holders:
        board.acquire(holder.allocation)
    assert sorted(PreemptionIndex(board, holders).find_preemption(Request(1, (1,), memory=40 * GIB)).suspended) == [
        1,
        2,
    ]


def test_a_gang_larger_than_a_node_of_its_kind_makes_room_on_several():
    nodes = (*pool(1, 8, "big"), *pool(2, 4, "small"))
    board = Board(Layout.of(nodes))
    holders = [
        PreemptionCandidate(0, (Part(0, 255),), 1.0),
        PreemptionCandidate(1, (Part(1, 15),), 1.0),
        PreemptionCandidate(2, (Part(2, 15),), 1.0),
    ]
    for holder in holders:
        board.acquire(holder.allocation)
    room = PreemptionIndex(board, holders).find_preemption(Request(8, (2,)))
    assert room is not None and room.allocation == (Part(1, 15), Part(2, 15))
    assert sorted(room.suspended) == [1, 2], "not the node of another kind that has eight devices"
