"""Strangers at the controller's door: half requests, slow ones, too many; over real sockets, on loopback only."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ports import free_port
from tidewright.live.api import server
from tidewright.wire.client import Client
from tidewright.wire.connections import Limits

HALF = b"GET /v1/info HTTP/1.1\r\nhost: x\r\nx-filler: "


@contextlib.contextmanager
def _many(port: int, count: int, text: bytes, sources: int = 1) -> Iterator[list[socket.socket]]:
    """So many connections, each with ``text`` sent, from so many addresses of loopback."""
    with contextlib.ExitStack() as stack:
        found = []
        for number in range(count):
            sock = stack.enter_context(socket.socket())
            sock.settimeout(10)
            sock.bind((f"127.0.0.{2 + number % sources}", 0))
            sock.connect(("127.0.0.1", port))
            with contextlib.suppress(OSError):
                sock.sendall(text)
            found.append(sock)
        yield found


def _rest(sock: socket.socket) -> bytes:
    """What comes until the other side closes."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while piece := sock.recv(65536):
            found += piece
    return found


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        server, "limits", lambda *_: Limits(total=40, each=10, header_s=0.6, body_s=0.6, body_rate=1000)
    )


@pytest.mark.parametrize("sources", [1, 30])
def test_half_requests_block_no_other_client(running, small, sources: int) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    with running(listen=f"127.0.0.1:{port}") as server, _many(port, 120, HALF, sources), server.client() as client:
        assert client.info().policy == "first-fit"
        assert client.jobs().jobs == ()
        token = (server.state / "token").read_text().strip()
        with Client(url=f"127.0.0.1:{port}", token=token) as other:
            assert other.info().policy == "first-fit"


def test_a_request_that_is_never_finished_is_cut_off(running, small) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    body = b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{"
    with running(listen=f"127.0.0.1:{port}"):
        for text in (b"", HALF, body):
            with _many(port, 1, text) as (sock,):
                answer = _rest(sock)
                assert b"HTTP/1.1 401" in answer if text == body else answer == b""


def test_a_slow_body_on_the_socket_is_cut_off_and_a_steady_one_is_not(running, small) -> None:  # type: ignore[no-untyped-def]
    with running() as server, socket.socket(socket.AF_UNIX) as slow, socket.socket(socket.AF_UNIX) as steady:
        body = json.dumps({"specs": [{"command": ["true"]}]}).encode().ljust(2000)
        for sock in (slow, steady):
            sock.settimeout(20)
            sock.connect(str(server.state / "controller.sock"))
            sock.sendall(b"POST /v1/jobs HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2000\r\n\r\n")
        for at in range(0, 2000, 200):  # two seconds of it: more than the time of a silent one
            steady.sendall(body[at : at + 200])
            time.sleep(0.1)
        assert b"HTTP/1.1 200" in _rest(steady)
        assert _rest(slow) == b""
        assert [job.id for job in server.client().jobs(all=True).jobs] == [1]


def test_more_busy_connections_than_there_is_room_for_are_refused(running, small) -> None:  # type: ignore[no-untyped-def]
    port = free_port()
    with running(listen=f"127.0.0.1:{port}") as server:
        token = (server.state / "token").read_text().strip()
        watch = f"GET /v1/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n".encode()
        with _many(port, 10, watch) as watching:
            for sock in watching:
                assert sock.recv(12) == b"HTTP/1.1 200"
            with _many(port, 1, b"") as (late,):
                answer = _rest(late)
            assert answer.startswith(b"HTTP/1.1 503") and b"too many connections" in answer
            with Client(url=f"127.0.0.1:{port}", token=token) as other:  # from another address
                assert other.info().policy == "first-fit"


def test_keep_alive_connections_wait_without_a_request_being_late(running, small) -> None:  # type: ignore[no-untyped-def]
    with running() as server, server.client() as client:
        client.info()
        kept = client._kept
        threading.Event().wait(1.0)
        client.info()
        assert kept is not None and client._kept is kept


def test_a_socket_file_that_vanishes_comes_back(running) -> None:  # type: ignore[no-untyped-def]
    with running() as server:
        path: Path = server.state / "controller.sock"
        with server.client() as before:
            before.info()
            path.unlink()
            deadline = time.monotonic() + 10
            while not path.exists() and time.monotonic() < deadline:
                time.sleep(0.05)
            assert server.client().info().policy == before.info().policy
