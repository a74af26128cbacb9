"""The engine in memory, beside its bars: ``python bench/engine.py``.

1,000 nodes x 8 devices more than 90 % full, Philly sizes, 10,000 jobs queued, jobs ending as fast as they come. Events are
offered at a rate per second of real time; each turn takes what has come since the last one, as the live loop does. A
decision is a job that arrived, was given devices by the policy, and whose journal record was encoded and hashed.
"""

from __future__ import annotations

import random
import time

import numpy as np

from facts import keep
from tidewright.base.units import HOUR, SECOND
from tidewright.drive.driver import EngineDriver
from tidewright.drive.record import GENESIS, chain
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.model.job import JobSpec
from tidewright.model.node import NodeSpec
from tidewright.policy.registry import make
from tidewright.sim.traces import load_trace

NODES, DEVICES, QUEUED = 1000, 8, 10_000
BAR = 5_000
OFFERED = 8_000
SECONDS = 4.0


class Hashes:
    """A recorder that does all but write."""

    def __init__(self) -> None:
        self.hash, self.bytes = GENESIS, 0

    def append(self, record: bytes) -> None:
        self.hash = chain(self.hash, record)
        self.bytes += len(record)


class World:
    """Starts what is launched at once; jobs end at random."""

    def __init__(self, policy: str, seed: int = 1) -> None:
        self.dice = random.Random(seed)
        self.sizes = [int(size) for size in load_trace("philly", NODES * DEVICES).devices]
        self.recorder = Hashes()
        self.engine = Engine()
        self.driver = EngineDriver(self.engine, self.recorder)
        self.planner = make(policy)
        self.now = SECOND
        self.running: list[tuple[int, int]] = []
        self.placed = self.asked = 0
        nodes = [NodeSpec(name=f"n{i}", kind="v100", devices=DEVICES, domain=(f"rack{i // 16}",)) for i in range(NODES)]
        self.turn([ev.NodeUp(node, "1") for node in nodes])

    def submission(self) -> ev.Event:
        devices = self.dice.choice(self.sizes)
        expected = int(self.dice.lognormvariate(0, 2) * HOUR)
        tier = self.dice.choice(("premium", "standard", "standard", "basic", "basic"))
        spec = JobSpec(command=("python", "train.py"), ranks=devices, devices=devices, tier=tier, expected_us=expected)  # type: ignore[arg-type]
        self.asked += 1
        return ev.Submit(spec, f"{self.asked:032x}")

    def ending(self) -> ev.Event:
        at = self.dice.randrange(len(self.running))
        self.running[at], self.running[-1] = self.running[-1], self.running[at]
        return ev.Exited(*self.running.pop(), 0)

    def turn(self, events: list[ev.Event]) -> None:
        """This turn and those that follow from it at once."""
        while events:
            answers: list[ev.Event] = []
            for command in self.driver.step(self.now, events):
                answers.extend(self.answer(command))
            events = answers

    def answer(self, command: co.Command) -> list[ev.Event]:
        if isinstance(command, co.PlanRequest):
            return [ev.PlanReady(self.planner.plan(self.engine.view()))]
        if isinstance(command, co.Launch):
            self.running.append((command.job, command.attempt))
            self.placed += 1
            return [ev.Started(command.job, command.attempt)]
        if isinstance(command, co.SuspendRanks):
            self.running.remove((command.job, command.attempt))
            return [ev.Suspended(command.job, command.attempt)]
        if isinstance(command, co.ResumeRanks):
            self.running.append((command.job, command.attempt))
            self.placed += 1
            return [ev.Resumed(command.job, command.attempt)]
        return []

    def fill(self) -> None:
        """Full, and 10,000 jobs behind."""
        while len(self.engine.book.specs) - len(self.running) < QUEUED:
            self.now += SECOND
            self.turn([self.submission() for _ in range(1000)])


def decisions(policy: str) -> dict[str, float]:
    """Offer events for a few seconds; what was achieved."""
    world = World(policy)
    world.fill()
    placed, turns, took = world.placed, [], 0
    begin = time.perf_counter()
    low = 1.0
    while (elapsed := time.perf_counter() - begin) < SECONDS:
        come = min(max(1, int(elapsed * OFFERED) - took), 1000)
        took += come
        world.now += 1000
        at = time.perf_counter()
        world.turn([event for _ in range(come) for event in (world.ending(), world.submission())])
        turns.append(time.perf_counter() - at)
        low = min(low, 1 - sum(world.engine.book.board.free_total) / (NODES * DEVICES))
    elapsed = time.perf_counter() - begin
    return {
        "decisions_per_s": round((world.placed - placed) / elapsed),
        "events_per_s": round(2 * took / elapsed),
        "turn_p50_ms": round(1e3 * float(np.percentile(turns, 50)), 2),
        "turn_p99_ms": round(1e3 * float(np.percentile(turns, 99)), 2),
        "lowest_use": round(low, 4),
        "queued": len(world.engine.book.specs) - len(world.running),
    }


def view_ms(jobs: int = 20_000) -> tuple[float, float]:
    """A view of 20,000 jobs right after a change, and the first write while it lives; milliseconds, median of 50."""
    world = World("fifo")
    world.turn([world.submission() for _ in range(jobs)])
    taking, writing = [], []
    for _ in range(50):
        world.turn([world.submission()])
        at = time.perf_counter()
        view = world.engine.view()
        _ = (view.jobs.state, view.jobs.delivered, view.jobs.waiting)
        taking.append(time.perf_counter() - at)
        at = time.perf_counter()
        world.engine.book.own()
        writing.append(time.perf_counter() - at)
        del view
    return 1e3 * float(np.median(taking)), 1e3 * float(np.median(writing))


def main() -> None:
    measured: dict[str, object] = {}
    for policy in ("sla", "srtf", "fifo"):
        found = decisions(policy)
        measured[policy] = found
        print(f"{policy:<5} {found['decisions_per_s']:>7,} decisions/s  (bar {BAR:,})  {found}")
    taking, writing = view_ms()
    measured["view"] = {"take_ms": round(taking, 3), "first_write_ms": round(writing, 3)}
    print(f"view of 20,000 jobs {taking:.3f} ms (bar 1 ms); the first write while it lives copies for {writing:.3f} ms")
    print(f"kept in {keep('engine', measured)}")


if __name__ == "__main__":
    main()
