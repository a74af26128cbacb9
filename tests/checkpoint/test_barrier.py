"""The cut's algorithm, simulated: random programs over groups and messages, a cut at a random moment, every order of
events a seed can bring about. It ends, nothing is on its way afterwards, and the program then runs to its end."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import WorldError
from tidewright.checkpoint.barrier import Cutter, cut, release
from tidewright.checkpoint.pages import (
    ANY,
    DRAIN,
    DRAINED,
    DROP,
    GROUP,
    HELD,
    PAIRED,
    PARKED,
    RECV,
    RUNNING,
    SEND,
    STOP,
    Cuts,
    Entry,
    PageState,
)

Name = tuple[str, object]


@dataclass(frozen=True)
class Op:
    """One operation of a rank's program: on a group of ranks, or a message; ``wait`` says whether it is waited for."""

    kind: int
    peer: int = -1
    group: tuple[int, ...] = ()
    wait: bool = True


@dataclass
class Rank:
    """A simulated process: where it is in its program, and what its page says."""

    number: int
    program: list[Op]
    at: int = 0
    issued: dict[Name, int] = field(default_factory=dict)
    want: dict[Name, int] = field(default_factory=dict)
    waiting: tuple[Name, int] | None = None
    announced: tuple[Name, int] | None = None
    """Counted as issued, but HOLD was not looked at yet."""
    busy: int = 0


class World:
    """Ranks, what they have issued to each other, and an agent's hold. Each ``step`` moves one thing."""

    def __init__(self, programs: list[list[Op]], paired: bool, rng: random.Random) -> None:
        self.ranks = [Rank(number, program) for number, program in enumerate(programs)]
        self.paired, self.rng = paired, rng
        self.hold = False
        self.cuts: dict[tuple[int, Name], int] = {}

    def name(self, rank: Rank, op: Op) -> Name:
        if op.kind == GROUP:
            return ("group", op.group)
        return ("send", (rank.number, op.peer)) if op.kind == SEND else ("recv", (op.peer, rank.number))

    def complete(self, rank: Rank, name: Name, count: int) -> bool:
        kind, what = name
        if kind == "group":
            return all(self.ranks[member].issued.get(name, 0) >= count for member in what)  # type: ignore[union-attr]
        source, target = what  # type: ignore[misc]
        other = self.ranks[target if kind == "send" else source]
        return other.issued.get(("recv" if kind == "send" else "send", what), 0) >= count

    def moves(self) -> list[Rank]:
        return [rank for rank in self.ranks if self.can_move(rank)]

    def can_move(self, rank: Rank) -> bool:
        if rank.busy or rank.announced:
            return True
        if rank.waiting:
            return self.complete(rank, *rank.waiting)
        if rank.want:
            ((name, number),) = rank.want.items()
            return not self.hold or number <= self.cuts.get((rank.number, name), 0)
        return rank.at < len(rank.program)

    def step(self, rank: Rank) -> None:
        if rank.busy:
            rank.busy -= 1
        elif rank.announced:
            self.pass_or_stop(rank, *rank.announced)
        elif rank.waiting:
            rank.waiting = None
        elif rank.want:
            ((name, number),) = rank.want.items()
            rank.issued[name] = number
            rank.want = {}
            self.go(rank, name, number)
        else:
            name = self.name(rank, rank.program[rank.at])
            number = rank.issued.get(name, 0) + 1
            rank.issued[name] = number
            rank.announced = (name, number)

    def pass_or_stop(self, rank: Rank, name: Name, number: int) -> None:
        rank.announced = None
        if self.hold and number > self.cuts.get((rank.number, name), 0):
            rank.want = {name: number}
            rank.issued[name] = number - 1
        else:
            self.go(rank, name, number)

    def go(self, rank: Rank, name: Name, number: int) -> None:
        op = rank.program[rank.at]
        rank.at += 1
        rank.busy = self.rng.choice((0, 0, 0, 1, 5))
        if op.wait:
            rank.waiting = (name, number)

    def page(self, rank: Rank) -> PageState:
        names = sorted({*rank.issued, *rank.want}, key=repr)
        entries = tuple(self.entry(rank, index, name) for index, name in enumerate(names))
        state = HELD if self.hold else RUNNING
        over = rank.at == len(rank.program) and not rank.waiting and not rank.announced
        return PageState(
            rank.number, "p", rank.number, 7, rank.number, len(self.ranks), state, STOP, exiting=over, entries=entries
        )

    def entry(self, rank: Rank, index: int, name: Name) -> Entry:
        kind, what = name
        waiting = rank.waiting[1] if rank.waiting and rank.waiting[0] == name else 0
        issued, want = rank.issued.get(name, 0), rank.want.get(name, 0)
        ident = hash((kind == "group", what)) & (2**62 - 1)
        if kind == "group":
            members = () if len(what) == len(self.ranks) else what  # type: ignore[arg-type]
            return Entry(index, ident, GROUP, len(what), issued, want, waiting, members)  # type: ignore[arg-type]
        source, target = what  # type: ignore[misc]
        flag = PAIRED if self.paired else 0
        if kind == "send":
            return Entry(index, ident, SEND | flag, target, issued, want, waiting)
        return Entry(index, ident, RECV | flag, source, issued, want, waiting)

    def names(self, rank: Rank) -> dict[int, Name]:
        return dict(enumerate(sorted({*rank.issued, *rank.want}, key=repr)))


def make_programs(rng: random.Random, size: int, length: int) -> list[list[Op]]:
    """Random programs that end by themselves: one global order of operations, each appended to those who take part."""
    programs: list[list[Op]] = [[] for _ in range(size)]
    groups = [tuple(range(size))]
    groups += [tuple(sorted(rng.sample(range(size), rng.randint(2, size)))) for _ in range(3) if size > 2]
    for _ in range(length):
        if rng.random() < 0.6:
            group = rng.choice(groups)
            wait = rng.random() < 0.7
            for rank in group:
                programs[rank].append(Op(GROUP, group=group, wait=wait))
        else:
            source, target = rng.sample(range(size), 2)
            programs[source].append(Op(SEND, peer=target, wait=rng.random() < 0.5))
            programs[target].append(Op(RECV, peer=source, wait=rng.random() < 0.7))
    return programs


def run_to_cut(world: World, limit: int, whole: bool = False) -> int:
    """Poll and move in a random order until the cut is ready; how many moves were made.

    ``whole``: nobody looks between the announcement of an operation and its being taken back.
    """
    cutter = Cutter()
    for moves in range(limit):
        movable = world.moves()
        if movable and world.rng.random() < 0.8:
            rank = world.rng.choice(movable)
            world.step(rank)
            if whole and rank.announced:
                world.step(rank)
            continue
        pages = {(0, rank.number, "p"): world.page(rank) for rank in world.ranks}
        verdict = cutter.look(pages)
        for (_, number, _), orders in verdict.orders.items():
            names = world.names(world.ranks[number])
            for index, cut_at in orders.items():
                world.cuts[number, names[index]] = cut_at
        if verdict.ready:
            return moves
    raise AssertionError("the cut does not end")


def settle(world: World) -> None:
    """While draining: threads that the cut includes pass, and what they have issued completes."""
    for _ in range(10_000):
        movable = [rank for rank in world.ranks if world.can_move(rank) and not fresh(world, rank)]
        if not movable:
            return
        world.step(world.rng.choice(movable))
    raise AssertionError("draining does not end")


def fresh(world: World, rank: Rank) -> bool:
    """Whether its next move would announce another operation: it may, and is then stopped."""
    return not (rank.busy or rank.announced or rank.waiting or rank.want)


@settings(max_examples=300, deadline=None)
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


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32), size=st.integers(2, 5))
def test_no_rank_is_let_do_more_than_what_others_wait_for(seed: int, size: int) -> None:
    """The cut takes in only the past of what was announced: with collectives alone, that set is known."""
    rng = random.Random(seed)
    programs = [[op for op in program if op.kind == GROUP] for program in make_programs(rng, size, 40)]
    world = World(programs, False, rng)
    for _ in range(rng.randint(0, 60)):
        movable = world.moves()
        if movable:
            world.step(rng.choice(movable))
    least = closure(world)
    world.hold = True
    run_to_cut(world, 20_000, whole=True)
    settle(world)
    for rank in world.ranks:
        assert all(count <= least[rank.number].get(name, 0) for name, count in rank.issued.items())


def closure(world: World) -> list[dict[Name, int]]:
    """How far each rank must go at least: up to the last operation that anybody has issued."""
    positions = [rank.at + (1 if rank.announced else 0) for rank in world.ranks]
    while True:
        totals: dict[Name, int] = {}
        counts = []
        for rank, at in zip(world.ranks, positions, strict=True):
            mine: dict[Name, int] = {}
            for op in rank.program[:at]:
                name = world.name(rank, op)
                mine[name] = mine.get(name, 0) + 1
            counts.append(mine)
            for name, count in mine.items():
                totals[name] = max(totals.get(name, 0), count)
        moved = False
        for number in range(len(world.ranks)):
            behind = [n for n, c in totals.items() if number in n[1] and counts[number].get(n, 0) < c]  # type: ignore[operator]
            if behind:
                positions[number] += 1
                moved = True
        if not moved:
            return counts


def page(rank: int, *entries: Entry, size: int = 2, state: int = HELD, **more: object) -> PageState:
    return PageState(rank, "p", 100 + rank, 7, rank, size, state, STOP, entries=entries, **more)  # type: ignore[arg-type]


def look(*pages: PageState):
    return Cutter().look({(0, found.box, "p"): found for found in pages})


def test_a_rank_that_has_not_joined_is_waited_for_and_named() -> None:
    verdict = look(page(0, Entry(0, 5, GROUP, 2, 1, waiting=1)))
    assert not verdict.ready and "rank 1 of a process group of 2 has not joined" in verdict.why[0]


def test_a_rank_that_left_for_another_world_or_died_is_not_waited_for() -> None:
    mine = page(0, Entry(0, 5, GROUP, 2, 1))
    assert look(mine, PageState(1, "q", 9, 8, 0, 1, HELD, STOP, left=(7, 1))).ready
    assert look(mine, page(1, Entry(0, 5, GROUP, 2, 0), dead=True)).ready
    assert look(mine, page(1, Entry(0, 5, GROUP, 2, 0), exiting=True)).ready
    assert not look(mine, page(1, Entry(0, 5, GROUP, 2, 0))).ready


def test_a_rank_that_is_still_coming_back_is_not_read() -> None:
    verdict = look(page(0, Entry(0, 5, GROUP, 2, 3)), page(1, state=PARKED))
    assert not verdict.ready and not verdict.orders


def test_a_message_with_another_tag_lets_its_sender_go_on_after_a_while() -> None:
    """Counts say that it was sent. It was not: another one was. So the receiver, who is needed, gets nowhere."""
    cutter = Cutter()
    receiver = page(
        0, Entry(0, 5, GROUP, 2, 0), Entry(1, 6, RECV, 1, 1, waiting=1)
    )  # waits before a collective that rank 1 has issued
    sender = page(1, Entry(0, 5, GROUP, 2, 1, waiting=0), Entry(1, 6, SEND, 0, 1, want=2))
    pages = {(0, 0, "p"): receiver, (0, 1, "p"): sender}
    assert cutter.look(pages).orders[0, 1, "p"][1] == 1
    for _ in range(100):
        verdict = cutter.look(pages)
    assert verdict.orders[0, 1, "p"][1] == 2


@pytest.mark.parametrize("kind", [ANY, "store"])
def test_who_waits_for_anybody_lets_all_go_on(kind: object) -> None:
    cutter = Cutter()
    waits = (Entry(1, 6, ANY, 3, 1, waiting=1),) if kind == ANY else ()
    pages = {
        (0, 0, "p"): page(0, Entry(0, 5, GROUP, 2, 0, members=(0, 1)), *waits, size=3, store_wait=kind == "store"),
        (0, 1, "p"): page(1, Entry(0, 5, GROUP, 2, 1, members=(0, 1)), size=3),
        (0, 2, "p"): page(2, Entry(0, 9, SEND, 0, 0, want=1), size=3),
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
            PageState(0, "p", 1, 7, 0, 2, state, self.phase, entries=(Entry(0, 5, GROUP, 2, 1),)),
            PageState(1, "p", 2, 7, 1, 2, state, self.phase, entries=(Entry(0, 5, GROUP, 2, issued),)),
        ]

    def publish(self, cuts: Cuts) -> None:
        self.phase = cuts.phase

    def release(self) -> None:
        self.released += 1
        self.phase = 0


def test_a_cut_that_holds_is_reported() -> None:
    party = Liar()
    report = cut([party], timeout_us=5_000_000)
    assert (report.worlds, report.ranks, party.released) == (1, 2, 0)


@pytest.mark.parametrize("liar", [Liar(stuck=True), Liar(phase_stuck=DRAIN), Liar(phase_stuck=DROP)])
def test_a_cut_that_fails_names_the_rank_and_releases_all(liar: Liar) -> None:
    with pytest.raises(WorldError, match=r"rank \d .* (has issued 0 of 1|complete what|let go of)"):
        cut([liar], timeout_us=50_000)
    assert liar.released == 1


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
