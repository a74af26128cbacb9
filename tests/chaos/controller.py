"""A controller that dies and comes back: its lives, its users, and what must hold in the end."""

from __future__ import annotations

import asyncio
import functools
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from tidewright.base.units import HOUR, SECOND
from tidewright.drive.record import decode
from tidewright.drive.replay import replay
from tidewright.engine.commands import Reply
from tidewright.engine.events import Cancel, Event, Submit
from tidewright.engine.settings import live_settings
from tidewright.live.api.event_stream import EventStream
from tidewright.live.controller import loop as live_loop
from tidewright.live.controller.clock import Clock
from tidewright.live.controller.lock import StateLock
from tidewright.live.controller.loop import Loop
from tidewright.live.journal.recover import recover
from tidewright.live.journal.store import Journal
from tidewright.live.reconcile.agent_pool import AgentPool
from tidewright.model.job import JobSpec, State
from tidewright.policy.registry import make
from tidewright.testing.crash import CONTROLLER, Fuse, begin, counting

from . import virtual
from .node import Node, Wire

DEVICES = 3
ENDLESS_S = 900.0
WALL_US = 10**15
SETTINGS = live_settings()


def spec(name: str, seconds: float, *codes: int, **more: object) -> JobSpec:
    command = ("work", str(seconds), *(str(code) for code in codes or (0,)))
    return JobSpec(name=name, command=command, **more)  # type: ignore[arg-type]


USERS: dict[str, tuple[float, JobSpec, float]] = {
    "a": (0.0, spec("a", 20, tier="basic"), 0.0),
    "b": (0.1, spec("b", 25, tier="basic"), 0.0),
    "cancelled": (0.2, spec("cancelled", ENDLESS_S, tier="basic"), 12.0),
    "premium": (4.0, spec("premium", 5, tier="premium", devices=2, ranks=1), 0.0),
    "retried": (6.0, spec("retried", 3, 1, 0, tier="standard", retries=2), 0.0),
}
"""Who submits what when (seconds), and after how many seconds it is cancelled (0: never)."""
ENDS = dict.fromkeys(USERS, State.COMPLETED) | {"cancelled": State.CANCELLED}
RUNS = [("a", 1, 0), ("b", 1, 0), ("premium", 1, 0), ("retried", 1, 1), ("retried", 2, 0)]
"""Every attempt that must run to its own end, once."""


class Life:
    """One run of a controller, put together as ``live.main`` does."""

    def __init__(self, state: Path, node: Node, fuse: Fuse, wall_us: int) -> None:
        self.state, self.node, self.fuse, self.wall_us = state, node, fuse, wall_us
        self.loop: Loop | None = None
        self.up = asyncio.Event()

    async def run(self) -> None:
        lock = StateLock(self.state)
        self.journal = Journal(self.state)
        driver = recover(self.journal, SETTINGS, event_stream := EventStream())
        seconds = asyncio.get_running_loop().time
        clock = Clock(
            self.state, driver.engine.book.now, lambda: self.wall_us, lambda: int(seconds() * SECOND), lambda: "boot-1"
        )
        self.loop = Loop(driver, self.journal, clock, make("sla:min_run=1s"), event_stream)
        self.loop.agent_pool = AgentPool(
            Wire(self.node, self.fuse),
            driver.engine.book,
            lock.epoch,
            self.loop.post,
            self.loop.run_between_steps,
            self._fenced,
        )
        self.loop.agent_pool.start()
        self.up.set()
        await self.loop.run()
        lock.release()

    def _fenced(self, why: str) -> None:
        self.node.wrong.append(f"the only controller was fenced: {why}")

    def close(self) -> None:
        """Close the files; what they hold was copied when the life ended."""
        if hasattr(self, "journal"):
            self.journal.close()


@dataclass
class Site:
    """What outlives a controller: node, users, disk. ``cuts``: the side effect at which each life ends, 0 for never."""

    root: Path
    cuts: Iterator[int]
    after: bool = False
    node: Node = field(default_factory=lambda: Node(DEVICES))
    fuses: list[Fuse] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    """Job ids that users were answered."""
    life: Life | None = None

    async def lives(self) -> None:
        """Start controllers until one ends in order."""
        while True:
            at, number = next(self.cuts, 0), len(self.fuses)
            here, there = self.root / f"life-{number}", self.root / f"life-{number + 1}"
            fuse = Fuse(at, self.after, functools.partial(shutil.copytree, here, there))
            here.mkdir(exist_ok=True)
            life = self.life = Life(here, self.node, fuse, WALL_US - number * HOUR)
            task, death = begin(fuse, life.run()), asyncio.ensure_future(fuse.death())
            await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
            death.cancel()
            self.fuses.append(fuse)
            if not fuse.blown:
                await task
                life.close()
                return
            await fuse.reap()
            life.close()
            shutil.rmtree(here)
            self.life = None
            await asyncio.sleep(0.3)

    async def ask(self, event: Event, op_id: str) -> Reply:
        """As a user does: the same request again until it is answered."""
        while True:
            life = self.life
            if life is None or life.fuse.blown or life.loop is None or not life.up.is_set():
                await asyncio.sleep(0.05)
                continue
            answers: list[Reply] = []
            task = begin(life.fuse, self._one(life, life.loop, event, op_id, answers))
            await asyncio.wait({task})
            if answers:
                return answers[0]

    async def _one(self, life: Life, loop: Loop, event: Event, op_id: str, answers: list[Reply]) -> None:
        reply = await loop.request(event, op_id)
        with life.fuse.effect("answer"):
            answers.append(reply)

    async def user(self, name: str) -> None:
        start, wanted, patience = USERS[name]
        await asyncio.sleep(start)
        reply = await self.ask(Submit(wanted, f"submit-{name}"), f"submit-{name}")
        assert not reply.error, reply
        self.acknowledged[name] = reply.job
        if patience:
            await asyncio.sleep(patience)
            reply = await self.ask(Cancel(reply.job, f"cancel-{name}"), f"cancel-{name}")
            assert not reply.error, reply

    def quiet(self) -> bool:
        """Whether every job has ended and the node remembers none."""
        life = self.life
        if life is None or life.loop is None or not life.up.is_set():
            return False
        return (
            len(self.acknowledged) == len(USERS) and not life.loop.driver.engine.book.specs and not self.node.processes
        )

    async def play(self) -> None:
        lives = asyncio.ensure_future(self.lives())
        users = [asyncio.ensure_future(self.user(name)) for name in USERS]
        async with asyncio.timeout(ENDLESS_S / 2):
            await asyncio.gather(*users)
            while not lives.done():
                if self.quiet():
                    self.life.loop.stop()  # type: ignore[union-attr]
                await asyncio.sleep(0.25)
            await lives

    def check(self) -> None:
        """Once to completion each, nothing acknowledged lost, nothing doubled, and a journal that says the same again."""
        assert self.node.wrong == []
        assert sorted(self.node.ended) == RUNS
        attempts = sorted({(name, attempt) for name, attempt, _ in RUNS} | {("cancelled", 1)})
        assert sorted(self.node.started) == attempts
        journal = Journal(self.root / f"life-{len(self.fuses) - 1}")
        try:
            assert journal.notices == []
            ended = {row.spec.name: row for row in journal.archive.find(100, [], {})}
            assert journal.archive.count() == len(USERS)
            assert {name: State(row.state) for name, row in ended.items()} == ENDS
            assert {name: row.job for name, row in ended.items()} == self.acknowledged
            assert ended["retried"].attempts == 2
            bodies = [body for _, body in journal.bodies(0)]
            times = [decode(body).now for body in bodies]
            assert times == sorted(times) and times[-1] - times[0] < ENDLESS_S * SECOND
            again = replay(bodies, SETTINGS)
            assert again.snapshot() == recover(journal, SETTINGS, EventStream()).engine.snapshot()
        finally:
            journal.close()


def crash(root: Path, cuts: list[int], after: bool = False) -> Site:
    """Play the scenario with lives cut short; a snapshot is taken every few turns."""

    async def main() -> Site:
        site = Site(root, iter(cuts), after)
        await site.play()
        return site

    with counting(CONTROLLER), mock.patch.object(live_loop, "SNAPSHOT_EVERY", 6):
        logging.disable()
        try:
            site = virtual.run(main())
        finally:
            logging.disable(logging.NOTSET)
    site.check()
    return site
