"""The live pool simulated forward: a fork of its engine, the planner that runs, and a simulated world that goes on from now.

It refuses to know how long jobs truly run: that is drawn for it. The engine itself ends those that run beyond their limit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import msgspec

from ..base.units import SECOND
from ..engine import events as ev
from ..engine.book import Book
from ..engine.commands import Command, Ended, Launch, PlanRequest, Reply
from ..engine.engine import Engine
from ..engine.ledger import run_time_us
from ..engine.rates import estimator
from ..estimate.cost import LAUNCH_US
from ..model.cause import Cause
from ..model.job import Level, State
from ..model.job_record import JobRecord
from ..model.rate import FULL_RATE, lasts_us, progress_us
from ..plan.plan import Planner
from ..sim.agenda import Agenda
from ..sim.costs import Cost, Costs, recorded_cost
from ..sim.faults import Faults, FaultSettings
from ..sim.meter import PoolMeter
from ..sim.world import REQUEUE_CODE, SIGTERM_CODE, SimulatedWorld, Truth
from .draws import UNENDING_US, Arrival, work_us
from .trial import Enough

_STOP_US = 1 * SECOND
"""How long a job takes to end on SIGTERM that does not ignore it."""
_PREFIX = "forecast."
"""Of the ids of submissions to come."""


class ForwardRun:
    """One future of a pool. ``started`` and ``ended``: jobs to when they next run, and when they end, absolute microseconds;
    ``why_ended``: jobs to why they end."""

    def __init__(self, image: bytes, planner: Planner, costs: Costs, dice: Random, to_come: Iterator[Arrival]) -> None:
        engine = self.engine = Engine.restore(image)
        quiet = msgspec.structs.replace(
            engine.settings, checkpoints=False, forecasts=False, history_length=0, explained=False, check_every=1 << 30
        )
        engine.enforce(quiet)
        self.planner, self.to_come, self.dice = planner, to_come, dice
        self.agenda = Agenda()
        rates = estimator(engine.book)
        self.world = SimulatedWorld(
            engine.book.board.layout.nodes, self.agenda, PoolMeter(), costs, Faults(FaultSettings()), rates,
            dice.randrange(1 << 30),
        )  # fmt: skip
        self.started: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.why_ended: dict[int, Cause] = {}
        self.turns = 0
        self._admitted: dict[str, int] = {}
        """Submission to the run time drawn for it."""
        self._next = next(to_come, None)
        self._enough: Enough = lambda: False
        _populate(engine.book, self.world, dice)
        engine.replan()

    @property
    def now(self) -> int:
        """How far it has gone, absolute microseconds."""
        return self.engine.book.now

    def run(self, over: Callable[[], bool], horizon: int, enough: Enough) -> bool:
        """Go on until ``over``, or until ``horizon`` is passed. False when ``enough`` said so before, in mid-step even."""
        self._enough = enough
        if not self.turns:
            self._step(self.now, [ev.Tick()])
        while not over():
            if enough():
                return False
            now = self._next_instant()
            if now is None or now > horizon:
                return True
            self._turn(now)
            self.turns += 1
        return True

    def end_of(self, job: int) -> int:
        """When a job ends that has not yet, if nothing happens to it any more; -1: it runs on."""
        book = self.engine.book
        if job in self.ended or job not in book.specs:  # it may have ended in the very step that was cut short
            return self.ended.get(job, self.now)
        truth = self.world.jobs[job]
        since = max(truth.since, self.now) if truth.allocation else self.now
        done = truth.done + progress_us(max(self.now - truth.since, 0), truth.rate) if truth.allocation else truth.done
        limit = book.specs[job].max_duration_us
        ends = [since + max(limit - run_time_us(book, job), 0)] if limit else []
        if truth.duration < UNENDING_US:
            ends.append(since + lasts_us(max(truth.duration - done, 0), truth.rate or FULL_RATE))
        return min(ends, default=-1)

    def _next_instant(self) -> int | None:
        coming = self._next.at if self._next is not None else None
        times = [at for at in (self.agenda.next(), self.engine.due(), coming) if at is not None]
        return max(min(times), self.now) if times else None

    def _turn(self, now: int) -> None:
        events = self.world.deliver(now, self.agenda.take(now))
        for event in events:
            if isinstance(event, ev.Started | ev.Resumed):
                self.started.setdefault(event.job, now)
        while self._next is not None and self._next.at <= now:
            arrival, name = self._next, f"{_PREFIX}{len(self._admitted)}"
            self._admitted[name] = arrival.total_us
            events.append(ev.Submit(arrival.spec, name))
            self._next = next(self.to_come, None)
        self._step(now, events or [ev.Tick()])

    def _step(self, now: int, events: list[ev.Event]) -> None:
        commands = self.engine.step(now, events)
        while commands and not self._enough():  # a step of many planning rounds takes seconds where many jobs wait
            ready: list[ev.Event] = []
            for command in commands:
                if isinstance(command, PlanRequest):
                    ready.append(ev.PlanReady(self.planner.plan(self.engine.view())))
                else:
                    self._carry_out(now, command)
            commands = self.engine.step(now, ready) if ready else []

    def _carry_out(self, now: int, command: Command) -> None:
        if isinstance(command, Reply):
            self._answered(command)
        elif isinstance(command, Ended):
            self.ended[command.job], self.why_ended[command.job] = now, command.why
            if command.job in self.world.jobs:
                self.world.forget(command.job)
        else:
            if (
                isinstance(command, Launch) and command.job not in self.world.jobs
            ):  # a replica that its service has made
                self._admit(command.job, 0)
            self.world.obey(now, command)

    def _answered(self, reply: Reply) -> None:
        total = self._admitted.get(reply.op_id)
        if total is None or reply.error:
            return
        self._admit(reply.job, total)

    def _admit(self, job: int, total: int) -> None:
        """Let the world know a job that was made after the snapshot; ``total`` 0: its run time is drawn."""
        book = self.engine.book
        spec = book.specs[job]
        self.world.admit(job, job, total or work_us(book.run_times, spec, 0, self.dice), spec)


def _populate(book: Book, world: SimulatedWorld, dice: Random) -> None:
    """The world as it is now, with a run time drawn for every job."""
    ideal = book.view().jobs.ideal_now
    for job, record in book.jobs.items():
        done = ideal.item(book.table.row[job])
        truth = Truth(job, work_us(book.run_times, record.spec, done, dice), record.spec, record.reference)
        truth.done, truth.attempt, truth.allocation = done, record.attempt, record.allocation or ()
        truth.images = {image.serial: image.ideal_us for image in record.images}
        world.jobs[job] = truth
        _go_on(book, world, job, record, truth, dice)


def _go_on(book: Book, world: SimulatedWorld, job: int, record: JobRecord, truth: Truth, dice: Random) -> None:
    """What is under way for a job, and what comes of it."""
    now, state, attempt = book.now, State(record.state), record.attempt
    if state is State.STARTING:
        world.run_on(now + world.launch_us(truth, attempt), truth, ev.Started(job, attempt), job, attempt)
    elif state is State.RESUMING:
        takes = world.takes_us(truth, "restore")
        world.run_on(now + takes, truth, ev.Resumed(job, attempt, takes), job, attempt)
    elif state is State.RUNNING:
        saving = record.saving
        takes = world.takes_us(truth, "checkpoint") if saving is not None else 0
        imaged = ev.Checkpointed(job, attempt, saving.serial, takes) if saving is not None else None
        world.run_on(now + takes, truth, imaged, job, attempt)
    elif state is State.SUSPENDING:
        takes = world.takes_us(truth, "save")
        gone = book.true_level(job) <= Level.COOPERATIVE
        serial = record.saving.serial if record.saving is not None else 0
        if serial:
            truth.images[serial] = truth.done
        answer = ev.Exited(job, attempt, REQUEUE_CODE) if gone else ev.Suspended(job, attempt, takes, serial)
        truth.durable = truth.done if gone else 0
        world.agenda.put(now + takes, answer, job, truth.epoch)
    elif state is State.STOPPING:
        takes = _stop_us(record, now, dice)
        world.agenda.put(now + takes, ev.Exited(job, attempt, SIGTERM_CODE), job, truth.epoch)


def _stop_us(record: JobRecord, now: int, dice: Random) -> int:
    """How long a job still takes to end that is being stopped: it ends on SIGTERM, or is killed once its grace is over."""
    since = next((at for at, label, _ in reversed(record.history) if label == State.STOPPING.name), now)
    return dice.choice((_STOP_US, max(since + record.spec.grace_us - now, _STOP_US)))


_PAIRS = {
    ("STARTING", "RUNNING"): "launch_us", ("SUSPENDING", "SUSPENDED"): "save_us", ("RESUMING", "RUNNING"): "restore_us",
}  # fmt: skip


def learnt_costs(book: Book) -> Costs:
    """What operations have taken of late, as distributions, by the histories of the jobs that are there."""
    took: dict[str, list[int]] = {name: [] for name in _PAIRS.values()}
    for record in book.jobs.values():
        for before, after in zip(record.history, record.history[1:], strict=False):
            name = _PAIRS.get((before[1], after[1]))
            if name is not None:
                took[name].append(after[0] - before[0])
    usual = {"launch_us": LAUNCH_US, "save_us": book.settings.save_us, "restore_us": book.settings.restore_us}
    learnt: dict[str, Cost] = {
        name: recorded_cost(samples) if samples else usual[name] for name, samples in took.items()
    }
    return Costs(launch_us=learnt["launch_us"], save_us=learnt["save_us"], restore_us=learnt["restore_us"])
