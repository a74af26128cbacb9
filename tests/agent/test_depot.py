"""The depot between agents: answers, bytes, strangers, and peers that stop in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tidewright.agent.depot import Body, Depot, DepotClient
from tidewright.base.errors import WorldError
from tidewright.wire.agent import Peer

TOKEN = "t" * 64


@contextlib.asynccontextmanager
async def depot(tmp_path: Path) -> AsyncIterator[Depot]:
    (tmp_path / "big").write_bytes(bytes(range(256)) * 40_000)

    async def echo(args: dict[str, Any]) -> Any:
        return args

    async def part(args: dict[str, Any]) -> Body:
        return Body(tmp_path / "big", args["offset"], args["size"])

    async def fail(args: dict[str, Any]) -> Any:
        raise WorldError("out of ink")

    made = Depot(TOKEN, {"echo": echo, "part": part, "fail": fail})
    await made.open("127.0.0.1")
    try:
        yield made
    finally:
        await made.close()


def running(body: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test."""

    @functools.wraps(body)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(body(*args, **kwargs))

    return run


def client(made: Depot, token: str = TOKEN) -> DepotClient:
    return DepotClient(Peer("other", "127.0.0.1", made.port), token)


@running
async def test_answers_and_bytes_on_one_connection(tmp_path: Path) -> None:
    async with depot(tmp_path) as made:
        one = client(made)

        def talk() -> tuple[Any, bytes, bytes, Any]:
            first = one.ask("echo", {"x": [1, "a"]})
            whole = b"".join(one.read("part", {"offset": 0, "size": 256 * 40_000}))
            none = b"".join(one.read("part", {"offset": 5, "size": 0}))
            return first, whole, none, one.ask("echo", {"again": True})

        first, whole, none, last = await asyncio.to_thread(talk)
        one.close()
    assert (first, none, last) == ({"x": [1, "a"]}, b"", {"again": True})
    assert whole == (tmp_path / "big").read_bytes()


@pytest.mark.parametrize(
    ("verb", "token", "says"),
    [("fail", TOKEN, "out of ink"), ("echo", "u" * 64, "wrong token"), ("dance", TOKEN, "no verb")],
)
@running
async def test_refusals_say_why(tmp_path: Path, verb: str, token: str, says: str) -> None:
    async with depot(tmp_path) as made:
        one = client(made, token)
        with pytest.raises(WorldError, match=says):
            await asyncio.to_thread(one.ask, verb, {})
        one.close()


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", b'{"token": 1}\n', b'{"token":"x","verb":"echo","args":[]}\n'])
@running
async def test_strangers_get_an_answer_not_a_crash(tmp_path: Path, line: bytes) -> None:
    async with depot(tmp_path) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(line)
        answer = json.loads(await reader.readline())
        writer.close()
        assert "error" in answer
        assert await asyncio.to_thread(client(made).ask, "echo", {}) == {}


@running
async def test_a_peer_that_closes_in_the_middle(tmp_path: Path) -> None:
    server = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = server.accept()
        connection.recv(1000)
        connection.sendall(b'{"ok": null, "bytes": 100}\nonly this')
        connection.close()

    talking = asyncio.create_task(asyncio.to_thread(serve))
    one = DepotClient(Peer("other", "127.0.0.1", server.getsockname()[1]), TOKEN)
    with pytest.raises(WorldError, match="closed the connection"):
        await asyncio.to_thread(lambda: list(one.read("part", {})))
    await talking
    server.close()


@running
async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(WorldError, match="node other does not answer"):
        await asyncio.to_thread(DepotClient(Peer("other", "127.0.0.1", port), TOKEN).ask, "echo", {})


@running
async def test_a_taken_port_is_given_up_for_a_free_one(tmp_path: Path) -> None:
    async with depot(tmp_path) as made:
        second = Depot(TOKEN, {})
        await second.open("127.0.0.1", made.port)
        assert second.port not in (0, made.port)
        await second.close()
