"""Running a fork: a world in which everything works at once, and whether a planner starts a job in it."""

from __future__ import annotations

from collections.abc import Callable

from ..engine import events as ev
from ..engine.book import Book
from ..engine.commands import CheckpointRanks, Command, Launch, PlanRequest, ResumeRanks, StopRanks, SuspendRanks
from ..engine.engine import Engine
from ..model.job import Level, State
from ..plan.moves import Resume, Start
from ..plan.plan import Plan, Planner

Enough = Callable[[], bool]
"""Whether a search or a forecast has taken as long as it may."""
Within = Callable[[float], Enough]
"""Whether this share of the time allowed for a question is over, counted from its beginning."""

RUNNING = (State.STARTING, State.RUNNING, State.RESUMING)
"""States of jobs that have started; those that are on their way out start again, if at all."""
_ROUNDS = 6
"""Planning rounds that a fork runs; each may free devices for the next."""


def starts(fork: Engine, planner: Planner, job: int) -> bool:
    """Whether the planner, given a world that obeys at once, gives ``job`` its devices now. The fork is changed."""
    fork.replan()
    return settle(fork, planner, [ev.Tick()], job)


def settle(fork: Engine, planner: Planner, events: list[ev.Event], job: int) -> bool:
    """Step a fork with events and everything that follows at once, until ``job`` has devices (true) or nothing more happens."""
    commands = fork.step(fork.book.now, events)
    for _ in range(_ROUNDS):
        answers = _obey(fork, planner, commands)
        if started(fork.book, job):
            return True
        if not answers:
            return False
        commands = fork.step(fork.book.now, answers)
    return started(fork.book, job)


def started(book: Book, job: int) -> bool:
    """Whether a job has devices, or has them reserved."""
    if job not in book.specs:
        return False
    return job in book.reservations or book.state(job) in RUNNING


def planned(fork: Engine, planner: Planner, job: int) -> bool:
    """Whether one plan starts a job: cheaper than ``starts``, and the fork stays as it is."""
    return starts_in(planner.plan(fork.view()), job)


def starts_in(plan: Plan, job: int) -> bool:
    """Whether a plan gives a job devices."""
    return any(isinstance(move, Start | Resume) and move.job == job for move in plan.moves)


def _obey(fork: Engine, planner: Planner, commands: list[Command]) -> list[ev.Event]:
    """Answers of a world in which everything works at once."""
    events: list[ev.Event] = []
    for command in commands:
        if isinstance(command, PlanRequest):
            plan: Plan = planner.plan(fork.view())
            events.append(ev.PlanReady(plan))
        elif isinstance(command, Launch):
            events.append(ev.Started(command.job, command.attempt))
        elif isinstance(command, ResumeRanks):
            events.append(ev.Resumed(command.job, command.attempt))
        elif isinstance(command, SuspendRanks):
            ends = command.level in (Level.REQUEUE, Level.COOPERATIVE)
            done = ev.Exited(command.job, command.attempt, 75) if ends else ev.Suspended(command.job, command.attempt)
            events.append(done)
        elif isinstance(command, CheckpointRanks):
            events.append(ev.Checkpointed(command.job, command.attempt, command.serial))
        elif isinstance(command, StopRanks):
            events.append(ev.Exited(command.job, command.attempt, 143))
    return events
