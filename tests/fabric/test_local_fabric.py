"""The local fabric against agents that misbehave, and verified copies."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import pytest

from tidewright.base.errors import NotFound, WorldError
from tidewright.fabric.local import LocalFabric
from tidewright.fabric.protocol import Unknown
from tidewright.model.node import NodeSpec
from tidewright.wire.agent import Inventory, JobReport, Push, RpcRequest, RpcResponse
from tidewright.wire.framing import decode, encode, raw

INVENTORY = Inventory(node=NodeSpec(name="n1"), incarnation="boot", epoch=0, pid=1)
REPORT = JobReport(job=1, attempt=0, state="running")


def play(tmp_path, agent, body):
    """Run ``body(fabric, nodes, reports)`` against ``agent(request) -> list of messages, or None to hang up``."""

    async def serve(reader, writer):
        while line := await reader.readline():
            for message in (answers := agent(decode(line, RpcRequest))) or ():
                writer.write(encode(message))
            if answers is None:
                break
        writer.close()

    async def whole():
        server = await asyncio.start_unix_server(serve, tmp_path / "a.sock")
        fabric, nodes, reports = LocalFabric(tmp_path / "a.sock"), [], []
        fabric.watch(nodes.append, lambda node, report: reports.append((node, report)))
        try:
            await asyncio.wait_for(body(fabric, nodes, reports), 20)
        finally:
            await fabric.close()
            server.close()

    asyncio.run(whole())


def polite(request):
    return [RpcResponse(request.id, ok=raw(INVENTORY if request.method == "inventory" else {"did": request.method}))]


def test_a_call_and_its_node(tmp_path):
    async def body(fabric, nodes, reports):
        assert await fabric.call("n1", "usage", {}, op_id="", epoch=1, timeout=10) == {"did": "usage"}
        assert [(node.name, node.alive, node.incarnation) for node in nodes] == [("n1", True, "boot")]
        assert fabric.nodes() == nodes
        with pytest.raises(NotFound):
            await fabric.call("n2", "usage", {}, op_id="", epoch=1, timeout=10)

    play(tmp_path, polite, body)


def test_silence_is_unknown(tmp_path):
    async def body(fabric, nodes, reports):
        with pytest.raises(Unknown, match="did not answer stop"):
            await fabric.call("n1", "stop", {}, op_id="", epoch=1, timeout=0.3)

    play(tmp_path, lambda request: polite(request) if request.method == "inventory" else [], body)


def test_hanging_up_is_unknown_and_the_node_comes_back(tmp_path):
    async def body(fabric, nodes, reports):
        for _ in range(2):
            with pytest.raises(Unknown):
                await fabric.call("n1", "stop", {}, op_id="", epoch=1, timeout=10)
        assert [node.alive for node in nodes][:3] == [True, False, True]
        assert nodes[1].why

    play(tmp_path, lambda request: polite(request) if request.method == "inventory" else None, body)


def test_reports_never_come_before_their_node(tmp_path):
    def agent(request):
        return [Push(REPORT), *polite(request), Push(REPORT)] if request.method == "inventory" else polite(request)

    async def body(fabric, nodes, reports):
        seen = []
        fabric.watch(lambda node: seen.append("node"), lambda node, report: seen.append(report))
        await fabric.call("n1", "usage", {}, op_id="", epoch=1, timeout=10)
        assert seen == ["node", REPORT, REPORT]

    play(tmp_path, agent, body)


def test_an_agent_that_talks_nonsense_is_hung_up_on(tmp_path):
    async def body(fabric, nodes, reports):
        with pytest.raises(Unknown):
            await fabric.call("n1", "usage", {}, op_id="", epoch=1, timeout=0.5)
        assert nodes == []

    play(tmp_path, lambda request: [RpcResponse(request.id, ok=raw([1, 2]))], body)


def test_a_watcher_that_raises_is_logged_and_called_again(tmp_path, caplog):
    async def body(fabric, nodes, reports):
        seen, heard = [], []

        def on_node(node):
            seen.append(node.alive)
            if len(seen) in (1, 2):
                raise RuntimeError("not now")

        def on_report(node, report):
            heard.append(report)
            if len(heard) == 1:
                raise RuntimeError("nor this")

        fabric.watch(on_node, on_report)
        while len(heard) < 2:
            with contextlib.suppress(Unknown):
                await fabric.call("n1", "usage", {}, op_id="", epoch=1, timeout=10)
        assert seen == [True, False, True, False, True]
        assert len(heard) == 2

    def agent(request):
        return [*polite(request), Push(REPORT)] if request.method == "inventory" else polite(request)

    play(tmp_path, agent, body)
    assert caplog.text.count("not now") >= 2 and "nor this" in caplog.text


def test_copies_are_verified(tmp_path):
    source, target = tmp_path / "a", tmp_path / "b"
    source.write_bytes(b"x" * 3_000_000)
    good = hashlib.sha256(source.read_bytes()).hexdigest()

    async def copy(digest):
        await LocalFabric(tmp_path / "none").copy("n1", source, "n1", target, digest=digest)

    with pytest.raises(WorldError, match="SHA-256"):
        asyncio.run(copy("0" * 64))
    assert list(tmp_path.iterdir()) == [source]
    asyncio.run(copy(good))
    assert target.read_bytes() == source.read_bytes()
    source.unlink()
    with pytest.raises(WorldError, match="cannot copy"):
        asyncio.run(copy(good))
