"""The agents around one book: carries out commands, hears reports, brings nodes in line after a lost connection.

A thin shell around ``translate``: ordering, retries with back-off, and the rule that nothing is asked of a node between
losing it and having compared its inventory with the book.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from ..base.errors import WorldError
from ..engine.book import Book, forget_oldest
from ..engine.commands import Command
from ..engine.events import Event, Exited, NodeDown, NodeSilent, NodeUp, StartFailed
from ..fabric.protocol import Fabric, FabricNode, Fenced, Refused, Unknown
from ..wire import agent as wire
from .translate import Call, Reach, Translator

log = logging.getLogger(__name__)
CALL_TIMEOUT_S = 10.0
BACKOFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
"""Pauses between tries of one call; the last one repeats."""
SILENT_AFTER_S = 3.0
"""How long a node may be away (its agent restarting) before nothing new is placed on it."""
LOGS_KEPT = 20_000
"""Attempts whose reported log paths are remembered; those of older ones are found by rule (logs.log_path)."""

Post = Callable[[Event], None]
Later = Callable[[Callable[[], list[Event]]], None]


class World:
    """``post`` puts an event into the run loop's inbox; ``between`` has a function called between two turns, when the
    book agrees with the journal, and feeds the events it returns to the next turn; ``fenced`` ends this controller."""

    def __init__(
        self, fabric: Fabric, book: Book, epoch: int, post: Post, between: Later, fenced: Callable[[str], None]
    ) -> None:
        self.translator = Translator(book, self._reach)
        self.logs: dict[tuple[int, int], dict[int, tuple[str, str]]] = {}
        """(job, attempt) to rank to (node, path of its log), as reported."""
        self._fabric, self._book, self._epoch = fabric, book, epoch
        self._post, self._between, self._fenced = post, between, fenced
        self._open: dict[str, asyncio.Event] = {}
        self._lines: dict[tuple[str, int], asyncio.Queue[Call]] = {}
        self._tasks: dict[asyncio.Task[None], str] = {}
        self._away: dict[str, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin to listen to the fabric."""
        self._fabric.watch(self._on_node, self._on_report)

    @property
    def connected(self) -> list[str]:
        """Nodes whose agents are connected and in line with the book."""
        return [name for name, gate in self._open.items() if gate.is_set()]

    # -- doing ------------------------------------------------------------------------------------------------------

    def carry_out(self, commands: Iterable[Command], events: Iterable[Event]) -> None:
        """Start carrying out a durable turn: its commands, and the forgetting of attempts whose end it recorded."""
        for command in commands:
            self._queue(self.translator.calls(command))
        for event in events:
            if isinstance(event, Exited | StartFailed):
                self._queue(self.translator.forget((event.job, event.attempt)))

    def _queue(self, calls: Iterable[Call]) -> None:
        """Calls about one job on one node are made in order; different jobs do not wait for each other."""
        for call in calls:
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
                await self._make(line.get_nowait())
        finally:
            if self._lines.get((node, job)) is line:
                del self._lines[node, job]

    async def _make(self, call: Call) -> None:
        """Make one call until it is answered. A node that goes away takes its waiting calls with it (see _on_node)."""
        attempt = 0
        while True:
            await self._gate(call.node).wait()
            try:
                answer = await self._fabric.call(
                    call.node, call.method, msgspec.to_builtins(call.args),
                    op_id=call.op_id, epoch=self._epoch, timeout=CALL_TIMEOUT_S,
                )  # fmt: skip
            except Unknown as error:
                log.warning("%s of job %d on %s: %s; asked again", call.method, call.job, call.node, error)
            except Fenced as error:
                self._fenced(str(error))
                return
            except (Refused, WorldError) as error:
                events = self.translator.refused(call, str(error), "user" if isinstance(error, Refused) else "world")
                if events or call.method != "stop" or isinstance(error, Refused):
                    for event in events:
                        self._post(event)
                    return
                log.warning("stop of job %d on %s: %s; asked again", call.job, call.node, error)
            else:
                self._answered(call, answer)
                return
            await asyncio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
            attempt += 1

    def _answered(self, call: Call, answer: dict[str, Any]) -> None:
        if call.method == "forget":
            return
        try:
            report = msgspec.convert(answer, wire.JobReport)
        except msgspec.ValidationError as error:
            log.error("%s answered %s with something else than a report: %s", call.node, call.method, error)
            return
        self._on_report(call.node, report)

    async def usage(self, node: str) -> wire.Usage | None:
        """What the node's jobs and devices use now; None when it does not answer."""
        try:
            answer = await self._fabric.call(node, "usage", {}, op_id="", epoch=self._epoch, timeout=2.0)
            return msgspec.convert(answer, wire.Usage)
        except (WorldError, Refused, msgspec.ValidationError) as error:
            log.info("usage of %s: %s", node, error)
            return None

    # -- hearing ----------------------------------------------------------------------------------------------------

    def _on_report(self, node: str, report: wire.JobReport) -> None:
        self._note_logs(node, report)
        self._between(lambda: self._heard(node, report))

    def _heard(self, node: str, report: wire.JobReport) -> list[Event]:
        """Judged by what is durable: an attempt whose end is not must not be taken for a stray and forgotten."""
        found = self.translator.report(node, report)
        self._queue(found.calls)
        return found.events

    def _note_logs(self, node: str, report: wire.JobReport) -> None:
        if report.logs:
            paths = self.logs.setdefault((report.job, report.attempt), {})
            paths.update({rank: (node, path) for rank, path in report.logs})
            forget_oldest(self.logs, LOGS_KEPT)

    def _on_node(self, node: FabricNode) -> None:
        self._gate(node.name).clear()
        timer = self._away.pop(node.name, None)
        if timer is not None:
            timer.cancel()
        self._drop_calls(node.name)
        if node.alive:
            self._spawn(self._meet(node), node.name)
        else:
            loop = asyncio.get_running_loop()
            self._away[node.name] = loop.call_later(SILENT_AFTER_S, self._silent, node.name, node.why)

    def _silent(self, node: str, why: str) -> None:
        self._away.pop(node, None)
        self._post(NodeSilent(node, why or "its agent does not answer"))

    def _drop_calls(self, node: str) -> None:
        """Whatever was being asked is asked anew, if it still matters, once the inventory is known."""
        for key in [key for key in self._lines if key[0] == node]:
            del self._lines[key]
        for task in [task for task, name in self._tasks.items() if name == node]:
            task.cancel()

    async def _meet(self, node: FabricNode) -> None:
        """A node is connected: compare what it has with the book, then open it for calls."""
        attempt = 0
        while True:
            try:
                answer = await self._fabric.call(
                    node.name, "inventory", {}, op_id="", epoch=self._epoch, timeout=CALL_TIMEOUT_S
                )
                inventory = msgspec.convert(answer, wire.Inventory)
                break
            except Fenced as error:
                self._fenced(str(error))
                return
            except (WorldError, Refused, msgspec.ValidationError) as error:
                log.warning("inventory of %s: %s; asked again", node.name, error)
                await asyncio.sleep(BACKOFF_S[min(attempt, len(BACKOFF_S) - 1)])
                attempt += 1
        self._between(lambda: self._in_line(node.name, inventory))

    def _in_line(self, node: str, inventory: wire.Inventory) -> list[Event]:
        before = self._book.incarnations.get(node)
        if before is not None and before != inventory.incarnation:
            # Two steps: what the agent still lists is of attempts that the first step ends.
            self._between(lambda: self._in_line(node, inventory))
            why = "it was started anew; whatever ran on it is gone"
            return [NodeDown(node, why), NodeUp(inventory.node, inventory.incarnation)]
        for entry in inventory.jobs:
            self._note_logs(node, entry)
        found = self.translator.reconcile(node, inventory.jobs)
        self._gate(node).set()
        self._queue(found.calls)
        return [*found.events, NodeUp(inventory.node, inventory.incarnation)]

    def _gate(self, node: str) -> asyncio.Event:
        return self._open.setdefault(node, asyncio.Event())

    def _reach(self, nodes: tuple[str, ...]) -> Reach:
        """Where the ranks of an attempt meet: a port that is free on this machine, or one beyond it by chance."""
        addresses = {node.name: node.address for node in self._fabric.nodes()}
        first = addresses.get(nodes[0], "") if len(nodes) > 1 else ""
        return Reach(first or "127.0.0.1", _free_port())

    def _spawn(self, work: Coroutine[Any, Any, None], node: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = node
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a call failed in an unforeseen way", exc_info=task.exception())

    async def close(self) -> None:
        """Stop asking and listening; agents and ranks live on."""
        for timer in self._away.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._fabric.close()


def _free_port() -> int:
    """A TCP port nobody uses now; whoever gets it binds it a moment later, and a clash is a failed launch, retried."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
