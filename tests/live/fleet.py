"""A few hosts in memory under a real engine and a real AgentPool, in virtual time: they image, copy, move and die.

A host's images outlive its death; its ranks do not, unless only the line to it was cut.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidewright.engine import events as ev
from tidewright.engine.commands import Command, PlanRequest, Reply
from tidewright.engine.engine import Engine
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.fabric.protocol import FabricNode, OnNode, OnReport, Refused, Unknown
from tidewright.live.reconcile.agent_pool import AgentPool
from tidewright.model.job import JobSpec, State
from tidewright.model.node import NodeSpec, Part
from tidewright.model.view import View
from tidewright.plan.moves import Move, Resume, Start
from tidewright.plan.plan import Plan
from tidewright.wire import agent as wire

SHORT_S = 0.05
NODE_TIMEOUT_US = 2_000_000
Key = tuple[int, int]


class Spread:
    """Starts and resumes waiting jobs in order of id, on the first free devices of whatever nodes."""

    def plan(self, view: View) -> Plan:
        board, moves = view.board(), []
        for row in sorted(range(view.jobs.n), key=lambda row: int(view.jobs.id[row])):
            if view.jobs.waiting[row]:
                move = self._place(view, board, row)
                if move is not None:
                    moves.append(move)
        return Plan(view.revision, tuple(moves))

    def _place(self, view: View, board: Any, row: int) -> Move | None:
        job, need = int(view.jobs.id[row]), int(view.jobs.demand[row])
        parts: list[Part] = []
        for node, free in enumerate(board.free):
            home = int(view.jobs.pinned_node[row])
            if not need or not board.up >> node & 1 or (home >= 0 and home != node):
                continue
            bits = [bit for bit in range(64) if free >> bit & 1][:need]
            if bits:
                parts.append(Part(node, sum(1 << bit for bit in bits)))
                need -= len(bits)
        if need:
            return None
        board.acquire(tuple(parts))
        kind = Start if int(view.jobs.state[row]) == State.QUEUED else Resume
        return kind(job, tuple(parts), "it fits")


class Ranks:
    """All ranks of one attempt on one host. ``command`` is ("work", seconds)."""

    def __init__(self, args: wire.LaunchArgs, since: float) -> None:
        self.args, self.since = args, since
        self.left_s = float(args.command[1])
        self.report = wire.JobReport(job=args.job, attempt=args.attempt, state="starting", verb="launch", level=4)
        self.timer: asyncio.TimerHandle | None = None
        self.ops: set[str] = set()

    @property
    def numbers(self) -> tuple[int, ...]:
        return tuple(seat.rank for seat in self.args.ranks)

    @property
    def devices(self) -> set[int]:
        return {device for seat in self.args.ranks for device in seat.devices}

    @property
    def holds(self) -> bool:
        return self.report.state not in ("suspended", "exited", "failed")


class Host:
    """One agent with its ranks and its images (job, serial) to rank to the work that was left."""

    def __init__(self, fleet: Fleet, name: str, devices: int) -> None:
        self.fleet, self.name = fleet, name
        self.spec = NodeSpec(name=name, kind="cpu", devices=devices, full=True)
        self.peer = wire.Peer(name, "127.0.0.1", 7000 + len(fleet.hosts))
        self.ranks: dict[Key, Ranks] = {}
        self.images: dict[tuple[int, int], dict[int, float]] = {}
        self.connected = True
        self.dead = False
        self.boots = 1

    def serve(self, method: str, args: Any, op_id: str) -> Any:
        if method == "inventory":
            jobs = tuple(ranks.report for _, ranks in sorted(self.ranks.items()))
            images = tuple((*key, rank) for key, held in sorted(self.images.items()) for rank in sorted(held))
            return wire.Inventory(
                node=self.spec,
                incarnation=f"boot-{self.boots}",
                epoch=1,
                pid=1,
                jobs=jobs,
                peer=self.peer,
                images=images,
            )
        return getattr(self, method)((args.job, args.attempt), args, op_id)

    # -- verbs ------------------------------------------------------------------------------------------------------

    def launch(self, key: Key, args: wire.LaunchArgs, op_id: str) -> wire.JobReport:
        if key not in self.ranks:
            self._check_peers(args)
            where = args.master_addr, args.master_port
            if self.fleet.meets.setdefault(key, where) != where:
                self.fleet.wrong.append(f"{key} meets at {self.fleet.meets[key]}, and on {self.name} at {where}")
            ranks = self.ranks[key] = Ranks(args, self.fleet.now())
            self._take(ranks)
            self._soon(ranks, self._begin, "launch")
        return self.ranks[key].report

    def _begin(self, ranks: Ranks, verb: str) -> None:
        args = ranks.args
        if args.image:
            error = self._bring(args)
            if error and verb == "launch":
                self._set(ranks, state="failed", fault="world", error=error)
                return
            if error:
                self._set(ranks, state="suspended", verb="resume", error=error)
                return
            ranks.left_s = max(self.images[args.job, args.image][rank] for rank in ranks.numbers)
            self.fleet.comebacks.append((args.job, args.image))
        ranks.since = self.fleet.now()
        self._set(ranks, state="running", verb=verb, error="", took_us=9)
        ranks.timer = asyncio.get_running_loop().call_later(ranks.left_s, self._end, ranks)

    def _bring(self, args: wire.LaunchArgs) -> str:
        """Fetch the images of the ranks that belong here; why not."""
        if self.fleet.dice.random() < self.fleet.trouble / 2:
            return "no luck with this restore"
        held = self.images.setdefault((args.job, args.image), {})
        for seat in args.ranks:
            for peer in args.sources:
                other = self.fleet.hosts[peer.node]
                if seat.rank not in held and not other.dead and other.connected:
                    held.update(
                        {r: left for r, left in other.images.get((args.job, args.image), {}).items() if r == seat.rank}
                    )
            if seat.rank not in held:
                return f"image {args.image}, rank {seat.rank}, cannot be had"
        return ""

    def _end(self, ranks: Ranks) -> None:
        self.fleet.finished.append((ranks.args.job, ranks.numbers))
        self._set(ranks, state="exited", verb="", code=0)

    def suspend(self, key: Key, args: wire.SuspendArgs, op_id: str) -> wire.JobReport:
        ranks = self._known(key)
        if op_id in ranks.ops or ranks.report.state != "running":
            return ranks.report
        ranks.ops.add(op_id)
        if self.fleet.dice.random() < self.fleet.trouble:
            return self._set(ranks, state="running", verb="suspend", error="no luck with this dump")
        self._pause(ranks)
        self._set(ranks, state="suspending", verb="suspend", error="")
        self._soon(ranks, self._away, args.serial)
        return ranks.report

    def _away(self, ranks: Ranks, serial: int) -> None:
        image = self._save(ranks, serial) if serial else None
        self._set(ranks, state="suspended", took_us=5, image=image)
        if serial:
            self._store(ranks, serial)

    def checkpoint(self, key: Key, args: wire.CheckpointArgs, op_id: str) -> wire.JobReport:
        ranks = self._known(key)
        bad = self.fleet.dice.random() < self.fleet.trouble or ranks.report.state != "running"
        if bad:
            self.fleet.tell(self.name, msgspec.structs.replace(ranks.report, verb="checkpoint", error="no luck"))
            return ranks.report
        ranks.left_s -= self.fleet.now() - ranks.since
        ranks.since = self.fleet.now()
        ranks.report = msgspec.structs.replace(ranks.report, image=self._save(ranks, args.serial))
        self._store(ranks, args.serial)
        return ranks.report

    def _save(self, ranks: Ranks, serial: int) -> wire.ImageReport:
        self.images[ranks.args.job, serial] = dict.fromkeys(ranks.numbers, ranks.left_s)
        return wire.ImageReport(serial=serial, ranks=ranks.numbers, size_bytes=100, hold_us=3, save_us=4)

    def _store(self, ranks: Ranks, serial: int) -> None:
        """Into the store, behind; reported in whatever state the attempt is by then."""

        def stored() -> None:
            if self.dead or ranks.report.image is None or ranks.report.image.serial > serial:
                return
            image = msgspec.structs.replace(ranks.report.image, stored=True)
            ranks.report = msgspec.structs.replace(ranks.report, image=image)
            if self.ranks.get((ranks.args.job, ranks.args.attempt)) is ranks:
                self.fleet.tell(self.name, msgspec.structs.replace(ranks.report, verb="checkpoint", error=""))
            self._keep(ranks.args.job)

        asyncio.get_running_loop().call_later(2 * SHORT_S, stored)

    def _keep(self, job: int) -> None:
        for key in sorted(key for key in self.images if key[0] == job)[:-2]:
            del self.images[key]

    def resume(self, key: Key, args: wire.ResumeArgs, op_id: str) -> wire.JobReport:
        if args.launch is not None and key not in self.ranks:
            self.ranks[key] = Ranks(args.launch, self.fleet.now())
            self._set(self.ranks[key], state="suspended")
        ranks = self._known(key)
        if op_id in ranks.ops or ranks.report.state not in ("suspended", "suspending"):
            return ranks.report
        ranks.ops.add(op_id)
        if args.launch is not None:
            self._check_peers(args.launch)
            ranks.args = args.launch
        self._take(ranks)
        self._set(ranks, state="resuming", verb="resume", error="")
        self._soon(ranks, self._begin, "resume")
        return ranks.report

    def fetch(self, key: Key, args: wire.FetchArgs, op_id: str) -> wire.JobReport:
        held = self.images.setdefault((args.job, args.serial), {})
        for peer in args.sources:
            other = self.fleet.hosts[peer.node]
            if not other.dead and other.connected:
                there = other.images.get((args.job, args.serial), {})
                held.update({rank: left for rank, left in there.items() if rank in args.ranks})
        error = "" if all(rank in held for rank in args.ranks) else "cannot be had"
        if not held:
            del self.images[args.job, args.serial]
        self._keep(args.job)
        image = wire.ImageReport(serial=args.serial, ranks=args.ranks, stored=not error)
        report = wire.JobReport(
            job=args.job, attempt=args.attempt, state="exited", verb="fetch", error=error, image=image
        )
        self.fleet.tell(self.name, report)
        return msgspec.structs.replace(report, image=None, error="", verb="fetch")

    def stop(self, key: Key, args: wire.StopArgs, op_id: str) -> wire.JobReport:
        ranks = self.ranks.get(key)
        if ranks is None:
            return wire.JobReport(job=key[0], attempt=key[1], state="exited", verb="stop", lost=True)
        if ranks.report.state not in ("stopping", "exited", "failed"):
            self._set(ranks, state="stopping", verb="stop")
            self._soon(ranks, lambda ranks: self._set(ranks, state="exited", code=143))
        return ranks.report

    def forget(self, key: Key, args: wire.ForgetArgs, op_id: str) -> wire.JobReport:
        ranks = self.ranks.get(key)
        if args.images:
            for held in [held for held in self.images if held[0] == key[0]]:
                del self.images[held]
        if ranks is None:
            return wire.JobReport(job=key[0], attempt=key[1], state="exited", why="not here")
        if ranks.report.state not in ("exited", "failed") and not args.left:
            raise Refused(f"job {key[0]} is {ranks.report.state}")
        if ranks.timer is not None:
            ranks.timer.cancel()
        del self.ranks[key]
        return wire.JobReport(job=key[0], attempt=key[1], state="exited")

    # -- small words ------------------------------------------------------------------------------------------------

    def _check_peers(self, args: wire.LaunchArgs) -> None:
        if args.world_size > len(args.ranks) and len(args.peers) < 2:
            self.fleet.wrong.append(f"{args.job}.{args.attempt} on {self.name} knows no peers")
        elif args.peers and (args.peers[0].node == self.name) != any(seat.rank == 0 for seat in args.ranks):
            self.fleet.wrong.append(f"{args.job}.{args.attempt} on {self.name} is to meet at {args.peers[0].node}")

    def _known(self, key: Key) -> Ranks:
        if key not in self.ranks:
            raise Refused(f"{key} is not on this node")
        return self.ranks[key]

    def _take(self, ranks: Ranks) -> None:
        for other in self.ranks.values():
            if other is not ranks and other.holds and other.devices & ranks.devices:
                self.fleet.wrong.append(f"{self.name}: {ranks.report.job} was given devices of {other.report.job}")

    def _pause(self, ranks: Ranks) -> None:
        ranks.left_s -= self.fleet.now() - ranks.since

    def _soon(self, ranks: Ranks, work: Callable[..., Any], *args: Any) -> None:
        if ranks.timer is not None:
            ranks.timer.cancel()
        ranks.timer = asyncio.get_running_loop().call_later(SHORT_S, lambda: work(ranks, *args))

    def _set(self, ranks: Ranks, **changes: Any) -> wire.JobReport:
        ranks.report = msgspec.structs.replace(ranks.report, **changes)
        self.fleet.tell(self.name, ranks.report)
        return ranks.report

    def die(self) -> None:
        """The power goes: ranks are gone, images stay on the disk."""
        self.dead, self.connected = True, False
        for ranks in self.ranks.values():
            if ranks.timer is not None:
                ranks.timer.cancel()
        self.ranks.clear()


class Fleet:
    """The hosts as a fabric. ``trouble``: how often a dump fails; half as often a restore does."""

    def __init__(self, hosts: int, devices: int, seed: int = 0, trouble: float = 0.0) -> None:
        self.dice, self.trouble = random.Random(seed), trouble
        self.hosts: dict[str, Host] = {}
        for number in range(hosts):
            self.hosts[f"n{number}"] = Host(self, f"n{number}", devices)
        self.meets: dict[Key, tuple[str, int]] = {}
        """Where the ranks of an attempt meet, as of their launch."""
        self.wrong: list[str] = []
        self.finished: list[tuple[int, tuple[int, ...]]] = []
        self.comebacks: list[tuple[int, int]] = []
        self._on_node: OnNode | None = None
        self._on_report: OnReport | None = None

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def nodes(self) -> list[FabricNode]:
        return [self._node(host) for host in self.hosts.values()]

    @staticmethod
    def _node(host: Host) -> FabricNode:
        return FabricNode(
            name=host.name, incarnation=f"boot-{host.boots}", address=host.name, alive=host.connected, spec=host.spec
        )

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        self._on_node, self._on_report = on_node, on_report
        for host in self.hosts.values():
            if host.connected:
                asyncio.get_running_loop().call_soon(on_node, self._node(host))

    def connect(self, name: str, alive: bool) -> None:
        """Cut a host off, or let it be reached again."""
        host = self.hosts[name]
        if host.connected != alive:
            host.connected = alive
            host.dead = False if alive else host.dead
            if self._on_node is not None:
                self._on_node(self._node(host))

    def kill(self, name: str) -> None:
        """A host dies with its ranks."""
        host = self.hosts[name]
        was = host.connected
        host.die()
        if was and self._on_node is not None:
            self._on_node(self._node(host))

    def tell(self, name: str, report: wire.JobReport) -> None:
        host = self.hosts[name]

        def arrive() -> None:
            if host.connected and self._on_report is not None:
                self._on_report(name, report)

        asyncio.get_running_loop().call_soon(arrive)

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        host = self.hosts[node]
        await asyncio.sleep(0.001)
        if not host.connected:
            raise Unknown("no answer")
        answer = host.serve(method, msgspec.convert(args, wire.ARGS[method]), op_id)
        await asyncio.sleep(0.001)
        if not host.connected:
            raise Unknown("no answer")
        return msgspec.to_builtins(answer)

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        raise AssertionError("no controller copies files between nodes")

    async def close(self) -> None:
        self._on_node = self._on_report = None


class Site:
    """The engine and one AgentPool after the other around a fleet; a run loop without a disk."""

    def __init__(self, fleet: Fleet, settings: EngineSettings | None = None) -> None:
        self.fleet = fleet
        self.engine = Engine(settings or live_settings(auto_level=4, gang_level=4))
        self.events: list[ev.Event] = []
        self.replies: dict[str, Reply] = {}
        self._inbox: list[Any] = []
        self._waker = asyncio.Event()
        self._life = 0
        self.begin()

    @property
    def book(self) -> Any:
        return self.engine.book

    def begin(self) -> None:
        """A controller that knows the book and nothing else."""
        self._life += 1
        life = self._life
        self._inbox.clear()

        def put(item: Any) -> None:
            if life == self._life:
                self._inbox.append(item)
                self._waker.set()

        def between(work: Any) -> None:
            put(work)

        self.agent_pool = AgentPool(self.fleet, self.book, life, put, between, put, NODE_TIMEOUT_US)
        self.put = put
        self.agent_pool.start()
        if self.book.planning:  # what the controller before it had asked for is lost
            self._plan()

    async def again(self) -> None:
        """The controller dies and another one takes over."""
        old = self.agent_pool
        self._life += 1
        self._inbox.clear()
        await old.close()
        self.begin()

    async def run(self) -> None:
        """Until cancelled: gather, step, plan, carry out."""
        while True:
            due = self.engine.due()
            left = None if due is None else max(0.0, due / 1e6 - self.fleet.now()) + 1e-6
            try:
                await asyncio.wait_for(self._waker.wait(), left)
            except TimeoutError:
                self._inbox.append(ev.Tick())
            self._waker.clear()
            items, self._inbox = self._inbox, []
            events: list[ev.Event] = []
            for item in items:
                events += item() if callable(item) else [item]
            if events:
                self.events += events
                self._step(events)

    def _step(self, events: list[ev.Event]) -> None:
        commands: list[Command] = self.engine.step(int(self.fleet.now() * 1e6), events)
        for command in commands:
            if isinstance(command, Reply):
                self.replies[command.op_id] = command
            elif isinstance(command, PlanRequest):
                self._plan()
        self.agent_pool.carry_out(commands, events)

    def _plan(self) -> None:
        self.put(ev.PlanReady(Spread().plan(self.engine.view())))

    async def until(self, true: Callable[[], bool], seconds: float = 120.0) -> None:
        end = self.fleet.now() + seconds
        while not true():
            assert self.fleet.now() < end, self.story()
            await asyncio.sleep(0.05)

    def story(self) -> str:
        return "\n".join(
            f"job {job} {self.book.state(job).name}:\n{self.book.format_history(job)}" for job in self.book.specs
        )

    def state(self, job: int) -> str:
        return self.book.state(job).name if job in self.book.specs else "ENDED"

    async def submit(self, seconds: float, **spec: Any) -> int:
        """Submit, and wait until it runs."""
        op = f"op{len(self.replies)}"
        self.put(ev.Submit(JobSpec(command=("work", str(seconds)), **spec), op))
        await self.until(lambda: op in self.replies)
        job = self.replies[op].job
        assert job > 0, self.replies[op]
        return job

    def where(self, job: int) -> list[str]:
        """Hosts on which ranks of the job run."""
        return [
            host.name for host in self.fleet.hosts.values()
            if any(key[0] == job and ranks.report.state == "running" for key, ranks in host.ranks.items())
        ]  # fmt: skip

    def assert_clean(self) -> None:
        """Nothing is left of anything, anywhere."""
        assert self.fleet.wrong == [], self.fleet.wrong
        for host in self.fleet.hosts.values():
            assert host.ranks == {} and host.images == {}, (host.name, host.ranks, host.images)
        reconciler = self.agent_pool.reconciler
        assert reconciler._reports == {} and reconciler._attempts == {} and reconciler._undone == {}
        assert reconciler.registry._held == {} and reconciler.registry._sent == {} and reconciler.registry.made == {}
        assert reconciler.copies._requested == {} and reconciler.copies._reported == {}
