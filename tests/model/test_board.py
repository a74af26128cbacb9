"""The board against a naive count of the same devices, and the table's copy on write."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import Bug
from tidewright.model.board import Board, Layout, extend
from tidewright.model.job import JobSpec, problems
from tidewright.model.node import NodeSpec, Part
from tidewright.model.table import COLUMNS, JobTable
from tidewright.model.view import View

from ..sizes import examples

SIZES = (2, 8, 4, 8)


def layout(count: int = 4) -> Layout:
    kinds = ("a", "b", "a", "b")
    return Layout.of(
        tuple(
            NodeSpec(
                name=f"n{i}", kind=kinds[i], devices=SIZES[i], device_memory=80, domain=(f"block{i // 2}", f"rack{i}")
            )
            for i in range(count)
        )
    )


class Naive:
    """Milli-devices in use per device, and which nodes are up."""

    def __init__(self) -> None:
        self.used = {(node, device): 0 for node, size in enumerate(SIZES) for device in range(size)}
        self.up = dict.fromkeys(range(len(SIZES)), True)

    def devices(self, part: Part) -> list[tuple[int, int]]:
        return [(part.node, device) for device in range(SIZES[part.node]) if part.mask >> device & 1]

    def fits(self, part: Part) -> bool:
        return self.up[part.node] and all(self.used[key] + part.milli <= 1000 for key in self.devices(part))

    def add(self, part: Part, sign: int) -> None:
        for key in self.devices(part):
            self.used[key] += sign * part.milli

    def free(self, kinds: int) -> int:
        kind_of = (0, 1, 0, 1)
        return sum(
            not used and self.up[node] and bool(kinds >> kind_of[node] & 1) for (node, _), used in self.used.items()
        )


parts = st.integers(0, 3).flatmap(
    lambda node: st.one_of(
        st.integers(1, (1 << SIZES[node]) - 1).map(lambda mask: Part(node, mask)),
        st.tuples(st.integers(0, SIZES[node] - 1), st.sampled_from([100, 250, 600, 999])).map(
            lambda t: Part(node, 1 << t[0], t[1])
        ),
    )
)
deeds = st.lists(st.one_of(parts, st.tuples(st.just("up"), st.integers(0, 3), st.booleans())), max_size=40)


@settings(max_examples=examples(200), deadline=None)
@given(deeds, st.data())
def test_the_board_agrees_with_a_naive_count(todo, data) -> None:
    board, naive, held = Board(layout()), Naive(), []
    for deed in todo:
        if isinstance(deed, tuple) and not isinstance(deed, Part):
            board.set_up(deed[1], deed[2])
            naive.up[deed[1]] = deed[2]
        else:
            assert board.fits((deed,)) == naive.fits(deed)
            if naive.fits(deed):
                board.acquire((deed,))
                naive.add(deed, 1)
                held.append(deed)
            elif held:
                gone = held.pop(data.draw(st.integers(0, len(held) - 1)))
                board.release((gone,))
                naive.add(gone, -1)
        for kinds in (1, 2, 3):
            assert board.free_in(kinds) == naive.free(kinds)
        assert board.held_milli() == sum(naive.used.values())
        for at_least in (1, 3):
            wanted = sum(1 << n for n in range(4) if naive.up[n] and board.free[n].bit_count() >= at_least)
            assert board.nodes_with(3, at_least) == wanted


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(parts, max_size=12), st.lists(parts, max_size=12))
def test_undo_restores_everything(before, after) -> None:
    board = Board(layout())
    held = [part for part in before if board.fits((part,)) and board.acquire((part,)) is None]
    twin, mark = board.copy(), board.mark()
    for part in held[::2]:
        board.release((part,))
    for part in after:
        if board.fits((part,)):
            board.acquire((part,))
    board.undo(mark)
    assert (board.free, board.partial, board.buckets, board.free_total) == (
        twin.free,
        twin.partial,
        twin.buckets,
        twin.free_total,
    )


def test_a_device_is_never_taken_or_freed_twice() -> None:
    board = Board(layout())
    board.acquire((Part(0, 1),))
    for deed in (
        lambda: board.acquire((Part(0, 3),)),
        lambda: board.release((Part(0, 2),)),
        lambda: board.acquire((Part(0, 1, 10),)),
    ):
        with pytest.raises(Bug):
            deed()


def test_a_grown_layout_keeps_occupancy_and_outages() -> None:
    board = Board(layout(2))
    board.acquire((Part(0, 1), Part(1, 2, 300)))
    board.set_up(1, False)
    grown = extend(board, layout(4))
    assert grown.free[:2] == board.free
    assert (grown.free_total, grown.held_milli()) == ([1 + 4, 8], 1300)


def test_domains_and_shares_and_kinds() -> None:
    pool = layout()
    assert pool.domains[0] == {("block0",): 0b0011, ("block1",): 0b1100}
    assert pool.kind_mask(()) == 3
    assert pool.kind_mask(("b", "none")) == 2
    assert [pool.share_milli(0, memory) for memory in (0, 1, 40, 80, 81)] == [1000, 13, 500, 1000, 1013]


def test_a_living_view_forces_a_copy_and_a_dead_one_does_not() -> None:
    table = JobTable(4)
    table.add(1, {"demand": 3})
    board = Board(layout())
    view = View(0, 0, table, board, {}, {}, {})
    assert table.own()
    table.demand[0] = 9
    assert view.jobs.demand.tolist() == [3]
    del view
    dead = View(0, 0, table, board, {}, {}, {})
    del dead
    assert not table.own()


@given(st.lists(st.one_of(st.integers(0, 30), st.just(-1)), max_size=60))
def test_rows_stay_dense_and_findable(todo) -> None:
    table, naive = JobTable(2), {}
    for number, deed in enumerate(todo):
        if deed < 0 or not naive:
            table.add(number, {"demand": number, "weight": 0.5})
            naive[number] = number
        else:
            job = sorted(naive)[deed % len(naive)]
            table.remove(job)
            del naive[job]
        assert table.n == len(naive)
        assert {job: table.record(job)["demand"] for job in naive} == naive
        assert sorted(int(job) for job in table.id[: table.n]) == sorted(naive)
    assert set(table.record(next(iter(naive)))) == set(COLUMNS) if naive else True


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"command": ()}, "command"),
        ({"devices": 0}, "devices"),
        ({"devices": 2, "min_devices": 3, "ranks": 2}, "min_devices"),
        ({"devices": 3, "ranks": 2}, "do not divide"),
        ({"name": "17"}, "job id"),
        ({"weight": float("nan")}, "weight"),
        ({"retries": -1}, "retries"),
        ({"gpu_memory": 5, "devices": 2, "ranks": 2}, "share is of one device"),
        ({"env": {"A=B": "x"}}, "env"),
        ({"deadline_us": -1}, "deadline"),
        ({"expected_us": 2**62}, "expected: not between"),
    ],
)
def test_every_mistake_of_a_spec_is_named(fields, said: str) -> None:
    found = problems(JobSpec(**{"command": ("true",), **fields}))
    assert any(said in problem for problem in found), found
    assert not problems(JobSpec(command=("true",)))
