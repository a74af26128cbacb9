"""A small obedient world around an engine: tests say what happens, it answers launches and suspensions at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..drive.driver import EngineDriver, Recorder
from ..engine import commands as co
from ..engine import events as ev
from ..engine.check import check_all
from ..engine.engine import Engine
from ..engine.settings import RULES, EngineSettings
from ..model.job import JobSpec, Level, State
from ..model.node import NodeSpec
from ..plan.plan import Plan, Planner


class Idle:
    """A planner that never moves anything: tests land their own plans."""

    name = "idle"

    def plan(self, view: Any) -> Plan:
        return Plan(view.revision)


class Worldlet:
    """An engine on ``nodes`` × ``devices``. ``obey`` False leaves launches and suspensions unanswered."""

    def __init__(
        self,
        nodes: int = 2,
        devices: int = 8,
        planner: Planner | None = None,
        settings: EngineSettings | None = None,
        recorder: Recorder | None = None,
        **node: Any,
    ) -> None:
        self.engine = Engine(settings or EngineSettings(rules=RULES, check_every=1))
        self.driver = EngineDriver(self.engine, recorder)
        self.planner = planner or Idle()
        self.now = 0
        self.obey = True
        self.answers = dict(_ANSWERS)
        """What it says to a command of each type; a test may put other answers, or None for silence."""
        self.said: list[co.Command] = []
        self.ended: dict[int, co.Ended] = {}
        self.nodes = [NodeSpec(**{"name": f"n{i}", "kind": "h100", "devices": devices, **node}) for i in range(nodes)]
        self.tell(*(ev.NodeUp(spec, "1") for spec in self.nodes))

    def tell(self, *events: ev.Event) -> list[co.Command]:
        """Let these events happen now and everything that follows at once. Returns all commands given."""
        given: list[co.Command] = []
        batch = list(events)
        for _ in range(100):
            commands = self.driver.step(self.now, batch)
            if self.engine.settings.check_every > 1:  # otherwise the step has checked everything
                check_all(self.engine.book)
            given.extend(commands)
            batch = [answer for command in commands for answer in self._answers(command)]
            if not batch:
                break
        self.said.extend(given)
        self.ended.update({command.job: command for command in given if isinstance(command, co.Ended)})
        return given

    def later(self, us: int, *events: ev.Event) -> list[co.Command]:
        """The same, ``us`` microseconds later; timers due on the way fire at their time."""
        until = self.now + us
        due = self.engine.due()
        while due is not None and due < until:
            self.now = max(due, self.now)
            self.tell(ev.Tick())
            due = self.engine.due()
        self.now = until
        return self.tell(*(events or (ev.Tick(),)))

    def submit(self, devices: int = 1, **fields: Any) -> int:
        """Submit a job; returns its id. Raises AssertionError with the engine's words when refused."""
        fields = {"command": ("true",), "devices": devices, "ranks": devices, **fields}
        op_id = f"op{len(self.said)}"
        reply = self.reply(ev.Submit(JobSpec(**fields), op_id), op_id)
        assert not reply.error, reply.error
        return reply.job

    def reply(self, event: ev.Event, op_id: str) -> co.Reply:
        """The answer to a request."""
        given = self.tell(event)
        return next(command for command in given if isinstance(command, co.Reply) and command.op_id == op_id)

    def plan(self, *moves: Any, **fields: Any) -> list[co.Command]:
        """Land a plan of these moves."""
        self.engine.book.planning = True
        return self.tell(ev.PlanReady(Plan(self.engine.revision, moves, **fields)))

    def state(self, job: int) -> State:
        """Where the job stands, ended jobs included."""
        ended = self.ended.get(job)
        return State(ended.state) if ended else self.engine.book.state(job)

    def _answers(self, command: co.Command) -> list[ev.Event]:
        if isinstance(command, co.PlanRequest):
            return [ev.PlanReady(self.planner.plan(self.engine.view()))]
        answer = self.answers.get(type(command)) if self.obey else None
        said = answer(command) if answer else None
        return [said] if said else []


def _suspended(command: Any) -> ev.Event:
    if command.level in (Level.REQUEUE, Level.COOPERATIVE):
        return ev.Exited(command.job, command.attempt, 75)
    return ev.Suspended(command.job, command.attempt, 1000, command.serial)


_ANSWERS: dict[type, Callable[[Any], ev.Event | None]] = {
    co.Launch: lambda command: ev.Started(command.job, command.attempt),
    co.SuspendRanks: _suspended,
    co.ResumeRanks: lambda command: ev.Resumed(command.job, command.attempt, 500),
    co.CheckpointRanks: lambda command: ev.Checkpointed(command.job, command.attempt, command.serial, 1000),
    co.StopRanks: lambda command: ev.Exited(command.job, command.attempt, 143),
}
