"""A hostile world for the engine: random submissions, planners that propose nonsense, nodes that die, answers that lie or stall.

One seed is one history. Used by the property tests, by the determinism test under several hash seeds, and by anyone
who changes the engine: ``Swarm(seed).run(steps)`` then ``settle()``.
"""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from ..base.rng import stream
from ..drive.driver import EngineDriver
from ..engine import commands as co
from ..engine import events as ev
from ..engine.engine import Engine
from ..model.job import ArrayMember, Dependency, JobSpec, Level
from ..model.node import Allocation, DeviceFault, NodeSpec, Part
from ..model.rate import progress_us
from ..model.view import View
from ..plan.moves import Migrate, Move, Resize, Resume, Start, Stop, Suspend
from ..plan.plan import Plan, Wake
from ..plan.request import row_request
from .swarm_images import KindRandom, Memory, SwarmImages, swarm_settings
from .swarm_runs import RunTimes
from .swarm_shares import share_fields

GIB = 2**30
_TIERS = ("basic", "standard", "premium")


class Swarm:
    """An engine, a pool of ``nodes`` nodes, and a world that answers when and how it likes."""

    def __init__(self, seed: int, nodes: int = 4) -> None:
        self.rng: random.Random = stream(seed, "swarm")
        self.journal = Memory()
        self.engine = Engine(swarm_settings(seed))
        self.driver = EngineDriver(self.engine, self.journal)
        self.now = 0
        self.nodes = [self._node(index) for index in range(nodes)]
        self.honest = False
        self.dead: dict[str, bool] = {}
        self.pending: list[ev.Event] = []
        self.submitted = 0
        self.accepted: dict[int, bool] = {}
        self.ended: dict[int, int] = {}
        self.launches: dict[tuple[int, int], int] = {}
        self.alive: dict[tuple[int, int], bool] = {}
        """Attempts that have processes somewhere, frozen ones included."""
        self.images, self.runs = SwarmImages(), RunTimes()
        self.work: dict[int, tuple[int, int]] = {}
        """Job to when it was last seen and the work it had done by then."""
        self.turn([ev.NodeUp(node, "1") for node in self.nodes])

    def _node(self, index: int) -> NodeSpec:
        size = self.rng.choice((2, 4, 8))
        kind = self.rng.choice(("h100", "a100", "cpu"))
        return NodeSpec(
            name=f"n{index}", kind=kind, devices=size, device_memory=40 * GIB, cpus=32, memory=64 * GIB,
            domain=(f"rack{index // 2}",), full=self.rng.random() < 0.6,
        )  # fmt: skip

    # -- one step ---------------------------------------------------------------------------------------------------

    def turn(self, events: list[ev.Event]) -> None:
        """Step, which by these settings checks everything, and note what was said."""
        self.images.changed.clear()
        for event in events:
            if isinstance(event, ev.NodeDown):
                self.dead[event.name] = True
                self.images.lose(event.name)
            elif isinstance(event, ev.NodeUp):
                self.dead.pop(event.node.name, None)
        self.images.observe(self.engine.book, events)
        self.runs.before(self.now, events)
        commands = self.driver.step(self.now, events)
        self.runs.after(self.engine.book, commands)
        if any(isinstance(event, ev.NodeDown) for event in events):
            self._bury()
        for command in commands:
            self._note(command)
        self._weigh()

    def _weigh(self) -> None:
        """No job has done more since the last step than time allows."""
        book = self.engine.book
        table, seen = book.table, {}
        for job, row in table.row.items():
            rate, since = table.rate.item(row), table.accrued.item(row)
            done = table.ideal.item(row) + progress_us(self.now - since, rate)
            at, before = self.work.get(job, (self.now, done))
            assert done <= before + (self.now - at), f"job {job} had done {before} us at {at}, now {done} at {self.now}"
            seen[job] = self.now, done
        self.work = seen

    def _note(self, command: co.Command) -> None:
        if isinstance(command, co.Reply) and not command.error and command.op_id.startswith("s"):
            self.accepted[command.job] = True
        elif isinstance(command, co.Ended):
            assert command.job not in self.ended, f"job {command.job} ended twice"
            self.ended[command.job] = command.state
        elif isinstance(command, co.PlanRequest):
            self.pending.append(self._plan(self.engine.view()))
        elif isinstance(command, co.Launch):
            key = (command.job, command.attempt)
            assert key not in self.launches, f"attempt {key} launched twice"
            others = [alive for alive in self.alive if alive[0] == command.job]
            assert not others, f"job {command.job} launched while {others} is alive"
            self.launches[key] = 1
            if not command.image or self.images.restore(command.image_job or command.job, command.image):
                self._answer_launch(command)
            else:
                self.pending.append(ev.StartFailed(command.job, command.attempt, "no image", image_lost=True))
        elif isinstance(command, co.SuspendRanks):
            self._answer_suspend(command)
        elif isinstance(command, co.ResumeRanks):
            self._answer_resume(command)
        elif isinstance(command, co.CheckpointRanks):
            self._answer_checkpoint(command)
        elif isinstance(command, co.DropImages):
            self.images.drop(command)
        elif isinstance(command, co.StopRanks):
            self._gone(command.job, command.attempt, 143)

    # -- a world that lies ------------------------------------------------------------------------------------------

    def _answer_launch(self, command: co.Launch) -> None:
        if all(self.nodes[part.node].name in self.dead for part in command.allocation):
            return
        if self.rng.random() < 0.1:
            fault = self.rng.choice(("world", "world", "user"))
            lost = bool(command.image) and fault == "world" and self.rng.random() < 0.5
            if lost:
                self.images.spoil(command.image_job or command.job, command.image)
            part = self.rng.choice((None, *command.allocation))
            name = self.nodes[part.node].name if part else ""
            self.pending.append(ev.StartFailed(command.job, command.attempt, "no luck", fault, lost, name))
            return
        self.alive[command.job, command.attempt] = True
        self.pending.append(ev.Started(command.job, command.attempt))

    def _answer_suspend(self, command: co.SuspendRanks) -> None:
        luck = self.rng.random()
        if luck < 0.15:
            no_room = command.level == Level.FULL and luck < 0.05
            self.pending.append(ev.SuspendFailed(command.job, command.attempt, "not now", no_room))
        elif luck < 0.25 or command.level in (Level.REQUEUE, Level.COOPERATIVE):
            self._gone(command.job, command.attempt, self.rng.choice((0, 1, 75, 137, 143)))
        else:
            if command.serial:
                self._save(command)
                self.alive.pop((command.job, command.attempt), None)
            took = self.rng.randrange(1, 1000)
            self.pending.append(ev.Suspended(command.job, command.attempt, took, command.serial, took * 1000))

    def _answer_checkpoint(self, command: co.CheckpointRanks) -> None:
        luck = self.rng.random()
        if luck < 0.1 and not self.honest:
            return
        if luck < 0.3:
            failed = ev.CheckpointFailed(command.job, command.attempt, command.serial, "disk full")
            self.pending.append(failed)
            return
        self._save(command)
        self.pending.append(ev.Checkpointed(command.job, command.attempt, command.serial, self.rng.randrange(1, 600)))
        if luck < 0.6:
            node = self.rng.choice(("*", *(node.name for node in self.nodes if node.name not in self.dead)))
            self.images.copy(command.job, command.serial, node)
            self.pending.append(ev.ImageCopied(command.job, command.serial, node))

    def _save(self, command: co.SuspendRanks | co.CheckpointRanks) -> None:
        """Ranks on dead nodes leave no image, but then no answer of theirs comes either."""
        shared = ("*",) if self.engine.settings.shared_images else ()
        names = tuple(self.nodes[part.node].name for part in command.allocation)
        self.images.put(command.job, command.serial, names, shared)

    def _answer_resume(self, command: co.ResumeRanks) -> None:
        if command.serial and not self.images.restore(command.job, command.serial):
            self.pending.append(ev.ResumeFailed(command.job, command.attempt, "no image", image_lost=True))
            return
        if command.serial:
            others = [alive for alive in self.alive if alive[0] == command.job]
            assert not others, f"job {command.job} resumed from an image while {others} is alive"
        if self.rng.random() < 0.15:
            lost = self.rng.random() < 0.3
            if lost:
                self.alive.pop((command.job, command.attempt), None)
                self.images.spoil(command.job, command.serial)
            self.pending.append(ev.ResumeFailed(command.job, command.attempt, "torn", lost))
        else:
            self.alive[command.job, command.attempt] = True
            self.pending.append(ev.Resumed(command.job, command.attempt, self.rng.randrange(1, 1000)))

    def _gone(self, job: int, attempt: int, code: int, lost: bool = False) -> None:
        self.alive.pop((job, attempt), None)
        self.pending.append(ev.Exited(job, attempt, code, lost=lost))

    # -- a planner that proposes nonsense ---------------------------------------------------------------------------

    def _plan(self, view: View) -> ev.Event:
        rng = self.rng
        if not self.honest and rng.random() < 0.05:
            return ev.PlanFailed(view.revision, "the planner raised")
        jobs = [int(job) for job in view.jobs.id]
        nonsense = rng.randrange(6) if jobs and not self.honest else 0
        moves = [self._random_move(view, rng.choice(jobs)) for _ in range(nonsense)]
        waiting = [int(job) for job in view.jobs.id[view.jobs.waiting]]
        board = view.board()
        for job in waiting:
            allocation = self._place(view, job)
            if allocation and board.fits(allocation):
                board.acquire(allocation)
                moves.append(self._bring(view, job, allocation))
        gangs = ((0, 2),) if len(moves) >= 2 and rng.random() < 0.5 else ()
        at = view.now + rng.randrange(1, 5000) if rng.random() < 0.8 else 0
        return ev.PlanReady(Plan(view.revision, tuple(moves), gangs, Wake(min_free=rng.choice((0, 0, 3)), at=at)))

    def _bring(self, view: View, job: int, allocation: Allocation) -> Move:
        suspended = int(view.jobs.state[view.jobs.row[job]]) == 5
        return Resume(job, allocation, "random") if suspended else Start(job, allocation, "random")

    def _random_move(self, view: View, job: int) -> Move:
        allocation = self._place(view, job) or (Part(0, 1),)
        alone: tuple[type[Suspend | Stop], ...] = (Suspend, Suspend, Suspend, Suspend, Stop)
        moves: tuple[type[Start | Resume | Migrate | Resize], ...] = (Start, Resume, Migrate, Resize)
        if self.rng.random() < 0.5:
            return self.rng.choice(alone)(job, "random")
        return self.rng.choice(moves)(job, allocation, "random")

    def _place(self, view: View, job: int) -> Allocation:
        """Some devices the job might ask for; not always sensible ones."""
        spec, rng = view.specs[job], self.rng
        layout = view.layout
        nodes = [
            node for node, name in enumerate(layout.node_kind) if int(view.jobs.kinds[view.jobs.row[job]]) >> name & 1
        ]
        rng.shuffle(nodes)
        pinned, kind = int(view.jobs.pinned_node[view.jobs.row[job]]), int(view.jobs.restore_kind[view.jobs.row[job]])
        if kind >= 0 and (self.honest or rng.random() < 0.9):
            nodes = [node for node in nodes if layout.nodes[node].full and layout.node_kind[node] == kind]
        if pinned >= 0 and (self.honest or rng.random() < 0.9):
            nodes = [pinned]
        request = row_request(layout, spec, view.jobs, row := view.jobs.row[job])
        if spec.shares:
            node = nodes[0] if nodes else 0
            share = Part(node, 1 << rng.randrange(layout.node_size[node]), request.share_milli(node, layout))
            return request.with_resources((share,), layout)
        least, most = int(view.jobs.floor[row]), int(view.jobs.demand[row])
        wanted = least if self.honest else rng.randint(least, most)
        parts = []
        for node in nodes:
            take = min(wanted, layout.node_size[node])
            if take and (take == wanted or spec.placement != "one-node"):
                shift = rng.randrange(layout.node_size[node] - take + 1)
                parts.append(Part(node, (1 << take) - 1 << shift))
                wanted -= take
            if not wanted:
                return request.with_resources(tuple(parts), layout)
        return ()

    # -- what happens -----------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        """So many steps of random events."""
        for _ in range(steps):
            self.now += self.rng.randrange(0, 1500)
            events = self._answers()
            events.extend(self._surprise() for _ in range(self.rng.randrange(3)))
            self.turn(events or [ev.Tick()])

    def _answers(self) -> list[ev.Event]:
        """Some of the outstanding answers, out of order, some twice."""
        self.rng.shuffle(self.pending)
        cut = self.rng.randrange(len(self.pending) + 1)
        now, self.pending = self.pending[:cut], self.pending[cut:]
        if now and self.rng.random() < 0.1:
            now.append(self.rng.choice(now))
        return now

    def _surprise(self) -> ev.Event:
        rng = self.rng
        choice = rng.random()
        job = rng.randrange(1, self.submitted + 3)
        if choice < 0.40:
            return self._submission()
        if choice < 0.55 and self.alive:
            key = rng.choice(list(self.alive))
            self.alive.pop(key)
            return ev.Exited(*key, rng.choice((0, 0, 0, 1, 75, 137)), lost=rng.random() < 0.1)
        if choice < 0.62:
            return ev.Cancel(job, f"c{rng.random()}")
        if choice < 0.72:
            return ev.Hold(job, f"h{rng.random()}", rng.choice((0, self.now + 3000)))
        if choice < 0.80:
            return ev.Release(job, f"r{rng.random()}")
        if choice < 0.85:
            return ev.Scale(job, rng.randrange(0, 9), f"k{rng.random()}")
        if choice < 0.90:
            names = tuple(rng.sample([node.name for node in self.nodes], rng.randrange(3)))
            return ev.Move(job, names, f"m{rng.random()}")
        if choice < 0.91:
            return ev.TakeImage(job, f"i{rng.random()}")
        if choice < 0.93 and self.alive:
            key = rng.choice(list(self.alive))
            return ev.LevelLowered(*key, rng.randrange(4), "it does what it should not")
        return self._node_event()

    def _node_event(self) -> ev.Event:
        node = self.rng.choice(self.nodes)
        luck = self.rng.random()
        if luck < 0.12:
            return self._health(node)
        if luck < 0.2:
            return ev.NodeUp(
                replace(node, devices=self.rng.randint(1, node.devices), device_memory=self._memory()), "0"
            )
        if luck < 0.3:
            return ev.NodeDown(node.name, "power")
        if luck < 0.45:
            return ev.NodeSilent(node.name, "no answer")
        if luck < 0.6:
            return ev.NodeDrain(node.name, self.rng.random() < 0.5, "service", move=self.rng.random() < 0.5)
        return ev.NodeUp(node, str(self.rng.randrange(3)))

    def _health(self, node: NodeSpec) -> ev.NodeHealth:
        """Some of its devices, or some that it does not have, are out of service."""
        devices = self.rng.sample(range(9), self.rng.randrange(4))
        return ev.NodeHealth(
            node.name, tuple(DeviceFault(device, "too hot", self.rng.random() < 0.5) for device in devices)
        )

    def _memory(self) -> int:
        return self.rng.choice((40, 40, 24)) * GIB

    def _bury(self) -> None:
        """Attempts that the engine wrote off with a dead node are dead."""
        book = self.engine.book
        for job, attempt in list(self.alive):
            row = book.table.row.get(job)
            if row is None or book.table.attempt[row] != attempt:
                del self.alive[job, attempt]

    def _submission(self) -> ev.Submit:
        rng = self.rng
        self.submitted += 1
        devices = rng.choice((1, 1, 1, 2, 4, 8))
        share = devices == 1 and rng.random() < 0.3
        fields: dict[str, Any] = {
            "devices": devices,
            "ranks": devices,
            "min_devices": rng.choice((0, 1)),
            "tier": rng.choice(_TIERS),
            "device_types": rng.choice(((), (), ("h100",), ("a100", "cpu"))),
            **(share_fields(rng) if share else {}),
            "cpus_milli": rng.randrange(1, 4000) if rng.random() < 0.3 else 0,
            "memory": rng.randrange(1, 8) * GIB if rng.random() < 0.3 else 0,
            "retries": rng.randrange(3),
            "preempt": rng.choice(("auto", "auto", "full", "freeze", "cooperative", "requeue", "none")),
            "checkpoint_us": rng.choice((0, 0, 800, 3000, -1)),
            "placement": rng.choice(("consolidate", "one-node", "any")),
            "max_duration_us": rng.choice((0, 0, 5000)),
        }
        if rng.random() < 0.15:
            kind: Any = rng.choice(("afterok", "afternotok", "afterany"))
            fields["after"] = (Dependency(kind, rng.randrange(1, self.submitted + 1)),)
        if rng.random() < 0.2:
            fields["array"] = ArrayMember("sweep", self.submitted, 9, 2)
        spec = JobSpec(name=f"j{self.submitted}", command=("true",), **fields)
        return ev.Submit(spec, f"s{self.submitted}")

    # -- the end ----------------------------------------------------------------------------------------------------

    def settle(self, turns: int = 4000) -> None:
        """The world turns honest, users end their holds, and every accepted job must end. Raises AssertionError otherwise."""
        self.rng, self.honest = KindRandom(self.rng), True
        book = self.engine.book
        self.now += 10_000
        calm: list[ev.Event] = [ev.NodeUp(node, "9") for node in self.nodes]
        calm += [event for node in self.nodes for event in (ev.NodeHealth(node.name), ev.NodeDrain(node.name, False))]
        calm += [ev.Release(job) for job, record in book.jobs.items() if record.user_hold is not None]
        self.turn(calm)
        for _ in range(turns):
            if not book.specs:
                return
            self.now += 5000
            events, self.pending = self.pending, []
            events += [ev.Release(job) for job, record in book.jobs.items() if record.user_hold is not None]
            if self.alive and all(isinstance(event, ev.Checkpointed | ev.ImageCopied) for event in events):
                key = next(iter(self.alive))
                del self.alive[key]
                events.append(ev.Exited(*key, 0))
            self.turn(events or [ev.Tick()])
        stuck = {job: book.state(job).name for job in book.specs}
        raise AssertionError(f"never ended: {stuck}\n" + "\n".join(map(book.format_history, list(stuck)[:3])))
