"""The cut's algorithm, simulated: random programs over groups and messages, a cut at a random moment, every order of
events a seed can bring about. It ends, nothing is on its way afterwards, and the program then runs to its end."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.checkpoint.simulated import World, closure, make_programs, run_to_cut, settle
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cut import machine as cm
from tidewright.checkpoint.cut.barrier import UNHURRIED_STEP_US, Cutter, cut, release
from tidewright.checkpoint.cut.pages import (
    ANY,
    DRAIN,
    DRAINED,
    DROP,
    GROUP,
    HELD,
    PARKED,
    RECV,
    RUNNING,
    SEND,
    STOP,
    Cuts,
    PageEntry,
    PageState,
)

from ..sizes import examples


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 5), paired=st.booleans())
def test_a_cut_ends_and_is_consistent(seed: int, size: int, paired: bool) -> None:
    rng = random.Random(seed)
    world = World(make_programs(rng, size, rng.randint(1, 60)), paired, rng)
    for _ in range(rng.randint(0, 200)):
        movable = world.moves()
        if movable:
            world.step(rng.choice(movable))
    for _ in range(3):
        world.hold = True
        run_to_cut(world, 20_000)
        settle(world)
        check_consistent(world, paired)
        world.hold, world.cuts = False, {}
        for _ in range(rng.randint(0, 30)):
            movable = world.moves()
            if movable:
                world.step(rng.choice(movable))
    while world.moves():
        world.step(rng.choice(world.moves()))
    assert all(rank.at == len(rank.program) and not rank.waiting for rank in world.ranks), "the program deadlocks"


def check_consistent(world: World, paired: bool) -> None:
    for rank in world.ranks:
        for name, count in rank.issued.items():
            if name[0] == "group":
                counts = [world.ranks[member].issued.get(name, 0) for member in name[1]]  # type: ignore[union-attr]
                assert counts == [count] * len(counts), "members of a group were cut at different operations"
            elif paired:
                assert world.complete(rank, name, count), "a paired message was cut in two"


@settings(max_examples=examples(300), deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 5), paired=st.booleans())
def test_the_cut_is_the_least_one(seed: int, size: int, paired: bool) -> None:
    """It takes in the past of what was issued, and nothing else: that set is known, whatever the order of events."""
    rng = random.Random(seed)
    world = World(make_programs(rng, size, rng.randint(1, 60)), paired, rng)
    for _ in range(rng.randint(0, 100)):
        movable = world.moves()
        if movable:
            world.step(rng.choice(movable))
    for rank in world.ranks:
        if rank.announced:  # it may be taken back, or be in the cut: the agent sees one or the other
            world.step(rank)
    least = closure(world)
    world.hold = True
    run_to_cut(world, 20_000, whole=True)
    settle(world)
    assert [rank.at for rank in world.ranks] == least


def page(rank: int, *entries: PageEntry, size: int = 2, state: int = HELD, **more: object) -> PageState:
    return PageState(rank, "p", 100 + rank, 7, rank, size, state, STOP, entries=entries, **more)  # type: ignore[arg-type]


def look(*pages: PageState):
    return Cutter().look({(0, found.job_rank, "p"): found for found in pages})


def test_a_rank_that_has_not_joined_is_waited_for_and_named() -> None:
    verdict = look(page(0, PageEntry(0, 5, GROUP, 2, 1, waiting=1)))
    assert not verdict.ready and "rank 1 of a process group of 2 has not joined" in verdict.why[0]


def test_a_rank_that_left_for_another_world_or_died_is_not_waited_for() -> None:
    mine = page(0, PageEntry(0, 5, GROUP, 2, 1))
    assert look(mine, PageState(1, "q", 9, 8, 0, 1, HELD, STOP, left=(7, 1))).ready
    assert look(mine, page(1, PageEntry(0, 5, GROUP, 2, 0), dead=True)).ready
    assert look(mine, page(1, PageEntry(0, 5, GROUP, 2, 0), exiting=True)).ready
    assert not look(mine, page(1, PageEntry(0, 5, GROUP, 2, 0))).ready


def test_a_rank_that_is_still_coming_back_is_not_read() -> None:
    verdict = look(page(0, PageEntry(0, 5, GROUP, 2, 3)), page(1, state=PARKED))
    assert not verdict.ready and not verdict.orders


def test_a_message_with_another_tag_lets_its_sender_go_on_after_a_while() -> None:
    """Counts say that it was sent. It was not: another one was. So the receiver, who is needed, gets nowhere."""
    cutter = Cutter()
    receiver = page(
        0, PageEntry(0, 5, GROUP, 2, 0), PageEntry(1, 6, RECV, 1, 1, waiting=1)
    )  # waits before a collective that rank 1 has issued
    sender = page(1, PageEntry(0, 5, GROUP, 2, 1, waiting=0), PageEntry(1, 6, SEND, 0, 1, want=2))
    pages = {(0, 0, "p"): receiver, (0, 1, "p"): sender}
    assert cutter.look(pages).orders[0, 1, "p"][1] == 1
    for _ in range(100):
        verdict = cutter.look(pages)
    assert verdict.orders[0, 1, "p"][1] == 2


@pytest.mark.parametrize("kind", [ANY, "store"])
def test_who_waits_for_anybody_lets_all_go_on(kind: object) -> None:
    cutter = Cutter()
    waits = (PageEntry(1, 6, ANY, 3, 1, waiting=1),) if kind == ANY else ()
    pages = {
        (0, 0, "p"): page(0, PageEntry(0, 5, GROUP, 2, 0, members=(0, 1)), *waits, size=3, store_wait=kind == "store"),
        (0, 1, "p"): page(1, PageEntry(0, 5, GROUP, 2, 1, members=(0, 1)), size=3),
        (0, 2, "p"): page(2, PageEntry(0, 9, SEND, 0, 0, want=1), size=3),
    }
    for _ in range(100):
        verdict = cutter.look(pages)
    assert verdict.orders[0, 2, "p"][0] == 1


class Liar:
    """Pages of a node that misbehaves on request: a rank that never comes, a node that cannot be reached."""

    def __init__(self, stuck: bool = False, broken: bool = False, phase_stuck: int = 0) -> None:
        self.stuck, self.broken, self.phase_stuck = stuck, broken, phase_stuck
        self.phase, self.held, self.released = 0, 0, 0

    def hold(self) -> None:
        if self.broken:
            raise WorldError("node unreachable")
        self.held += 1
        self.phase = STOP

    def read(self) -> list[PageState]:
        state = {STOP: HELD, DRAIN: DRAINED, DROP: PARKED}.get(self.phase, RUNNING)
        if self.phase == self.phase_stuck:
            state = HELD
        issued = 0 if self.stuck else 1
        return [
            PageState(0, "p", 1, 7, 0, 2, state, self.phase, entries=(PageEntry(0, 5, GROUP, 2, 1),)),
            PageState(1, "p", 2, 7, 1, 2, state, self.phase, entries=(PageEntry(0, 5, GROUP, 2, issued),)),
        ]

    def publish(self, cuts: Cuts) -> None:
        self.phase = cuts.phase

    def release(self) -> None:
        self.released += 1
        self.phase = 0


def test_ranks_that_train_go_on_to_where_a_step_begins() -> None:
    """The one that was stopped at an operation may issue it; one that computes is waited for; others are let be."""
    cutter, stopped = Cutter(), PageEntry(0, 5, GROUP, 2, 3, want=4)
    at_a_beginning = page(1, PageEntry(0, 5, GROUP, 2, 3), step_us=800, standing=True)
    pages = {(0, 0, "p"): page(0, stopped, step_us=900), (0, 1, "p"): at_a_beginning}
    assert cutter.look(pages).ready and not cutter.between_steps(pages)
    assert cutter.look(pages).orders == {key: {0: 4} for key in pages}, "both issue the fourth"
    computing = {(0, 0, "p"): page(0, PageEntry(0, 5, GROUP, 2, 3), step_us=900), (0, 1, "p"): at_a_beginning}
    assert not Cutter().between_steps(computing)
    for slow in (page(0, stopped), page(0, stopped, step_us=60_000_000), page(0, stopped, step_us=900, exiting=True)):
        assert Cutter().between_steps({(0, 0, "p"): slow, (0, 1, "p"): at_a_beginning})


def test_longer_steps_are_waited_for_where_no_job_wants_the_devices() -> None:
    slow = {(0, 0, "p"): page(0, PageEntry(0, 5, GROUP, 2, 3), step_us=3_000_000)}
    assert Cutter().between_steps(slow)
    assert not Cutter(UNHURRIED_STEP_US).between_steps(slow)


def test_a_cut_that_holds_is_reported() -> None:
    party = Liar()
    report = cut([party], timeout_us=5_000_000)
    assert (report.worlds, report.ranks, party.released) == (1, 2, 0)


def test_ranks_that_stand_still_since_an_earlier_cut_come_back_first() -> None:
    """Its leader has died: a rank without connections cannot take part in a cut."""
    parked = Liar()
    parked.phase = DROP
    parked.hold = lambda: setattr(parked, "phase", parked.phase or STOP)  # type: ignore[method-assign]
    assert cut([parked], timeout_us=5_000_000).ranks == 2
    assert parked.released == 1


@pytest.mark.parametrize("liar", [Liar(stuck=True), Liar(phase_stuck=DRAIN), Liar(phase_stuck=DROP)])
def test_a_cut_that_fails_names_the_rank_and_releases_all(liar: Liar) -> None:
    with pytest.raises(WorldError, match=r"rank \d .* (has issued 0 of 1|complete what|close its)"):
        cut([liar], timeout_us=50_000)
    assert liar.released == 1


@pytest.mark.parametrize("phase_stuck", [0, DRAIN, DROP])
def test_a_leader_that_is_itself_late_looks_before_it_fails(phase_stuck: int) -> None:
    """A busy host wakes it after its time is over, again and again: ranks that stand still by then are no failure."""
    party, machine, now_us = Liar(phase_stuck=phase_stuck), cm.CutMachine(1, 50_000, 2_000_000), 0
    action = machine.begin(now_us)
    while not isinstance(action, cm.Finished | cm.CutFailed):
        now_us += 60_000
        action = machine.handle(_carried_out(action, party), now_us)
    assert isinstance(action, cm.CutFailed) == bool(phase_stuck)


def _carried_out(action: cm.Action, party: Liar) -> cm.Event:
    if isinstance(action, cm.Read):
        return cm.PagesRead({(0, found.job_rank, "p"): found for found in party.read()})
    if isinstance(action, cm.HoldPages):
        party.hold()
    elif isinstance(action, cm.PublishLevel):
        party.publish(action.cuts)
    else:
        party.release()
    return cm.ActionDone()


def test_a_node_that_cannot_be_reached_releases_the_others() -> None:
    good = Liar()
    with pytest.raises(WorldError, match="unreachable"):
        cut([good, Liar(broken=True)], timeout_us=50_000)
    assert good.released == 1


def test_release_tells_all_nodes_that_connections_were_dropped() -> None:
    dropped, other = Liar(), Liar()
    dropped.phase = DROP
    seen: list[int] = []
    other.publish = lambda cuts: seen.append(cuts.phase)  # type: ignore[method-assign]
    release([dropped, other])
    assert seen == [DROP] and dropped.released == other.released == 1


def test_without_pages_there_is_nothing_to_cut() -> None:
    party = Liar()
    party.read = list  # type: ignore[method-assign]
    assert cut([party], timeout_us=50_000).ranks == 0
