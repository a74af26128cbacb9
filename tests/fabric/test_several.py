"""Several agents as one fabric: each node behind its own socket, and names that clash."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidewright.base.errors import NotFound
from tidewright.fabric.protocol import FabricNode
from tidewright.fabric.several import SeveralFabric
from tidewright.model.node import NodeSpec
from tidewright.wire.agent import Inventory, JobReport, Push, RpcRequest, RpcResponse
from tidewright.wire.framing import decode, encode, raw


class Agent:
    """An agent at a socket that says it is ``name``."""

    def __init__(self, path: Any, name: str) -> None:
        self.path, self.name = path, name
        self.writers: list[asyncio.StreamWriter] = []

    async def open(self) -> None:
        self.server = await asyncio.start_unix_server(self._serve, self.path)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.append(writer)
        while line := await reader.readline():
            request = decode(line, RpcRequest)
            found = Inventory(node=NodeSpec(name=self.name), incarnation="boot", epoch=0, pid=1)
            writer.write(
                encode(RpcResponse(request.id, ok=raw(found if request.method == "inventory" else {"i": self.name})))
            )

    def tell(self, job: int) -> None:
        for writer in self.writers:
            writer.write(encode(Push(JobReport(job=job, attempt=1, state="running"))))

    def close(self) -> None:
        for writer in self.writers:
            writer.close()
        self.server.close()
        self.path.unlink()


def play(tmp_path: Any, names: list[str], body: Any) -> None:
    async def whole() -> None:
        agents = [Agent(tmp_path / f"{number}.sock", name) for number, name in enumerate(names)]
        for agent in agents:
            await agent.open()
        fabric = SeveralFabric([agent.path for agent in agents])
        nodes: list[FabricNode] = []
        reports: list[tuple[str, int]] = []
        fabric.watch(nodes.append, lambda node, report: reports.append((node, report.job)))
        try:
            await asyncio.wait_for(body(fabric, agents, nodes, reports), 20)
        finally:
            await fabric.close()
            for agent in agents:
                agent.server.close()

    asyncio.run(whole())


async def until(true: Any) -> None:
    while not true():
        await asyncio.sleep(0.01)


def test_calls_and_reports_find_their_node(tmp_path: Any) -> None:
    async def body(fabric: SeveralFabric, agents: list[Agent], nodes: list[FabricNode], reports: list[Any]) -> None:
        await until(lambda: len(fabric.nodes()) == 2)
        assert [node.name for node in fabric.nodes()] == ["a", "b"]
        for name in ("a", "b"):
            assert await fabric.call(name, "usage", {}, op_id="", epoch=1, timeout=5) == {"i": name}
        with pytest.raises(NotFound):
            await fabric.call("c", "usage", {}, op_id="", epoch=1, timeout=5)
        agents[0].tell(1)
        agents[1].tell(2)
        await until(lambda: len(reports) == 2)
        assert sorted(reports) == [("a", 1), ("b", 2)]

    play(tmp_path, ["a", "b"], body)


def test_one_that_goes_leaves_the_others(tmp_path: Any) -> None:
    async def body(fabric: SeveralFabric, agents: list[Agent], nodes: list[FabricNode], reports: list[Any]) -> None:
        await until(lambda: len(fabric.nodes()) == 2)
        agents[0].close()
        await until(lambda: any(not node.alive for node in nodes))
        assert [(node.name, node.alive) for node in fabric.nodes()] == [("a", False), ("b", True)]
        assert await fabric.call("b", "usage", {}, op_id="", epoch=1, timeout=5) == {"i": "b"}

    play(tmp_path, ["a", "b"], body)


def test_the_second_agent_of_a_name_is_not_heard(tmp_path: Any) -> None:
    async def body(fabric: SeveralFabric, agents: list[Agent], nodes: list[FabricNode], reports: list[Any]) -> None:
        await until(lambda: all(agent.writers for agent in agents))
        await asyncio.sleep(0.2)
        assert [node.name for node in nodes] == ["a"]
        agents[0].tell(1)
        agents[1].tell(1)
        await asyncio.sleep(0.2)
        assert reports == [("a", 1)]

    play(tmp_path, ["a", "a"], body)


def test_a_node_may_move_to_another_socket(tmp_path: Any) -> None:
    async def body(fabric: SeveralFabric, agents: list[Agent], nodes: list[FabricNode], reports: list[Any]) -> None:
        await until(lambda: len(fabric.nodes()) == 2)
        agents[0].close()
        await until(lambda: any(not node.alive for node in nodes))
        agents[1].name = "a"
        for writer in agents[1].writers:
            writer.close()
        await until(lambda: any(node.name == "a" and node.alive for node in nodes[2:]))
        assert await fabric.call("a", "usage", {}, op_id="", epoch=1, timeout=5) == {"i": "a"}

    play(tmp_path, ["a", "b"], body)
