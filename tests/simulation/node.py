"""One simulated node: its disk, its processes, and one agent after the other, each the real machine in a shell that can be killed
between any two actions."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tidewright.agent.machine import actions as do
from tidewright.agent.machine import events as ev
from tidewright.agent.machine.attempt import AttemptState
from tidewright.agent.machine.loop import MachineLoop
from tidewright.agent.machine.node import NodeMachine
from tidewright.agent.machine.outcomes import RankOutcome
from tidewright.agent.machine.record import AttemptRecord
from tidewright.agent.machine.scripts import Instant
from tidewright.base.errors import TideError, UsageError, WorldError
from tidewright.fabric.protocol import Fenced
from tidewright.model.node import NodeSpec
from tidewright.wire import agent as wire

from .training import Key, Ledger, Process

if TYPE_CHECKING:
    from .network import Network


class Killed(Exception):
    """The agent is dead; nothing that it was about to do happens."""


class Disk:
    """What outlives everything but the disk itself."""

    def __init__(self) -> None:
        self.attempts: dict[Key, tuple[bytes, bytes]] = {}
        """Arguments and record, encoded as on a real disk."""
        self.raw: dict[tuple[int, int], dict[int, int]] = {}
        """(job, serial) to rank to the training steps in its image."""
        self.store: dict[tuple[int, int], dict[int, int]] = {}
        self.rendezvous: dict[int, str] = {}
        """For which request the rendezvous of a job is open here."""
        self.epoch = 0


class Node:
    """``trouble``: how often a step fails; ``kills``: how often the agent dies before or in an action."""

    def __init__(self, name: str, devices: int, dice: random.Random, network: Network, ledger: Ledger) -> None:
        from .steps import Steps

        self.name, self.dice, self.network, self.ledger = name, dice, network, ledger
        self.spec = NodeSpec(name=name, kind="cpu", devices=devices, full=True)
        self.depot = wire.Peer(name, "127.0.0.1", 7000 + len(network.nodes_by_name))
        self.devices = devices
        """When it is whole."""
        self.trouble = self.kills = self.aimed_kills = 0.0
        self.picky = 0.0
        """How often a suspension or an image is refused, whatever the trouble."""
        self.unlucky: dict[type, float] = {}
        """How often steps of a kind fail, whatever the trouble."""
        self.begun: set[tuple[Key, str, str]] = set()
        """Requests that this agent was asked before."""
        self.held_for: dict[Key, int] = {}
        """The cut that a leader last held a gang's ranks for here (agent.checkpointing.gang)."""
        self.down_s = 4.0
        """How long it takes at most until another agent is started."""
        self.aim: tuple[type, ...] = ()
        """Actions before, in and after which its agent dies, ``aimed_kills`` as often."""
        self.refuses: Callable[[int, str, float], None] = lambda job, verb, now: None
        """Called when the node says anew that something asked of it could not be done."""
        self.disk, self.boots = Disk(), 1
        self.processes: list[Process] = []
        self.powered = self.online = True
        self.running = False
        self.life = 0
        self.failed: dict[int, str] = {}
        """Rendezvous that could not be prepared here: job to request."""
        self.steps = Steps(self)
        self.machine: NodeMachine | None = None
        self._loop: MachineLoop | None = None
        self._answers: dict[int, wire.JobReport | TideError] = {}
        self._holds: dict[int, Callable[[str], None]] = {}
        self._asks = 0
        self._serving = False

    @property
    def incarnation(self) -> str:
        return f"{self.name}-boot-{self.boots}"

    @property
    def reachable(self) -> bool:
        """By the controller."""
        return self.powered and self.online and self.running

    # -- lives ------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """An agent starts, and takes over what is on the disk."""
        self.life += 1
        self.running = True
        self.failed, self.begun, self.held_for = {}, set(), {}
        self.machine = NodeMachine(self.name, images=True, boot=self.incarnation)
        self._loop = MachineLoop(self.machine, self._now, self._perform)
        try:
            for key in sorted(self.disk.attempts, key=lambda key: f"{key[0]}.{key[1]}"):
                args, record = self._load(key)
                over = record.phase in ("exited", "failed")
                codes = {each.rank: each.code for each in self.ranks(key, record.generation)} if over else {}
                outcomes = {rank: RankOutcome(code) for rank, code in codes.items() if code is not None}
                self._loop.feed(ev.Adopted(args, record, (), outcomes))
        except Killed:
            return
        if self.reachable:
            self.network.connected(self.name)

    def _load(self, key: Key) -> tuple[wire.LaunchArgs, AttemptRecord]:
        args, record = self.disk.attempts[key]
        return msgspec.json.decode(args, type=wire.LaunchArgs), msgspec.json.decode(record, type=AttemptRecord)

    def kill(self, after_s: float | None = None) -> None:
        """The agent dies; ranks live on. Another one is started ``after_s``."""
        was = self.reachable
        self.life += 1
        self.running = False
        self.machine = self._loop = None
        self._holds.clear()
        if was:
            self.network.broken(self.name)
        if self.powered:
            life = self.life
            pause = self.dice.uniform(0.1, self.down_s) if after_s is None else after_s
            asyncio.get_running_loop().call_later(pause, lambda: self.start() if self.life == life else None)

    def power_off(self) -> None:
        """The agent and all ranks are gone; the disk stays."""
        self.powered = False
        self.kill()
        for process in self.processes:
            process.end(None)
        self.processes.clear()

    def power_on(self, devices: int) -> None:
        """The machine starts anew, perhaps with fewer devices than before."""
        if not self.powered:
            self.powered = True
            self.boots += 1
            self.spec = msgspec.structs.replace(self.spec, devices=devices)
            self.kill(0.0)

    def connect(self, online: bool) -> None:
        """Cut the node off, or let it be reached again."""
        if online != self.online:
            self.online = online
            if not online:
                for process in self.processes:
                    process.suspect = True
            if self.powered and self.running:
                (self.network.connected if online else self.network.broken)(self.name)

    # -- the controller's requests ----------------------------------------------------------------------------------

    def serve(self, method: str, args: Any, op_id: str, epoch: int) -> Any:
        """Raises what an agent answers with instead of a report."""
        if epoch < self.disk.epoch:
            raise Fenced("a newer controller is obeyed")
        self.disk.epoch = epoch
        assert self.machine is not None and self._loop is not None
        if method == "inventory":
            held = {**self.disk.raw, **self.disk.store}
            return wire.Inventory(
                node=self.spec,
                incarnation=self.incarnation,
                epoch=epoch,
                pid=1,
                jobs=self.machine.reports(),
                peer=self.depot,
                images=tuple(sorted((*key, rank) for key, ranks in held.items() for rank in ranks)),
            )
        self._asks += 1
        ask = self._asks
        self._serving = True
        before = self._stands(method, args, op_id)
        try:
            self._loop.feed(ev.Requested(ask, method, args, op_id))
        except Killed:
            self._answers.pop(ask, None)
            raise WorldError("the agent was killed") from None
        finally:
            self._serving = False
        if before is not None and before != self._stands(method, args, op_id):
            self.ledger.wrong.append(f"{self.name}: {op_id} was asked once more and done again")
        answer = self._answers.pop(ask)
        if isinstance(answer, TideError):
            self.refuses(args.job, method, asyncio.get_running_loop().time())
            raise answer
        return answer

    def _stands(self, method: str, args: Any, op_id: str) -> tuple[Any, ...] | None:
        """What a request that was made before must not change; None for one that is new."""
        asked = (args.job, args.attempt), method, op_id
        if asked not in self.begun:
            if op_id and method in ("launch", "suspend", "resume", "checkpoint"):
                self.begun.add(asked)
            return None
        state = self.machine.attempts.get(asked[0]) if self.machine is not None else None
        return (id(state), state.record.phase, *state.underway) if state is not None else ()

    def left(self) -> list[Any]:
        """What is asked or waited for."""
        assert self.machine is not None
        scripts = self.machine._scripts
        scripted = [each.script.__name__ for each in scripts._steps.values()]
        waiting = [each.script.__name__ for gate in scripts._gates.values() for each in gate]
        return [*scripted, *waiting, *self._answers.items(), *self._holds.items()]

    def may_hold(self, key: Key, cut: int, answer: Callable[[str], None]) -> None:
        """Another node wants to hold the ranks here; ``answer`` with why not."""
        self._asks += 1
        self._holds[self._asks] = answer
        self.feed(ev.HoldRequested(self._asks, key, cut))

    # -- the machine's actions --------------------------------------------------------------------------------------

    def feed(self, event: ev.Event) -> None:
        if self._loop is not None:
            with contextlib.suppress(Killed):
                self._loop.feed(event)

    def _now(self) -> Instant:
        now = asyncio.get_running_loop().time()
        return Instant(int(now * 1e6), now, now)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Unless the agent dies before."""
        life = self.life
        asyncio.get_running_loop().call_later(seconds, lambda: call() if self.life == life else None)

    def _perform(self, what: do.Do) -> None:
        if self.dice.random() < self.kills or self._aimed(what):
            self.kill()
            raise Killed
        if isinstance(what.action, do.Effect):
            self._effect(what.key, what.action)
        elif what.action.INSTANT:
            self._finish(what)
        else:
            self._begin(what)

    def _aimed(self, what: do.Do) -> bool:
        return isinstance(what.action, self.aim) and self.dice.random() < self.aimed_kills

    def _begin(self, what: do.Do) -> None:
        """A step that takes time: it fails, or is done before its end; an agent killed in between does not know of it."""
        slow = 40 if self.dice.random() < self.trouble / 4 else 1
        seconds = self.dice.uniform(0.001, 0.2) * slow
        if not self.steps.begin(what):
            self.later(seconds * self.dice.choice([0.2, 0.9]), lambda: self._carry_out(what, seconds * 0.1))

    def _carry_out(self, what: do.Do, rest: float) -> None:
        if self._aimed(what):
            self.kill()
            return
        error, value = None, None
        try:
            value = self.steps.carry_out(what.key, what.action)  # type: ignore[arg-type]
        except do.ActionFailed as failure:
            error = failure
        if self._aimed(what):
            self.kill()
            return
        self.later(rest, lambda: self.failed_step(what, error) if error else self.done_step(what, value))

    def _finish(self, what: do.Do) -> None:
        assert what.key is not None
        try:
            value = self.steps.carry_out(what.key, what.action)
        except do.ActionFailed as error:
            self.failed_step(what, error)
        else:
            self.done_step(what, value)

    def done_step(self, what: do.Do, value: Any) -> None:
        self.feed_inside(ev.StepDone(what.number, value))

    def failed_step(self, what: do.Do, error: do.ActionFailed) -> None:
        self.feed_inside(ev.StepFailed(what.number, error))

    def feed_inside(self, event: ev.Event) -> None:
        """From within an action, or from outside: a kill ends whatever called it first."""
        assert self._loop is not None
        if self._loop._feeding:
            self._loop.feed(event)
        else:
            self.feed(event)

    def _effect(self, key: Key | None, effect: do.Effect) -> None:
        match effect:
            case do.AnswerRequest(ask, report):
                self._answers[ask] = report
            case do.Refuse(ask, error):
                hold = self._holds.pop(ask, None)
                if hold is not None:
                    hold(str(error))
                else:
                    self._answers[ask] = error
            case do.GrantHold(ask):
                self._holds.pop(ask, lambda _: None)("")
            case do.PublishReport(report):
                if report.error and not self._serving:
                    self.refuses(report.job, report.verb, asyncio.get_running_loop().time())
                self.network.tell(self.name, report)
            case do.Log(level, text):
                if level == "bug":
                    self.ledger.wrong.append(f"{self.name}: {text}")
            case do.StartTimer(timer, seconds):
                self.later(seconds, lambda: self.feed(ev.TimerFired(timer)))
            case do.CancelTimer():
                pass  # the machine knows no cancelled timer
            case _:
                assert key is not None
                self.steps.effect(key, effect)

    def attempts(self) -> list[tuple[Key, AttemptState]]:
        """As the agent knows them, if there is one."""
        return list(self.machine.attempts.items()) if self.machine is not None else []

    # -- small words ------------------------------------------------------------------------------------------------

    def ranks(self, key: Key, generation: int | None = None) -> list[Process]:
        """Processes of an attempt."""
        return [
            each for each in self.processes if each.key == key and (generation is None or each.generation == generation)
        ]

    def usage_error(self, text: str) -> do.ActionFailed:
        return do.ActionFailed(text, cause=UsageError(text))
