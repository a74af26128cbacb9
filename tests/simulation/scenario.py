"""One seed of the simulation: a few nodes, some jobs, half a minute of everything that can happen, and then peace."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any

from tests.live import virtual
from tests.live.fleet import Site
from tidewright.engine import events as ev
from tidewright.engine.commands import Ended
from tidewright.engine.settings import live_settings
from tidewright.model.job import JobSpec, State

from .answers import Answers
from .network import Network
from .node import Node
from .training import Ledger

TICK_S = 0.05
PEACE_S = 4000.0
"""Virtual seconds in which every job must end once nothing goes wrong any more: hosts of a rendezvous are waited for 900 s."""
STANDS_S = 120.0
"""How long ranks may stand still that are to run: a decision on their cut is waited for 75 s."""


class Control(Site):
    """A controller that may die between a durable step and what follows from it."""

    def __init__(self, network: Network, settings: Any, answers: Answers) -> None:
        self.kills, self.answers = 0.0, answers
        self.ended: dict[int, list[Ended]] = {}
        self.dice, self.network = network.dice, network
        super().__init__(network, settings)  # type: ignore[arg-type]

    def _step(self, events: list[ev.Event]) -> None:
        if self.dice.random() < self.kills:
            world, self.agent_pool.carry_out = self.agent_pool, lambda commands, events: None  # type: ignore[method-assign]
            super()._step(events)
            self._note(events)
            asyncio.get_running_loop().create_task(self._die(world))
        else:
            super()._step(events)
            self._note(events)

    def _note(self, events: list[ev.Event]) -> None:
        self.answers.note(events, self.book.out, self.fleet.now())
        self.answers.left(self.book)
        for event in events:
            if isinstance(event, ev.Checkpointed | ev.Suspended) and event.serial:
                self._check_moment(event.job, event.serial)
        for command in self.book.out:
            if isinstance(command, Ended):
                self.ended.setdefault(command.job, []).append(command)

    def _check_moment(self, job: int, serial: int) -> None:
        """All parts of an image that counts are of one moment: ranks of a gang train step by step with each other."""
        disks = [node.disk for node in self.network.nodes_by_name.values()]
        parts = [held.get((job, serial), {}) for disk in disks for held in (disk.raw, disk.store)]
        if len({steps for part in parts for steps in part.values()}) > 1:
            self.answers.wrong.append(f"image {serial} of job {job} is of several moments: {parts}")

    async def _die(self, world: Any) -> None:
        if self.agent_pool is world:
            await self.again()


class Scenario:
    """``run`` raises AssertionError with the seed and the story of every job."""

    peace_s = PEACE_S
    strict = False
    """Also every request is answered some time after trouble has ended."""

    def __init__(self, seed: int) -> None:
        self.seed, self.dice = seed, random.Random(seed)
        self.log: list[str] = []
        self.ledger = Ledger()
        self.answers = Answers(self.ledger.wrong)

    def run(self) -> Ledger:
        logging.disable()
        random.seed(self.seed)  # pauses between tries of a call
        try:
            virtual.run(self._main())
        except BaseException as error:
            told = "\n".join(self.log[-60:])
            raise AssertionError(f"seed {self.seed}: {type(error).__name__}: {error}\n{told}") from error
        finally:
            logging.disable(logging.NOTSET)
        return self.ledger

    def _note_unhandled(self, _: asyncio.AbstractEventLoop, what: dict[str, Any]) -> None:
        if "exception" in what:  # tasks of a controller that died are destroyed while they wait
            self.ledger.wrong.append(f"{what}")

    async def _main(self) -> None:
        dice = self.dice
        asyncio.get_running_loop().set_exception_handler(self._note_unhandled)
        self.network = Network(dice, 0.1)
        sizes = self._sizes()
        self.nodes = {f"n{number}": Node(f"n{number}", size, dice, self.network, self.ledger) for number, size in sizes}
        self.network.nodes_by_name = self.nodes
        for node in self.nodes.values():
            node.refuses = self.answers.refuses
            node.start()
        level = dice.choice([4, 4, 1])
        self.site = Control(self.network, live_settings(auto_level=level, gang_level=4), self.answers)
        self.network.wants = lambda node, key: self.site.agent_pool.reconciler.expects(node, key)
        tasks = [asyncio.ensure_future(work) for work in (self.site.run(), self._train())]
        acting = asyncio.ensure_future(self._act())
        await asyncio.wait({*tasks, acting}, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                acting.cancel()
                await task
        await acting
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.site.agent_pool.close()

    def _sizes(self) -> list[tuple[int, int]]:
        """The number of each node, and of its devices."""
        return [(number, self.dice.choice([2, 2, 4])) for number in range(self.dice.choice([1, 2, 3, 3, 4]))]

    async def _train(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self.ledger.train([process for node in self.nodes.values() for process in node.processes])
            self._check()

    def _check(self) -> None:
        """No device is held twice."""
        for node in self.nodes.values():
            held: dict[int, tuple[int, int]] = {}
            for process in node.processes:
                if process.alive and process.key not in node.disk.attempts:
                    self.ledger.wrong.append(f"{process.key} on {node.name}: rank {process.rank} is of no attempt")
                # What was frozen on devices of others must run to hear that it is to end (thawed).
                if process.alive and not (process.frozen or process.dumped or process.thawed):
                    for device in process.devices:
                        if held.setdefault(device, process.key)[0] != process.key[0]:
                            self.ledger.wrong.append(
                                f"{node.name}: device {device} is held by {held[device]} and {process.key}"
                            )
            self._check_standstill(node)
        self.answers.check(self.network.now())
        assert not self.ledger.wrong, self.ledger.wrong[:3]

    def _check_standstill(self, node: Node) -> None:
        """Ranks that are to run do, sooner or later."""
        for key, state in node.attempts():
            for process in node.ranks(key):
                if process.runs or not process.alive or state.record.phase != "running":
                    process.stands_since = 0.0
                    continue
                process.stands_since = process.stands_since or self.network.now()
                if self.network.now() > process.stands_since + STANDS_S:
                    self.ledger.wrong.append(f"{key} on {node.name}: rank {process.rank} stands still, and is to run")

    # -- what happens -----------------------------------------------------------------------------------------------

    async def _act(self) -> None:
        dice = self.dice
        for number in range(dice.randint(2, 5)):
            await asyncio.sleep(dice.random())
            self._submit(number)
        self._trouble(dice.choice([0.0, 0.1, 0.3]), dice.choice([0.0, 0.001, 0.01]), dice.choice([0.0, 0.01]))
        acts = self._acts()
        for number in range(dice.randint(10, 40)):
            await asyncio.sleep(dice.random() * dice.choice([0.2, 1.0, 2.0]))
            what = dice.choice(sorted(acts))
            self._note(what)
            acts[what](f"{what}{number}")
        await self._peace()

    def _submit(self, number: int) -> None:
        dice, total = self.dice, self.dice.randint(5, 200)
        ranks = dice.choice([1, 1, 2, 4])
        room = sum(node.spec.devices for node in self.nodes.values())
        ranks = min(ranks, room)
        spec = JobSpec(
            command=("work", str(total)), ranks=ranks, devices=ranks, placement="any",
            checkpoint_us=dice.choice([-1, 700_000, 3_000_000]), grace_us=1_000_000,
        )  # fmt: skip
        self.site.put(ev.Submit(spec, f"job{number}"))

    def _trouble(self, trouble: float, kills: float, control: float) -> None:
        self._note(f"trouble {trouble}, agents die {kills}, controllers {control}")
        self.network.trouble, self.site.kills = trouble, control
        for node in self.nodes.values():
            node.trouble, node.kills = trouble, kills

    def _acts(self) -> dict[str, Callable[[str], None]]:
        def job(make: Callable[[int, str], ev.Event]) -> Callable[[str], None]:
            def act(op: str) -> None:
                jobs = list(self.site.book.specs)
                if jobs:
                    self.site.put(make(self.dice.choice(jobs), op))

            return act

        def node(act: Callable[[Node], None]) -> Callable[[str], None]:
            def choose(_: str) -> None:
                found = self.nodes[self.dice.choice(sorted(self.nodes))]
                self._note(found.name)
                act(found)

            return choose

        return {
            "hold": job(ev.Hold),
            "release": job(ev.Release),
            "release again": job(ev.Release),
            "move": job(lambda number, op: ev.Move(number, (), op)),
            "scale": job(lambda number, op: ev.Scale(number, self.dice.choice([0, 1, 2]), op)),
            "image": job(ev.TakeImage),
            "cancel": job(
                lambda number, op: ev.Cancel(number, op) if self.dice.random() < 0.2 else ev.Hold(number, op)
            ),
            "agent dies": node(lambda found: found.kill() if found.powered else None),
            "power off": node(lambda found: found.power_off() if self.dice.random() < 0.5 else None),
            "power on": node(self._power_on),
            "cut off": node(lambda found: found.connect(False)),
            "connect": node(lambda found: found.connect(True)),
            "reconnect": node(lambda found: found.connect(True)),
            "controller dies": lambda _: self._note(
                str(asyncio.get_running_loop().create_task(self.site.again()) and "")
            ),
        }

    def _power_on(self, node: Node) -> None:
        smaller = node.devices > 1 and self.dice.random() < 0.2
        node.power_on(node.devices - smaller)

    async def _peace(self) -> None:
        """Everything is up and nothing fails: every job ends, once, and nothing of any is left."""
        self._trouble(0.0, 0.0, 0.0)
        self.answers.peace = self.network.now() if self.strict else self.answers.peace
        for node in self.nodes.values():
            if node.spec.devices < node.devices:
                node.power_off()
            node.power_on(node.devices)
            node.connect(True)
        ended = self.site.book.specs
        end = self.network.now() + self.peace_s
        number = 0
        while ended:
            for job in list(self.site.book.specs):
                number += 1
                if self.site.state(job) == "HELD":
                    self.site.put(ev.Release(job, f"end{number}"))
                self.site.put(ev.Scale(job, 0, f"full{number}"))
            await asyncio.sleep(20)
            assert self.network.now() < end, f"jobs do not end\n{self.site.story()}\n{self._stand()}"
        for node in self.nodes.values():  # what else is there is found out by the next inventory
            node.connect(False)
            node.connect(True)
        await asyncio.sleep(40)
        self._clean()

    def _stand(self) -> str:
        lines = []
        for name, node in self.nodes.items():
            states = {key: each.record.phase for key, each in (node.machine.attempts if node.machine else {}).items()}
            lines.append(f"{name}: reachable {node.reachable}, {states}, {node.processes}")
        return "\n".join(lines)

    def _clean(self) -> None:
        for name, node in self.nodes.items():
            assert not node.disk.attempts, f"{name} keeps {list(node.disk.attempts)}\n{self._stand()}"
            assert not any(each.alive for each in node.processes), f"{name}: {node.processes}"
            assert not node.left(), f"{name} waits: {node.left()}"
            assert not node.disk.raw and not node.disk.store, f"{name} keeps images {node.disk.raw} {node.disk.store}"
        reconciler = self.site.agent_pool.reconciler
        assert reconciler._reports == {} and reconciler._attempts == {} and reconciler._undone == {}
        for job, ends in self.site.ended.items():
            assert len(ends) == 1, f"job {job} ended more than once: {ends}"
            good = State(ends[0].state) is State.COMPLETED
            assert not good or job in self.ledger.finished, f"job {job} is said to have ended well: {ends[0]}"

    def _note(self, text: str) -> None:
        if text:
            self.log.append(f"{self.network.now():9.3f} {text}")
