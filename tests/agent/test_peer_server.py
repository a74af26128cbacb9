"""The peer server of an agent: answers, bytes, strangers, and peers that stop in the middle."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tidewright.agent import peer_auth as auth
from tidewright.agent.peer_rpc import FileBody, PeerClient, PeerServer, PeerSilent
from tidewright.base.errors import WorldError
from tidewright.wire.agent import Peer

TOKEN = "t" * 64


@contextlib.asynccontextmanager
async def peer_server(tmp_path: Path) -> AsyncIterator[PeerServer]:
    (tmp_path / "big").write_bytes(bytes(range(256)) * 40_000)

    async def echo(args: dict[str, Any]) -> Any:
        return args

    async def part(args: dict[str, Any]) -> FileBody:
        return FileBody(tmp_path / "big", args["offset"], args["size"])

    async def fail(args: dict[str, Any]) -> Any:
        raise WorldError("out of ink")

    made = PeerServer(TOKEN, {"echo": echo, "part": part, "fail": fail})
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


def client(made: PeerServer, token: str = TOKEN) -> PeerClient:
    return PeerClient(Peer("other", "127.0.0.1", made.port), token)


class Impostor:
    """Something that listens where a peer is expected, and serves one connection."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        self._serve, self.heard = serve, b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            if self._serve.__name__ == "<lambda>":
                self.heard += connection.recv(1000)
            self._serve(connection)

    def client(self) -> PeerClient:
        return PeerClient(Peer("other", "127.0.0.1", self._listener.getsockname()[1]), TOKEN)

    def __enter__(self) -> Impostor:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()
        self._listener.close()


class Relay:
    """A man in the middle between two peers: reads all bytes, and may alter them. Serves one connection."""

    def __init__(self, port: int, alter: Callable[[bytes, bool], bytes] = lambda data, upwards: data) -> None:
        self._port, self._alter, self.seen, self.up = port, alter, bytearray(), list[bytes]()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._run)]

    def client(self) -> PeerClient:
        return PeerClient(Peer("other", "127.0.0.1", self._listener.getsockname()[1]), TOKEN)

    def inject(self, data: bytes) -> None:
        """Send something to the server as if it came from the client."""
        self._ends[1].sendall(data)

    def _run(self) -> None:
        theirs, _ = self._listener.accept()
        ours = socket.create_connection(("127.0.0.1", self._port))
        self._ends = [theirs, ours]
        back = threading.Thread(target=self._pump, args=(ours, theirs, False))
        back.start()
        self._pump(theirs, ours, True)
        back.join()

    def _pump(self, source: socket.socket, target: socket.socket, upwards: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(2**16):
                self.seen += data
                if upwards:
                    self.up.append(data)
                target.sendall(self._alter(data, upwards))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> Relay:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for end in [*self._ends, self._listener]:
            end.close()


@running
async def test_answers_and_bytes_on_one_connection(tmp_path: Path) -> None:
    async with peer_server(tmp_path) as made:
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
    async with peer_server(tmp_path) as made:
        one = client(made, token)
        with pytest.raises(WorldError, match=says):
            await asyncio.to_thread(one.ask, verb, {})
        one.close()


OLD = b'{"token": "%s", "verb": "echo", "args": {}}\n' % TOKEN.encode()
"""What the first version of the protocol sends."""


@pytest.mark.parametrize("line", [b"hello\n", b"[]\n", OLD, b"x" * 100_000 + b"\n"])
@running
async def test_strangers_and_older_versions_are_told_so(tmp_path: Path, line: bytes) -> None:
    async with peer_server(tmp_path) as made:
        reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
        writer.write(line)
        answer = json.loads(await reader.readline())
        writer.close()
        assert "same version" in answer["error"]
        assert await asyncio.to_thread(client(made).ask, "echo", {}) == {}


@running
async def test_an_older_server_is_named_as_such_and_sees_no_token() -> None:
    with Impostor(lambda connection: connection.sendall(b'{"error": "not a request of this protocol"}\n')) as other:
        with pytest.raises(WorldError, match="same version"):
            await asyncio.to_thread(other.client().ask, "echo", {})
        assert TOKEN.encode() not in other.heard


@running
async def test_whoever_does_not_know_the_token_is_sent_no_request() -> None:
    """An impostor on the address of a peer: it learns a random number, and neither the token nor what was asked."""

    def pretend(connection: socket.socket) -> None:
        connection.sendall(auth.HELLO + b"0" * 64 + b" " + b"0" * 64 + b"\n")
        connection.settimeout(5)
        with contextlib.suppress(OSError):
            while piece := connection.recv(1000):
                other.heard += piece

    with Impostor(pretend) as other, pytest.raises(WorldError, match="wrong token"):
        await asyncio.to_thread(other.client().ask, "echo", {"secret": "plans"})
    assert b"plans" not in other.heard and TOKEN.encode() not in other.heard


@running
async def test_the_token_never_travels(tmp_path: Path) -> None:
    async with peer_server(tmp_path) as made:
        with Relay(made.port) as between:
            assert await asyncio.to_thread(between.client().ask, "echo", {"x": 1}) == {"x": 1}
        assert TOKEN.encode() not in between.seen
        assert b'"x": 1' in between.seen  # authenticated, not encrypted


@running
async def test_a_secret_is_encrypted_on_its_way(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(b"the tenant's key, 40 bytes long, no more")

    async def key(args: dict[str, Any]) -> FileBody:
        return FileBody(tmp_path / "key", 0, 40, secret=True)

    made = PeerServer(TOKEN, {"key": key})
    await made.open("127.0.0.1")
    with Relay(made.port) as between:
        one = between.client()
        twice = [await asyncio.to_thread(lambda: b"".join(one.read("key", {}))) for _ in range(2)]
        one.close()
    await made.close()
    assert twice == [(tmp_path / "key").read_bytes()] * 2
    sealed = re.findall(rb'"sealed": "([0-9a-f]+)"', bytes(between.seen))
    assert len(set(sealed)) == 2 and b"tenant" not in between.seen


@pytest.mark.parametrize("spoil", ["request", "answer"])
@running
async def test_what_is_altered_on_its_way_is_not_obeyed(tmp_path: Path, spoil: str) -> None:
    done: list[Any] = []

    async def echo(args: dict[str, Any]) -> Any:
        done.append(args)
        return args

    made = PeerServer(TOKEN, {"echo": echo})
    await made.open("127.0.0.1")

    def alter(data: bytes, upwards: bool) -> bytes:
        return data.replace(b"pay 1", b"pay 9") if upwards == (spoil == "request") else data

    with Relay(made.port, alter) as between, pytest.raises(PeerSilent):
        await asyncio.to_thread(between.client().ask, "echo", {"do": "pay 1"})
    await made.close()
    assert done == ([] if spoil == "request" else [{"do": "pay 1"}])


@running
async def test_a_recorded_request_is_refused_in_its_own_connection_and_in_others(tmp_path: Path) -> None:
    done: list[Any] = []

    async def echo(args: dict[str, Any]) -> Any:
        done.append(args)
        return args

    made = PeerServer(TOKEN, {"echo": echo})
    await made.open("127.0.0.1")
    with Relay(made.port) as between:
        one = between.client()
        await asyncio.to_thread(one.ask, "echo", {})
        recorded = b"".join(between.up)
        request = recorded[recorded.index(b"\n", 80) + 1 :]
        await asyncio.to_thread(between.inject, request)
        with pytest.raises(PeerSilent):
            await asyncio.to_thread(one.ask, "echo", {})
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    writer.write(recorded)
    assert (await reader.readline()).startswith(auth.HELLO)
    assert "wrong token" in json.loads(await reader.readline())["error"]
    writer.close()
    await made.close()
    assert done == [{}]


def test_proofs_cannot_be_reflected() -> None:
    """What a server proves with is no proof of a client, and an answer is no request."""
    one = auth.PeerSession(TOKEN, b"c" * 32, b"s" * 32)
    with pytest.raises(auth.NotAuthentic):
        one.check_client(one.proof(b"server") + b"\n")
    frame = one.frame(b"answer", b"{}")
    with pytest.raises(auth.NotAuthentic):
        one.check(b"request", frame[:64], b"{}")


@running
async def test_unproven_connections_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewright.agent.peer_rpc.MOST_UNPROVEN", 3)
    async with peer_server(tmp_path) as made:
        idle = [await asyncio.open_connection("127.0.0.1", made.port) for _ in range(5)]
        assert await asyncio.to_thread(client(made).ask, "echo", {}) == {}
        assert await idle[0][0].read() == b""
        for _, writer in idle:
            writer.close()


@running
async def test_unproven_connections_that_come_all_at_once_are_limited_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidewright.agent.peer_rpc.MOST_UNPROVEN", 3)
    async with peer_server(tmp_path) as made:
        idle = [
            socket.create_connection(("127.0.0.1", made.port)) for _ in range(40)
        ]  # the server sees none of them yet
        assert await asyncio.to_thread(client(made).ask, "echo", {}) == {}
        assert len(made._clients) <= 5, "those kept, and the one that has asked"
        for each in idle:
            each.close()


@running
async def test_a_peer_that_closes_in_the_middle(tmp_path: Path) -> None:
    def serve(connection: socket.socket) -> None:
        file = connection.makefile("rb")
        session = auth.PeerSession(TOKEN, auth.read_client_hello(file.readline()), auth.nonce())
        connection.sendall(session.server_hello())
        session.check_client(file.readline())
        mac, size = auth.read_head(file.read(auth.HEAD_BYTES), 1000)
        payload, session.number = file.read(size), 1
        session.check(b"request", mac, payload)
        connection.sendall(session.frame(b"answer", b'{"ok": null, "bytes": 100}') + b"only this")

    with Impostor(serve) as other, pytest.raises(WorldError, match="closed the connection"):
        await asyncio.to_thread(lambda: list(other.client().read("part", {})))


@running
async def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(WorldError, match="node other does not answer"):
        await asyncio.to_thread(PeerClient(Peer("other", "127.0.0.1", port), TOKEN).ask, "echo", {})


@running
async def test_a_taken_port_is_given_up_for_a_free_one(tmp_path: Path) -> None:
    async with peer_server(tmp_path) as made:
        second = PeerServer(TOKEN, {})
        await second.open("127.0.0.1", made.port)
        assert second.port not in (0, made.port)
        await second.close()
