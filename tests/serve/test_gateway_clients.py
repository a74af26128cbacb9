"""Clients of the gateway that leave, trickle or come in crowds, over real sockets."""

from __future__ import annotations

import contextlib
import itertools
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from .gateway_process import Serving, request_bytes

pytestmark = pytest.mark.processes


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    made = Serving(tmp_path)
    yield made
    made.close()


def test_a_client_that_leaves_while_its_request_waits_is_forgotten(serving: Serving, tmp_path: Path) -> None:
    serving.replica("gated", env={"GATE": str(tmp_path / "gate")}, objective_us=60_000_000)
    first = serving.connect(request_bytes("gated", 1))
    serving.until(lambda: (tmp_path / "gate.1").exists())  # it runs; the model takes one at a time
    second = serving.connect(request_bytes("gated", 2))
    serving.until(lambda: serving.waiting("gated") == 1)
    second.close()
    serving.until(lambda: serving.waiting("gated") == 0)
    assert serving.requests("gated") == {"gone": 1}
    (tmp_path / "gate").touch()
    assert first.recv(12) == b"HTTP/1.1 200"
    assert serving.infer("gated", 3)[0] == 200 and not (tmp_path / "gate.2").exists()
    assert serving.requests("gated") == {"gone": 1, "ok": 2}


def test_one_that_leaves_in_mid_batch_harms_no_other(serving: Serving, tmp_path: Path) -> None:
    serving.replica("gated", env={"GATE": str(tmp_path / "gate")}, objective_us=60_000_000)
    first = serving.connect(request_bytes("gated", 1))
    serving.until(lambda: (tmp_path / "gate.1").exists())
    first.close()
    serving.until(lambda: serving.requests("gated") == {"gone": 1})
    (tmp_path / "gate").touch()
    assert serving.infer("gated", 2)[0] == 200
    assert serving.ready("gated") == 1
    assert "Traceback" not in serving.log() and "never retrieved" not in serving.log()


def test_one_that_leaves_in_mid_body_leaves_nothing(serving: Serving) -> None:
    serving.replica("total")
    serving.connect(request_bytes("total", 1)[:-5]).close()
    assert serving.infer("total", 2)[0] == 200
    assert serving.requests("total") == {"ok": 1} and "Traceback" not in serving.log()


def ends(connection: socket.socket) -> bytes:
    """What came until the gateway closed the connection."""
    found = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(4096):
            found += part
    return found


@pytest.mark.parametrize("before", [b"", request_bytes("total", 1)])
def test_a_header_that_trickles_is_cut_off(tmp_path: Path, before: bytes) -> None:
    serving = Serving(tmp_path, header_s=0.3)
    try:
        serving.replica("total")
        slow = serving.connect(before)
        if before:
            assert slow.recv(4096).startswith(b"HTTP/1.1 200")
        with pytest.raises(ConnectionError):  # the gateway closes it; without the bound this would write for ever
            for byte in itertools.cycle(b"GET / HTTP/1.1\r\nx: y\r\n"):
                slow.sendall(bytes([byte]))
                time.sleep(0.01)
        assert ends(serving.connect(b"")) == b""  # nor does one stay that says nothing
        assert serving.infer("total", 1)[0] == 200
    finally:
        serving.close()


def test_a_header_without_end_is_cut_off(serving: Serving) -> None:
    greedy = serving.connect(b"GET / HTTP/1.1\r\n")
    with pytest.raises(ConnectionError):
        while True:
            greedy.sendall(b"x: " + b"y" * 1000 + b"\r\n")


def test_a_client_can_send_all_of_a_body_that_is_too_large_before_it_reads_the_answer(serving: Serving) -> None:
    serving.replica("total")
    head = b"POST /v2/models/total/infer HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    greedy = serving.connect(head % 5_000_000 + bytes(5_000_000))
    assert greedy.recv(4096).startswith(b"HTTP/1.1 413")
    greedy.sendall(request_bytes("total", 1))
    assert greedy.recv(4096).startswith(b"HTTP/1.1 200")


def test_connections_are_bounded_and_the_silent_go_first(tmp_path: Path) -> None:
    serving = Serving(tmp_path, total=4, each=4)
    try:
        serving.replica("gated", env={"GATE": str(tmp_path / "gate")}, objective_us=60_000_000)
        busy = [serving.connect(request_bytes("gated", 1)) for _ in range(3)]
        serving.until(lambda: serving.waiting("gated") == 2)
        silent = serving.connect()
        assert serving.ask("GET", "/v2/health/live")[0] == 200
        assert ends(silent) == b""
        busy.append(serving.connect(request_bytes("gated", 1)))
        serving.until(lambda: b"503" in (found := ends(serving.connect())) and b"too many connections" in found)
        (tmp_path / "gate").touch()
        assert [one.recv(12) for one in busy] == [b"HTTP/1.1 200"] * 4
    finally:
        serving.close()


def test_a_body_whose_request_was_refused_does_not_hold_its_connection(tmp_path: Path) -> None:
    serving = Serving(tmp_path, header_s=0.3)
    try:
        slow = serving.connect(b"POST /v2/models/none/infer HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n")
        assert ends(slow).startswith(b"HTTP/1.1 404")
    finally:
        serving.close()
