"""The agents around one book: carries out commands, receives reports, reconciles nodes after a lost connection.

A thin shell around ``reconciler``: ordering, retries with back-off, and the rule that no call is made on a node between
losing it and having compared its inventory with the book.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from ...base.backoff import pause_s
from ...base.errors import WorldError
from ...base.units import SECOND
from ...engine.book import Book, forget_oldest
from ...engine.commands import Command, Ended
from ...engine.events import Checkpointed, Event, NodeDown, NodeHealth, NodeSilent, NodeUp, Suspended
from ...fabric.protocol import Fabric, FabricNode, Fenced, News, Refused, TooLarge, Unknown
from ...model.node import DeviceFault
from ...wire import agent as wire
from ..controller.port_allocator import PortAllocator
from .agent_calls import Call, CallOutcome, MasterEndpoint, with_peers
from .aggregate_reports import GONE
from .reconciler import Reconciler

log = logging.getLogger(__name__)
CALL_TIMEOUT_S = 10.0
BACKOFF_S = (0.1, 5.0)
"""Pauses between tries of one call: the first, and the longest."""
SILENT_AFTER_S = 3.0
"""How long a node may be away (its agent restarting) before nothing new is placed on it."""
PEER_WAIT_S = 10.0
"""Longest wait for the address of a gang's other agents, when a controller that has just started knows none yet."""
SHUTDOWN_FORGET_S = 2.0
"""Longest that a controller which is stopping still sends agents the ends of attempts."""
LOGS_KEPT = 20_000
"""Attempts whose reported log paths are kept; those of older ones follow a rule (logs.log_path)."""

Post = Callable[[Event], None]
Later = Callable[[Callable[[], list[Event]]], None]
Fence = Callable[[str], Coroutine[Any, Any, None]]


class AgentPool:
    """``post`` puts an event into the run loop's inbox; ``run_between_steps`` has a function called between two steps,
    when the book agrees with the journal, and feeds the events it returns to the next step; ``fenced`` ends this controller;
    ``fence`` ends what may still run on a node that is taken for dead."""

    def __init__(
        self, fabric: Fabric, book: Book, epoch: int, post: Post, run_between_steps: Later, fenced: Callable[[str], None],
        node_timeout_us: int = 30 * SECOND, fence: Fence | None = None,
    ) -> None:  # fmt: skip
        self.reconciler, self._ports = Reconciler(book, self._master_endpoint), PortAllocator()
        self.logs: dict[tuple[int, int], dict[int, tuple[str, str]]] = {}
        """(job, attempt) to rank to (node, path of its log), as reported."""
        self._fabric, self._book, self._epoch = fabric, book, epoch
        self._post, self._run_between_steps, self._fenced = post, run_between_steps, fenced
        self._open: dict[str, asyncio.Event] = {}
        self._lines: dict[tuple[str, int], asyncio.Queue[Call]] = {}
        self._forgets: dict[int, Call] = {}
        """``forget`` calls for ended attempts that are still to be made, by identity."""
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._down_timers: dict[str, list[asyncio.TimerHandle]] = {}
        self._fence = fence
        self._down_after_s = node_timeout_us / SECOND
        self._strays: dict[str, dict[tuple[int, int], bool]] = {}
        """Nodes on which attempts unknown to the book still run; they are unschedulable until those have ended."""
        self.nodes: dict[str, wire.Inventory] = {}
        """The last inventory of each connected agent."""

    def start(self) -> None:
        """Subscribe to the fabric."""
        for event in self.reconciler.unreported_ends():
            self._post(event)
        for name in self._book.nodes:
            self._start_down_timers(name, "its agent has not answered since the controller was started")
        self._fabric.watch(self._on_node, self._on_report)

    @property
    def connected(self) -> list[str]:
        """Nodes whose agents are connected and reconciled with the book."""
        return [name for name, gate in self._open.items() if gate.is_set()]

    # -- calls ------------------------------------------------------------------------------------------------------

    def carry_out(self, commands: Iterable[Command], events: Iterable[Event]) -> None:
        """Start carrying out a durable step: its commands, and the calls that drop attempts whose end it recorded."""
        commands = list(commands)
        ended = [command.job for command in commands if isinstance(command, Ended)]
        self._queue(self.reconciler.forget_ended([*self._book.touched, *ended]))
        for command in commands:
            self._queue(self.reconciler.calls(command))
            for event in self.reconciler.answers(command):
                self._post(event)
        for event in events:
            if isinstance(event, Suspended | Checkpointed):
                for copied in self.reconciler.copies.copied(event.job):
                    self._post(copied)

    def _queue(self, calls: Iterable[Call]) -> None:
        """Calls about one job on one node are made in order; different jobs do not wait for each other."""
        for call in calls:
            if call.method == "forget":
                self._forgets[id(call)] = call
            line = self._lines.get((call.node, call.job))
            if line is not None:
                line.put_nowait(call)
                continue
            line = self._lines[call.node, call.job] = asyncio.Queue()
            line.put_nowait(call)
            self._spawn(self._work(call.node, call.job, line), call.node)

    async def _work(self, node: str, job: int, line: asyncio.Queue[Call]) -> None:
        try:
            while not line.empty():
                call = line.get_nowait()
                await self._make(call)
                self._forgets.pop(id(call), None)
        finally:
            if self._lines.get((node, job)) is line:
                del self._lines[node, job]

    async def _make(self, call: Call) -> None:
        """Make one call until it is answered. A node that goes away takes its waiting calls with it (see _on_node)."""
        attempt = 0
        while True:
            await self._gate(call.node).wait()
            try:
                args = with_peers(call.args, await self._peers(call)) if call.peers else call.args
                if not self.reconciler.wants(call):
                    return
                answer = await self._fabric.call(
                    call.node, call.method, msgspec.to_builtins(args),
                    op_id=call.op_id, epoch=self._epoch, timeout=CALL_TIMEOUT_S,
                )  # fmt: skip
            except Unknown as error:
                log.warning("%s of job %d on %s: %s; tried again", call.method, call.job, call.node, error)
            except Fenced as error:
                self._fenced(str(error))
                return
            except (Refused, WorldError) as error:
                if call.method != "stop" or isinstance(error, Refused):
                    self._refused(call, str(error), "user" if isinstance(error, TooLarge) else "world")
                    return
                log.warning("stop of job %d on %s: %s; tried again", call.job, call.node, error)
            else:
                self._answered(call, answer)
                return
            await asyncio.sleep(pause_s(attempt, BACKOFF_S))
            attempt += 1

    def _refused(self, call: Call, error: str, fault: str) -> None:
        self._run_between_steps(lambda: self._meant(self.reconciler.refused(call, error, fault)))

    async def _peers(self, call: Call) -> tuple[wire.Peer, ...]:
        """The addresses of the agents of the call's nodes. Those not known in time are left out, but for the first: it leads the
        rendezvous and the cut of the gang."""
        peers, names, clock = self.reconciler.registry.peers, call.peers, asyncio.get_running_loop().time
        end = clock() + PEER_WAIT_S

        def to_come(name: str) -> bool:
            return name not in peers and not self._gate(name).is_set()  # else it is an agent without a peer server

        while any(map(to_come, names)) and (clock() < end or to_come(names[0])):
            if self.reconciler.agent_calls.is_dead(names[0]) or not self.reconciler.wants(call):
                break
            await asyncio.sleep(BACKOFF_S[0])
        return tuple(peers[name] for name in names if name in peers)

    def _answered(self, call: Call, answer: dict[str, Any]) -> None:
        if call.method == "forget":
            return
        try:
            report = msgspec.convert(answer, wire.JobReport)
        except msgspec.ValidationError as error:
            log.error("%s answered %s with something else than a report: %s", call.node, call.method, error)
            return
        self._on_report(call.node, report)

    def forgive(self, node: str) -> None:
        """An operator declares a node's devices sound: their past faults are cleared."""
        if self._gate(node).is_set():
            self._spawn(self._forgive(node), node)

    async def _forgive(self, node: str) -> None:
        try:
            answer = await self._fabric.call(node, "forgive", {}, op_id="", epoch=self._epoch, timeout=CALL_TIMEOUT_S)
            health = msgspec.convert(answer, wire.Health)
        except (WorldError, Refused, msgspec.ValidationError) as error:
            log.info("devices of %s: %s", node, error)
            return
        self._run_between_steps(lambda: self._health(node, health.faults))

    async def usage(self, node: str) -> wire.Usage | None:
        """What the node's jobs and devices use at present; None when it does not answer."""
        try:
            answer = await self._fabric.call(node, "usage", {}, op_id="", epoch=self._epoch, timeout=2.0)
            return msgspec.convert(answer, wire.Usage)
        except (WorldError, Refused, msgspec.ValidationError) as error:
            log.info("usage of %s: %s", node, error)
            return None

    # -- reports ----------------------------------------------------------------------------------------------------

    def _on_report(self, node: str, report: News) -> None:
        if isinstance(report, wire.Health):
            self._run_between_steps(lambda: self._health(node, report.faults))
            return
        self._note_logs(node, report)
        self._run_between_steps(lambda: self._heard(node, report))

    def _heard(self, node: str, report: wire.JobReport) -> list[Event]:
        """Runs between steps, by the durable book: an attempt whose end is not durable yet must not be dropped as a stray."""
        events = self._meant(self.reconciler.report(node, report))
        return [*events, *self._cleared(node, report)]

    def _health(self, node: str, faults: tuple[DeviceFault, ...]) -> list[Event]:
        """An event of devices that failed or recovered, unless the book knows."""
        known = self._book.outages.faults.get(self._book.nodes.get(node, -1), ())
        return [NodeHealth(node, faults)] if faults != known else []

    def _meant(self, found: CallOutcome) -> list[Event]:
        self._queue(found.calls)
        return found.events

    def _note_logs(self, node: str, report: wire.JobReport) -> None:
        key = report.job, report.attempt
        if report.logs and not self.reconciler.left(node, key):
            known, said = self.logs.get(key, {}), {rank: (node, path) for rank, path in report.logs}
            # Of an attempt that is over, a node that it had left before may report last: an image that it stored late, say.
            self.logs[key] = known | said if self.reconciler.current(key) else said | known
            forget_oldest(self.logs, LOGS_KEPT)

    def _on_node(self, node: FabricNode) -> None:
        self._gate(node.name).clear()
        self._stop_down_timers(node.name)
        self._drop_calls(node.name)
        self._strays.pop(node.name, None)
        self.nodes.pop(node.name, None)
        if node.alive:
            self._spawn(self._synchronise(node), node.name)
        else:
            self._start_down_timers(node.name, node.why)

    def _start_down_timers(self, node: str, why: str) -> None:
        """Start the timers of a disconnected node: after the first it is unschedulable, after the second it counts as down."""
        loop = asyncio.get_running_loop()
        text = why or "its agent does not answer"
        self._down_timers[node] = [
            loop.call_later(min(SILENT_AFTER_S, self._down_after_s), self._post, NodeSilent(node, text)),
            loop.call_later(self._down_after_s, self._declare_down, node, text),
        ]

    def _stop_down_timers(self, node: str) -> None:
        for timer in self._down_timers.pop(node, []):
            timer.cancel()

    def _declare_down(self, node: str, why: str) -> None:
        """The node counts as down; it is fenced first where that is possible, so that no job ever runs twice at once."""

        async def fence_first(fence: Fence) -> None:
            await fence(node)
            self._run_between_steps(lambda: self._down(node, why))

        if self._fence is None:
            self._run_between_steps(lambda: self._down(node, why))
        elif not self._not_taken_for_dead(node):
            self._spawn(fence_first(self._fence), node)

    def _not_taken_for_dead(self, node: str) -> bool:
        """Whether the node is connected again, or is the only one: its jobs can run nowhere else, and may still run there."""
        return len(self._book.nodes) < 2 or self._gate(node).is_set()

    def _down(self, node: str, why: str) -> list[Event]:
        if self._not_taken_for_dead(node):
            return []
        return [NodeDown(node, why), *self.reconciler.node_down(node)]

    def _drop_calls(self, node: str) -> None:
        """Drop the calls in progress on a node; those still useful are made again once its inventory is known."""
        for key in [key for key in self._lines if key[0] == node]:
            del self._lines[key]
        for at in [at for at, call in self._forgets.items() if call.node == node]:
            del self._forgets[at]
        for task in [task for task, name in self._tasks.items() if name == node]:
            task.cancel()

    async def _synchronise(self, node: FabricNode) -> None:
        """A node has connected: get its inventory, compare it with the book, then allow calls."""
        attempt = 0
        while True:
            try:
                answer = await self._fabric.call(
                    node.name, "inventory", {}, op_id="", epoch=self._epoch, timeout=CALL_TIMEOUT_S
                )
                # Not strict: indices that are keys of an object are text in JSON.
                inventory = msgspec.convert(answer, wire.Inventory, strict=False)
                break
            except Fenced as error:
                self._fenced(str(error))
                return
            except (WorldError, Refused, msgspec.ValidationError) as error:
                log.warning("inventory of %s: %s; tried again", node.name, error)
                await asyncio.sleep(pause_s(attempt, BACKOFF_S))
                attempt += 1
        self._run_between_steps(lambda: self._on_inventory(node.name, inventory))

    def _on_inventory(self, node: str, inventory: wire.Inventory) -> list[Event]:
        before = self._book.incarnations.get(node)
        if before is not None and before != inventory.incarnation:
            # Two steps: what the agent still lists is of attempts that the first step ends.
            self._run_between_steps(lambda: self._compare(node, inventory))
            why = "it was started anew; whatever ran on it is gone"
            down = NodeDown(node, why, self.reconciler.copies.kept(node, inventory.images))
            return [down, *self.reconciler.node_down(node)]
        return self._compare(node, inventory)

    def _compare(self, node: str, inventory: wire.Inventory) -> list[Event]:
        """Reconcile the node's inventory with the book, and allow calls."""
        for entry in inventory.jobs:
            self._note_logs(node, entry)
        self.nodes[node] = inventory
        held = self._meant(self.reconciler.copies.inventory(node, inventory))
        found = self.reconciler.reconcile(node, inventory.jobs)
        self._gate(node).set()
        self._queue(found.calls)
        faults = inventory.faults or tuple(DeviceFault(device, why) for device, why in inventory.unhealthy.items())
        return [*held, *found.events, *self._node_up(node, inventory), *self._health(node, faults)]

    def _node_up(self, node: str, inventory: wire.Inventory) -> list[Event]:
        """NodeUp, once no attempt runs there that the book has given up; the node is schedulable again."""
        strays = {
            (entry.job, entry.attempt): True
            for entry in inventory.jobs
            if entry.state not in (*GONE, "suspended") and not self.reconciler.expects(node, (entry.job, entry.attempt))
        }
        if strays:
            self._strays[node] = strays
            return []
        return [NodeUp(inventory.node, inventory.incarnation)]

    def _cleared(self, node: str, report: wire.JobReport) -> list[Event]:
        strays = self._strays.get(node)
        copied = report.verb == "fetch"  # of the attempt that made the image, and nothing is said of its ranks
        if strays is None or copied or report.state not in (*GONE, "suspended"):
            return []
        strays.pop((report.job, report.attempt), None)
        if strays:
            return []
        del self._strays[node]
        inventory = self.nodes[node]
        return [NodeUp(inventory.node, inventory.incarnation)]

    def _gate(self, node: str) -> asyncio.Event:
        return self._open.setdefault(node, asyncio.Event())

    def _master_endpoint(self, nodes: tuple[str, ...], name: str) -> MasterEndpoint:
        """Rendezvous of the ranks of an attempt, on the first of its nodes. The port follows from the name: a later controller
        may have to give the second node the port that the first one got."""
        first = self.reconciler.registry.peers.get(nodes[0])
        address = first.address if first and len(nodes) > 1 else "127.0.0.1"
        return MasterEndpoint(address, self._ports.take(name if len(nodes) > 1 else ""))

    def _spawn(self, work: Coroutine[Any, Any, None], node: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = node
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a call failed in an unforeseen way", exc_info=task.exception())

    async def close(self) -> None:
        """Stop making calls and receiving reports; agents and ranks run on. Ended attempts are dropped first, where agents
        answer: their images would stay until the next start."""
        loop = asyncio.get_running_loop()
        end = loop.time() + SHUTDOWN_FORGET_S
        while loop.time() < end and any(self._gate(call.node).is_set() for call in self._forgets.values()):
            await asyncio.sleep(SHUTDOWN_FORGET_S / 100)
        for node in list(self._down_timers):
            self._stop_down_timers(node)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fabric.close()
