"""The network of the simulation: ordered lines between the controller and each agent, which break, and single messages between
agents, which get lost, come twice and overtake each other."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from tidewright.base.errors import TideError, UsageError, WorldError
from tidewright.fabric.protocol import FabricNode, Fenced, OnNode, OnReport, Refused, Unknown
from tidewright.wire import agent as wire

from .node import Node

CALL_S = 1.0
"""How long the controller waits for an answer; shorter than in the product, so that more calls are made twice."""


class Network:
    """The fabric of the controllers, and what agents say to each other. ``trouble``: how often a message is lost."""

    def __init__(self, dice: random.Random, trouble: float) -> None:
        self.dice, self.trouble = dice, trouble
        self.slow = 0.0
        """How often a message is late, whatever the trouble."""
        self.wants: Callable[[str, tuple[int, int]], bool] = lambda node, key: False
        """Whether the controller has an attempt run, or come back, on a node."""
        self.steady = False
        """Nothing happens for which ranks may be released from a cut."""
        self.nodes_by_name: dict[str, Node] = {}
        self._on_node: OnNode | None = None
        self._on_report: OnReport | None = None
        self._lines: dict[str, int] = {}
        """The connection to each agent, counted."""
        self._arrives: dict[tuple[str, str], float] = {}
        """When the last message of a line arrives, by direction: the next does later."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    # -- lines to the controller ------------------------------------------------------------------------------------

    def nodes(self) -> list[FabricNode]:
        return [self._seen(node, node.reachable) for node in self.nodes_by_name.values()]

    def _seen(self, node: Node, alive: bool) -> FabricNode:
        return FabricNode(name=node.name, incarnation=node.incarnation, address=node.name, alive=alive, spec=node.spec)

    def watch(self, on_node: OnNode, on_report: OnReport) -> None:
        self._on_node, self._on_report = on_node, on_report
        for name, node in self.nodes_by_name.items():
            if node.reachable:
                asyncio.get_running_loop().call_soon(self._still_there, name)

    def _still_there(self, name: str) -> None:
        if self.nodes_by_name[name].reachable:
            self.connected(name)

    def connected(self, name: str) -> None:
        """An agent can be reached (again)."""
        self._lines[name] = self._lines.get(name, 0) + 1
        if self._on_node is not None:
            self._on_node(self._seen(self.nodes_by_name[name], True))

    def broken(self, name: str) -> None:
        """Whatever is on its way to or from an agent is lost."""
        self._lines[name] = self._lines.get(name, 0) + 1
        if self._on_node is not None:
            self._on_node(self._seen(self.nodes_by_name[name], False))

    def _send(self, name: str, to: str, arrive: Callable[[], None]) -> None:
        """In order, on the line as it is now."""
        line, loop = self._lines.get(name, 0), asyncio.get_running_loop()
        at = max(loop.time() + self._delay(), self._arrives.get((name, to), 0.0) + 1e-6)
        self._arrives[name, to] = at
        loop.call_at(at, lambda: arrive() if self._lines.get(name, 0) == line else None)

    def _delay(self) -> float:
        slow = self.dice.random() < (self.slow or self.trouble / 4)
        return self.dice.uniform(0.0005, 0.01) * (300 if slow else 1)

    def tell(self, name: str, report: wire.JobReport) -> None:
        """An agent publishes."""

        def arrive() -> None:
            if self._on_report is not None:
                self._on_report(name, report)

        self._send(name, "controller", arrive)

    async def call(
        self, node: str, method: str, args: dict[str, Any], *, op_id: str, epoch: int, timeout: float
    ) -> dict[str, Any]:
        target, answer = self.nodes_by_name[node], asyncio.get_running_loop().create_future()
        if not target.reachable:
            raise Unknown("not connected")
        arguments = msgspec.convert(msgspec.json.decode(msgspec.json.encode(args)), wire.ARGS[method])

        def serve() -> None:
            if not target.reachable:
                return
            try:
                found = target.serve(method, arguments, op_id, epoch)
            except (TideError, Fenced) as error:
                found = error
            if target.reachable:
                self._send(node, "controller", lambda: answer.done() or answer.set_result(found))

        self._send(node, "agent", serve)
        try:
            found = await asyncio.wait_for(answer, CALL_S)
        except TimeoutError as error:
            raise Unknown("no answer in time") from error
        if isinstance(found, Fenced):
            raise found
        if isinstance(found, UsageError):
            raise Refused(str(found))
        if isinstance(found, TideError):
            raise WorldError(str(found))
        return msgspec.json.decode(msgspec.json.encode(found))  # type: ignore[no-any-return]

    async def copy(self, src_node: str, src: Path, dst_node: str, dst: Path, *, digest: str) -> None:
        raise AssertionError("no controller copies files between nodes")

    async def close(self) -> None:
        self._on_node = self._on_report = None

    # -- between agents ---------------------------------------------------------------------------------------------

    def peer(self, sender: Node, name: str, arrive: Callable[[Node], None]) -> None:
        """One message to another agent: lost, late or twice, as it happens."""
        target = self.nodes_by_name[name]

        def deliver() -> None:
            if target.running and target.online and sender.online:
                arrive(target)

        for _ in range(1 + (self.dice.random() < self.trouble / 3)):
            if self.dice.random() >= self.trouble / 2:
                asyncio.get_running_loop().call_later(self._delay(), deliver)
