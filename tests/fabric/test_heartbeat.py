"""Heartbeats in virtual time: who has not moved is noticed, who is slow is not taken for dead."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tidewright.fabric import heartbeat
from tidewright.fabric.heartbeat import LEAST_S, MOST_S, silence_s, wait_until_silent
from tidewright.fabric.local import LocalFabric
from tidewright.fabric.protocol import FabricNode, Unknown
from tidewright.model.node import NodeSpec
from tidewright.wire.agent import Inventory, RpcRequest, RpcResponse, heartbeat_socket
from tidewright.wire.framing import decode, encode, raw

from ..live import virtual

BOUND_S = 10.0


class Agent:
    """An agent in this event loop. ``late_s``: how long each heartbeat takes it; ``asleep``: it does nothing at all."""

    def __init__(self, path: Path, beats: bool = True) -> None:
        self.path, self.beats = path, beats
        self.late_s, self.asleep, self.greeted = 0.0, False, 0
        self.tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> list[asyncio.Server]:
        servers = [await asyncio.start_unix_server(self._serve, self.path)]
        if self.beats:
            servers.append(await asyncio.start_unix_server(self._beat, heartbeat_socket(self.path)))
        return servers

    async def _awake(self) -> None:
        while self.asleep:
            await asyncio.sleep(0.1)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                await self._awake()
                request = decode(line, RpcRequest)
                found = Inventory(node=NodeSpec(name="n"), incarnation="b", epoch=0, pid=1, heartbeats=self.beats)
                if request.method == "inventory":
                    self.greeted += 1
                    writer.write(encode(RpcResponse(request.id, ok=raw(found))))
        writer.close()

    async def _beat(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.late_s)
        await self._awake()
        writer.write(b".")
        writer.close()


def play(
    tmp_path: Path,
    body: Callable[[LocalFabric, Agent, list[FabricNode]], Coroutine[Any, Any, None]],
    beats: bool = True,
) -> None:
    async def main() -> None:
        agent = Agent(tmp_path / "a.sock", beats)
        servers = await agent.open()
        fabric, nodes = LocalFabric(agent.path, BOUND_S), []
        fabric.watch(nodes.append, lambda node, report: None)
        try:
            await until(lambda: bool(nodes))
            await body(fabric, agent, nodes)
        finally:
            await fabric.close()
            for server in servers:
                server.close()

    virtual.run(main())


async def until(true: Callable[[], bool], within_s: float = 1000.0) -> float:
    """Seconds of virtual time until it is true."""
    now = asyncio.get_running_loop().time
    began = now()
    while not true():
        assert now() - began < within_s
        await asyncio.sleep(0.05)
    return now() - began


def test_an_agent_that_sleeps_is_lost_and_comes_back_when_it_wakes(tmp_path: Path) -> None:
    async def body(fabric: LocalFabric, agent: Agent, nodes: list[FabricNode]) -> None:
        await asyncio.sleep(300)
        assert len(nodes) == 1 and agent.greeted == 1
        agent.asleep = True
        call = asyncio.ensure_future(fabric.call("n", "stop", {}, op_id="", epoch=1, timeout=1000))
        assert BOUND_S <= await until(lambda: len(nodes) == 2) <= BOUND_S * 1.5
        assert not nodes[1].alive and "has not moved for 10 s" in nodes[1].why
        with pytest.raises(Unknown, match="has not moved"):
            await call
        await asyncio.sleep(300)
        assert len(nodes) == 2, "reported more than once"
        agent.asleep = False
        await until(lambda: len(nodes) == 3)
        assert nodes[2].alive

    play(tmp_path, body)


def test_an_agent_that_answers_late_is_not_lost(tmp_path: Path) -> None:
    async def body(fabric: LocalFabric, agent: Agent, nodes: list[FabricNode]) -> None:
        agent.late_s = 0.7 * BOUND_S
        await asyncio.sleep(600)
        assert len(nodes) == 1

    play(tmp_path, body)


def test_an_agent_of_before_heartbeats_is_not_asked_for_any(tmp_path: Path) -> None:
    async def body(fabric: LocalFabric, agent: Agent, nodes: list[FabricNode]) -> None:
        await asyncio.sleep(600)
        assert len(nodes) == 1

    play(tmp_path, body, beats=False)


def test_silence_is_a_third_of_the_timeout_within_limits() -> None:
    assert [silence_s(s * 1_000_000) for s in (1, 12, 30, 600)] == [LEAST_S, 4.0, MOST_S, MOST_S]


def test_a_stranger_who_answers_in_place_of_the_agent_counts_as_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "peer_uid", lambda sock: 4242)

    async def body() -> None:
        server = await asyncio.start_unix_server(lambda reader, writer: writer.write(b"x"), tmp_path / "socket")
        await asyncio.wait_for(wait_until_silent(tmp_path / "socket", 0.1), 30)
        server.close()

    asyncio.run(body())
