"""What parts take besides devices, on the board, against a naive sum: never beyond what a node has, and undone to the letter."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import Bug
from tidewright.model.board import Board, Layout, extend, relaid
from tidewright.model.node import (
    Allocation,
    NodeSpec,
    Part,
    PartResources,
    rank_layout,
    ranks_between,
    without_memory,
)

from ..sizes import examples

NODES = (
    NodeSpec(name="a", devices=4, device_memory=100, cpus=4, memory=100),
    NodeSpec(name="b", devices=2, device_memory=80, cpus=2),
    NodeSpec(name="c", devices=3, memory=50),
)
LAYOUT = Layout.of(NODES)

resources = st.none() | st.builds(
    PartResources, st.sampled_from([0, 300, 1000, 2500]), st.sampled_from([0, 20, 45]), st.sampled_from([-1, 0, 30, 70])
)
whole = st.integers(0, 2).flatmap(
    lambda node: st.builds(
        Part, st.just(node), st.integers(1, (1 << NODES[node].devices) - 1), st.just(1000), resources
    )
)
shares = st.integers(0, 2).flatmap(
    lambda node: st.builds(
        Part, st.just(node), st.sampled_from([1, 2]), st.sampled_from([100, 250, 400, 600]), resources
    )
)
deeds = st.lists(whole | shares | st.sampled_from(["release", "mark", "undo", "copy"]), max_size=40)


def naive(held: list[Part], part: Part) -> bool:
    """Whether the part fits beside those held, from the words alone."""
    spec = NODES[part.node]
    here = [other for other in (*held, part) if other.node == part.node]
    host = [other.resources for other in here if other.resources is not None]
    if part.resources is not None:
        cpus, memory = sum(one.cpus_milli for one in host), sum(one.memory for one in host)
        if part.resources.cpus_milli and spec.cpus and cpus > 1000 * spec.cpus:
            return False
        if part.resources.memory and spec.memory and memory > spec.memory:
            return False
    for device in range(spec.devices):
        on = [other for other in here if other.mask >> device & 1]
        if not part.mask >> device & 1:
            continue
        if sum(other.milli for other in on) > 1000:
            return False
        if spec.device_memory and part.milli < 1000 and sum(map(device_memory, on)) > spec.device_memory * 1000:
            return False
    return True


def device_memory(part: Part) -> int:
    """Thousandths of bytes of its device that a share takes."""
    apart = -1 if part.resources is None else part.resources.device_memory
    return part.milli * NODES[part.node].device_memory if apart < 0 else apart * 1000


def state(board: Board) -> Any:
    return board.free, board.untouched, board.partial, board.host, board.measured, board.buckets, board.free_total


@given(deeds, st.data())
@settings(max_examples=examples(300), deadline=None)
def test_the_board_agrees_with_a_naive_sum_and_undoes_to_the_letter(todo: list[Any], data: st.DataObject) -> None:
    board, held = Board(LAYOUT), []
    marks: list[tuple[int, Any, list[Part]]] = []
    for deed in todo:
        if deed == "release" and held:
            part = held.pop(data.draw(st.integers(0, len(held) - 1)))
            board.release((part,))
        elif deed == "mark":
            marks.append((board.mark(), deepcopy(state(board)), list(held)))
        elif deed == "undo" and marks:
            mark, before, held = marks.pop()
            board.undo(mark)
            assert state(board) == before
        elif deed == "copy":
            board, marks = board.copy(), []
        elif isinstance(deed, Part):
            fits = board.fits((deed,))
            assert fits == naive(held, deed)
            if fits:
                board.acquire((deed,))
                held.append(deed)
        for node, (cpus, memory) in board.host.items():
            assert not NODES[node].cpus or cpus <= 1000 * NODES[node].cpus
            assert not NODES[node].memory or memory <= NODES[node].memory
    for part in held:
        board.release((part,))
    assert state(board) == state(Board(LAYOUT))


@given(st.lists(whole | shares, max_size=12))
@settings(max_examples=examples(100), deadline=None)
def test_a_layout_that_grows_or_is_described_anew_keeps_what_is_in_use(todo: list[Part]) -> None:
    board, held = Board(LAYOUT), []
    for part in todo:
        if board.fits((part,)):
            board.acquire((part,))
            held.append((part,))
    larger = Layout.of((*NODES, NodeSpec(name="d")))
    assert (grown := extend(board, larger)).host == board.host and grown.measured == board.measured
    smaller = Layout.of(tuple(msgspec.structs.replace(node, cpus=1, memory=1) for node in NODES))
    fresh = relaid(board, smaller, held)
    assert (fresh.host, fresh.measured) == (board.host, board.measured)
    for node, (cpus, _) in fresh.host.items():
        assert fresh.ranks_fit(node, 1000, 0, 9) == (1 if not cpus else 0), (
            "nothing more fits a node with too much on it"
        )


def test_more_than_is_in_use_cannot_be_freed() -> None:
    board = Board(LAYOUT)
    board.acquire((Part(0, 1, 1000, PartResources(500)),))
    with pytest.raises(Bug):
        board.release((Part(0, 1, 1000, PartResources(501)),))


def test_what_a_node_does_not_know_of_its_host_is_without_limit() -> None:
    board = Board(LAYOUT)
    assert board.fits((Part(2, 1, 1000, PartResources(10**9)),)) and board.fits(
        (Part(1, 1, 1000, PartResources(0, 10**15)),)
    )
    assert board.ranks_fit(2, 10**9, 0, 65_536) == 65_536


def test_parts_of_earlier_versions_decode_and_take_devices_alone() -> None:
    assert msgspec.json.decode(b"[[0,3,1000],[1,1,250]]", type=Allocation) == (Part(0, 3), Part(1, 1, 250))
    part = Part(0, 1, 300, PartResources(500, 2**30, 2**33))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode((part,)), type=Allocation) == (part,)


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4), st.integers(1, 20))
def test_ranks_are_counted_as_they_are_dealt(sizes: list[int], ranks: int) -> None:
    allocation = tuple(Part(node, (1 << size) - 1) for node, size in enumerate(sizes))
    places, first = rank_layout(allocation, ranks), 0
    for node, size in enumerate(sizes):
        dealt = sum(place.node == node for place in places)
        assert ranks_between(first, first + size, sum(sizes), ranks) == dealt
        first += size


def test_what_a_frozen_job_gives_up() -> None:
    assert without_memory((Part(0, 1, 1000, PartResources(500, 7)),)) == (Part(0, 1, 1000, PartResources(500, 0)),)
    assert without_memory((Part(0, 1),)) == (Part(0, 1),)
