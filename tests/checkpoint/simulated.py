"""Simulated ranks, for the cut: random programs over groups and messages, moved in every order a seed can bring about;
and how far a least cut goes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field

from tidewright.checkpoint.cut.cutter import Cutter
from tidewright.checkpoint.cut.pages import GROUP, HELD, PAIRED, RECV, RUNNING, SEND, STOP, PageEntry, PageState

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

    def entry(self, rank: Rank, index: int, name: Name) -> PageEntry:
        kind, what = name
        waiting = rank.waiting[1] if rank.waiting and rank.waiting[0] == name else 0
        issued, want = rank.issued.get(name, 0), rank.want.get(name, 0)
        ident = hash((kind == "group", what)) & (2**62 - 1)
        if kind == "group":
            members = () if len(what) == len(self.ranks) else what  # type: ignore[arg-type]
            return PageEntry(index, ident, GROUP, len(what), issued, want, waiting, members)  # type: ignore[arg-type]
        source, target = what  # type: ignore[misc]
        flag = PAIRED if self.paired else 0
        if kind == "send":
            return PageEntry(index, ident, SEND | flag, target, issued, want, waiting)
        return PageEntry(index, ident, RECV | flag, source, issued, want, waiting)

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

    ``whole``: no look falls between the announcement of an operation and its withdrawal.
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


def closure(world: World) -> list[int]:
    """How far each rank must go: up to the last operation that anybody has issued, and what that waits for."""
    positions = [rank.at for rank in world.ranks]
    while True:
        counts = [tally(world, rank, at) for rank, at in zip(world.ranks, positions, strict=True)]
        needed = [number for number in range(len(counts)) if behind(counts, number, world.paired)]
        stuck = {number: unmet(world, number, positions, counts) for number in range(len(counts))}
        for number in needed:  # grows meanwhile
            if stuck[number] is not None and stuck[number] not in needed:
                needed.append(stuck[number])  # type: ignore[arg-type]
        going = [
            number for number in needed if stuck[number] is None and waits_for_none(world, number, positions, counts)
        ]
        if not going:
            return positions
        for number in going:
            positions[number] += 1


def tally(world: World, rank: Rank, at: int) -> Counter[Name]:
    """What a rank has issued when it is ``at`` an operation of its program."""
    return Counter(world.name(rank, op) for op in rank.program[:at])


def behind(counts: list[Counter[Name]], number: int, paired: bool) -> bool:
    """Whether others have issued what this rank takes part in and has not."""
    for mine in counts:
        for name, count in mine.items():
            if name[0] == "group":
                found = number in name[1] and counts[number][name] < count  # type: ignore[operator]
            else:
                source, target = name[1]  # type: ignore[misc]
                here = "recv" if name[0] == "send" else "send"
                peer = target if name[0] == "send" else source
                found = paired and peer == number and counts[number][here, name[1]] < count
            if found:
                return True
    return False


def last_waited(world: World, number: int, at: int) -> Op | None:
    op = world.ranks[number].program[at - 1] if at else None
    return op if op is not None and op.wait else None


def unmet(world: World, number: int, positions: list[int], counts: list[Counter[Name]]) -> int | None:
    """The rank whose message this one waits for."""
    op = last_waited(world, number, positions[number])
    if op is None or op.kind == GROUP:
        return None
    kind, ends = world.name(world.ranks[number], op)
    other = "recv" if kind == "send" else "send"
    return op.peer if counts[op.peer][other, ends] < counts[number][kind, ends] else None


def waits_for_none(world: World, number: int, positions: list[int], counts: list[Counter[Name]]) -> bool:
    """Whether the collective that it is in has been issued by all."""
    op = last_waited(world, number, positions[number])
    if op is None or op.kind != GROUP:
        return True
    name = world.name(world.ranks[number], op)
    return all(counts[member][name] >= counts[number][name] for member in op.group)
