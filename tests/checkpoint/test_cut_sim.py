"""The cut, simulated whole: the wrapper's own control of a process and the agent's own pages, leader and release, over
ranks, messages and a network that are changed between any two words written. A seed decides everything."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from tests.checkpoint.cut_kernel import Kernel, Owner, standing_in
from tests.checkpoint.cut_ranks import Gang, Node, Rank, SimPage
from tidewright.agent.checkpointing import control_pages as agent_pages
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cut import barrier
from tidewright.checkpoint.cut import machine as cut_machine
from tidewright.checkpoint.cut.pages import Cuts, PageState
from tidewright.launch.inject._tidewright import channels, connections, p2p_drain
from tidewright.launch.inject._tidewright import page as pg
from tidewright.launch.inject._tidewright import process_control as pc

SEEDS, MORE_SEEDS = 100, 5000
STEPS = 400_000
"""Of the simulation: after these a rank that has not ended hangs."""


class NodePages(agent_pages.LocalPages):
    """A node's pages, in simulated memory."""

    def __init__(self, gang: Gang, node: Node, owner: Owner) -> None:
        super().__init__({rank.number: None for rank in gang.ranks if rank.node is node})  # type: ignore[misc]
        self._gang, self._node, self._owner = gang, node, owner

    def _pages(self) -> Iterator[tuple[int, Any]]:
        for (number, name), memory in list(self._node.pages.items()):
            page = SimPage(self._gang.kernel, memory, self._owner, name)
            page.rank = self._gang.ranks[number]  # type: ignore[attr-defined]
            if page.words[pg.MAGIC_AT] == pg.MAGIC:
                yield number, page

    def _held(self, number: int) -> bool:
        return number in self._node.held

    def _mark_held(self, number: int) -> None:
        self._gang.kernel.pause()
        self._node.held.add(number)

    def _unmark_held(self, number: int) -> None:
        self._gang.kernel.pause()
        self._node.held.discard(number)


class RemotePages:
    """The same over a network that is slow, and loses requests and answers: who has asked hears of it as of a node that fails."""

    def __init__(self, pages: NodePages, kernel: Kernel, owner: Owner, loss: float, under_way: set[float]) -> None:
        self._pages, self._kernel, self._owner, self._loss = pages, kernel, owner, loss
        self._under_way = under_way

    def _ask(self, act: Callable[[], Any]) -> Any:
        kernel, found = self._kernel, []
        asker = kernel.task
        if kernel.rng.random() < self._loss:
            kernel.sleep(5.0)
            raise WorldError("the request is lost")
        twice = kernel.rng.random() < self._loss

        def serve() -> None:
            kernel.sleep(kernel.rng.uniform(1e-4, 5e-3))
            if twice:
                act()
            found.append(act())
            self._under_way.discard(number)
            assert asker is not None
            kernel.wake(asker)

        number = kernel.rng.random()
        self._under_way.add(number)
        kernel.spawn(serve, self._owner)
        lost = kernel.rng.random() < self._loss
        while not found:
            kernel.block()
        if lost:
            kernel.sleep(5.0)
            raise WorldError("the answer is lost")
        return found[0]

    def hold(self) -> None:
        self._ask(self._pages.hold)

    def read(self) -> list[PageState]:
        return self._ask(self._pages.read)  # type: ignore[no-any-return]

    def publish(self, cuts: Cuts) -> None:
        self._ask(lambda: self._pages.publish(cuts))

    def release(self) -> None:
        self._ask(self._pages.release)


@dataclass(frozen=True)
class Plan:
    """What befalls a gang. ``loss``: of requests and answers; ``kills``: leaders die; ``stops``: ranks are stopped for a
    while."""

    size: int
    nodes: int
    length: int
    cuts: int
    loss: float
    kills: bool
    stops: bool
    rank_dies: bool

    @property
    def faults(self) -> bool:
        """Whether anything befalls it that may make a cut fail."""
        return bool(self.loss or self.kills or self.stops or self.rank_dies)


def plan_of(seed: int) -> Plan:
    rng = random.Random(f"plan {seed}")
    return Plan(
        size=rng.choice((1, 2, 2, 3, 3, 4)), nodes=rng.choice((1, 2, 2)), length=rng.randint(5, 40), cuts=rng.randint(1, 4),
        loss=rng.choice((0.0, 0.0, 0.01, 0.05)), kills=rng.random() < 0.3, stops=rng.random() < 0.2,
        rank_dies=rng.random() < 0.1,
    )  # fmt: skip


class Story:
    """One gang, what is done to it, and what must hold."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self.plan = plan
        self.rng = random.Random(seed)
        self.kernel = Kernel(self.rng)
        self.gang: Gang
        self.director = self.kernel.owner("director")
        self.leader = self.kernel.owner("leader")
        self.stood = self.failed = 0
        self.under_way: set[float] = set()
        """Requests that a node has not answered yet; a node waits for a leader's word for longer than these take."""
        self.finished = False
        self.lost_rank = False

    def run(self) -> None:
        self.gang.start()
        self.kernel.spawn(self._direct, self.director)
        self.kernel.run(lambda: bool(self.gang.violations) or (self.finished and not self.gang.any_lives()), STEPS)
        assert not self.gang.violations, self.gang.violations
        assert self.finished, f"the agents hang at {self.kernel.now}: {self.states()}"
        if self.lost_rank:
            return
        assert not self.gang.living(), f"ranks hang: {self.states()}"
        for rank in self.gang.ranks:
            assert rank.at == len(rank.program)
            self._check_messages(rank)

    def _check_messages(self, rank: Rank) -> None:
        """Each message came once, and those of a source and tag in their order."""
        for expected, into in rank.received:
            ops = [op for op in rank.program if op.token == expected]
            if ops[0].what == "recv":
                assert into == [expected], f"rank {rank.number} received {into} in place of {expected}"
        anything = sorted(str(into) for expected, into in rank.received if rank.what(expected) == "any")
        assert anything == sorted(str([expected]) for expected, _ in rank.received if rank.what(expected) == "any")

    def states(self) -> list[object]:
        return [
            (rank.number, rank.control.machine.state, rank.at, len(rank.program), rank.memory.get(pg.HOLD),
             rank.memory.get(pg.BUILD), rank.control.machine.built)
            for rank in self.gang.living()
        ]  # fmt: skip

    # What is done.

    def parties(self) -> list[Any]:
        nodes = self.gang.nodes
        found: list[Any] = [NodePages(self.gang, nodes[0], self.leader)]
        for node in nodes[1:]:
            pages = NodePages(self.gang, node, node.agent)
            found.append(RemotePages(pages, self.kernel, node.agent, self.plan.loss, self.under_way))
        return found

    def _direct(self) -> None:
        rng, kernel = self.rng, self.kernel
        for _ in range(self.plan.cuts):
            kernel.sleep(rng.choice((1e-5, 1e-3, 0.02, 0.1)) * rng.random())
            self._fault()
            self._lead(rng.random() < 0.4 and self.plan.kills)
        self._each_alone()
        self.finished = True

    def _fault(self) -> None:
        living, rng = self.gang.living(), self.rng
        if self.plan.rank_dies and living and rng.random() < 0.4:
            self.lost_rank = True
            self.kernel.kill(rng.choice(living).owner)
        if self.plan.stops and living:
            self._stop(rng.choice(living).owner, rng.choice((0.01, 1.0, 10.0)))

    def _stop(self, owner: Owner, seconds: float) -> None:
        def go_on() -> None:
            self.kernel.sleep(seconds)
            owner.frozen = False

        owner.flush()
        owner.frozen = True
        self.kernel.spawn(go_on, self.director)

    def _lead(self, dies: bool) -> None:
        """One cut by a leader, which may die at any moment of it."""
        ended: list[bool] = []
        self.leader = self.kernel.owner("leader")

        def lead() -> None:
            self._cut_once()
            ended.append(True)

        self.kernel.spawn(lead, self.leader)
        steps = self.rng.choice((10, 100, 1000, 3000)) * self.rng.random() if dies else 1e9
        while not ended:
            steps -= 1
            if steps < 0:
                return self._leader_died()
            self.kernel.sleep(1e-4 if dies else 0.05)
        return None

    def _leader_died(self) -> None:
        """Other nodes release their ranks when they hear nothing, or a new leader comes first."""
        self.kernel.kill(self.leader)
        self.leader = self.kernel.owner("leader")
        while self.under_way:
            self.kernel.sleep(0.01)
        if self.rng.random() < 0.5:
            self._each_alone()

    def _each_alone(self) -> None:
        """Every node releases its ranks, on its own."""
        nodes, done = list(self.gang.nodes), []
        self.rng.shuffle(nodes)

        def work(node: Node) -> None:
            NodePages(self.gang, node, node.agent).release()
            done.append(node)

        for node in nodes:
            self.kernel.spawn(functools.partial(work, node), node.agent)
            self.kernel.sleep(self.rng.choice((0, 1e-3, 0.1)))
        while len(done) < len(nodes):
            self.kernel.sleep(1e-3)

    def _cut_once(self) -> None:
        kernel, rng = self.kernel, self.rng
        parties = self.parties()
        try:
            barrier.cut(parties, timeout_us=3_000_000 if self.plan.faults else 30_000_000)
        except WorldError as error:
            self.failed += 1
            if not self.plan.faults:
                self.gang.violate(f"a cut of a gang that nothing befalls fails: {error}")
            self._follow()
            return
        self.stood += 1
        self._check_cut()
        counts = self._counts()
        kernel.sleep(rng.choice((1e-3, 0.3, 3.0)))
        if self._counts() != counts:
            self.gang.violate("operations were issued during the cut")
        self._check_cut()
        if rng.random() < 0.4:
            self._restore()
        try:
            barrier.release(parties)
        except WorldError:
            self._follow()

    def _follow(self) -> None:
        """The leader's word reaches the other nodes: each lets its ranks go."""
        for node in self.gang.nodes:
            NodePages(self.gang, node, self.leader).release()

    def _restore(self) -> None:
        """All ranks come back from images: their pages are others, and may say what happened after the image."""
        for rank in self.gang.living():
            memory = rank.memory
            if rank.control.page is None:
                continue
            if self.rng.random() < 0.5:
                memory[pg.COUNT] = self.rng.randint(0, 6)
                for at in range(pg.HEADER_WORDS, pg.HEADER_WORDS + 6 * pg.ENTRY_WORDS):
                    memory[at] = self.rng.randint(0, 9)
            memory[pg.VERSION] = memory.get(pg.VERSION, 0) + self.rng.randint(0, 3)
            memory[pg.HOST_PID] = 0

    # What must hold.

    def _counts(self) -> list[object]:
        return [(rank.number, group.stream.done) for rank in self.gang.living() for group in rank.groups.values()]

    def _check_cut(self) -> None:
        """All stand still between the same operations, nothing is on its way, no connection is open."""
        gang = self.gang
        counted: dict[int, set[int]] = {}
        for rank in gang.living():
            if rank.memory.get(pg.EXITING) == pg.EXIT_DONE or rank.control.page is None:
                continue
            if rank.control.machine.state != "parked" or not rank.link.shut:
                gang.violate(f"rank {rank.number} is {rank.control.machine.state} at the cut")
            for group in rank.groups.values():
                counted.setdefault(group.ident, set()).add(group.stream.done)
                if group.backend is not None:
                    gang.violate(f"rank {rank.number} is connected at the cut")
        if any(len(found) > 1 for found in counted.values()) and not self.lost_rank:
            gang.violate(f"members of a group stand at different operations: {counted}")
        for wire in gang.wires.values():
            self._check_wire(wire)

    def _check_wire(self, wire: Any) -> None:
        gone = self.gang.left() | {rank.number for rank in self.gang.ranks if not rank.owner.alive}
        for number, tokens in wire.issued.items():
            if len(tokens) < len(wire.ranks) and not gone & set(wire.ranks):
                self.gang.violate(f"operation {number} was issued by {sorted(tokens)} of {wire.ranks} only")


@contextmanager
def simulated(story: Story) -> Iterator[None]:
    kernel = story.kernel
    idle = SimpleNamespace(release=lambda: None, acquire=lambda: None, quiesce=lambda: None, reset=lambda: None)
    time, threading, futex = kernel.time(), kernel.threading(), kernel.futex()
    with standing_in(
        (pc, {"time": time, "threading": threading, "futex": futex, "splice": idle,
              "memory": SimpleNamespace(trim=lambda: None), "agent_endpoint": SimpleNamespace(rank_dir=lambda: "sim")}),
        (channels, {"threading": threading, "splice": idle}),
        (connections, {"time": time, "await_closed": lambda *_: None}),
        (p2p_drain, {"time": time, "threading": threading, "_nothing": lambda: None}),
        (cut_machine, {"POLL_US": 10_000}),
        (barrier, {"time": time, "secrets": SimpleNamespace(randbits=story.rng.getrandbits)}),
        (agent_pages, {"futex": futex, "_dead": lambda page: not page.rank.owner.alive}),
    ):  # fmt: skip
        yield


def simulate(seed: int, plan: Plan | None = None) -> Story:
    story = Story(seed, plan or plan_of(seed))
    with simulated(story):
        story.gang = Gang(story.kernel, story.plan.size, min(story.plan.nodes, story.plan.size), story.plan.length)
        try:
            story.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, {story.plan}: {error}") from error
    return story


def test_gangs_come_to_a_cut_and_back() -> None:
    stories = [simulate(seed) for seed in range(SEEDS)]
    assert sum(story.stood for story in stories) > SEEDS // 2


def test_a_rank_whose_stand_ends_as_it_looks_goes_on() -> None:
    """It waited without a limit when its time had passed between two looks at the clock."""
    simulate(22768)


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_gangs_come_to_a_cut_and_back_many_times() -> None:
    for seed in range(SEEDS, SEEDS + MORE_SEEDS):
        simulate(seed)
