"""The client's own errors, and what importing it costs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidewright.base.errors import Busy, NotFound, Unreachable, UsageError, WorldError
from tidewright.wire.client import Client, default_state


def test_no_controller_names_the_next_command(tmp_path: Path) -> None:
    with pytest.raises(Unreachable) as caught:
        Client(tmp_path).info()
    assert caught.value.remedy == "start it with tide up" and str(tmp_path) in caught.value.message
    with pytest.raises(Unreachable):
        list(Client(tmp_path).logs(1))


def test_an_empty_name_is_no_address(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="empty name of a job"):
        Client(tmp_path).cancel("")


def test_a_name_with_a_slash_is_no_other_address(tmp_path: Path) -> None:
    for ref in ("../../etc", "12/logs"):
        with pytest.raises(NotFound, match=f"no job called '{ref}'"):
            Client(tmp_path).job(ref)


def test_a_socket_nobody_listens_on(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "controller.sock"))
    with pytest.raises(Unreachable):
        Client(tmp_path).info()


def _answer(path: Path, data: bytes | None) -> threading.Thread:
    """A server that answers one request with ``data``, or never."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        with listener, listener.accept()[0] as peer:
            peer.recv(65536)
            if data is None:
                peer.recv(1)
            else:
                peer.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


def test_a_controller_that_does_not_answer_in_time(tmp_path: Path) -> None:
    thread = _answer(tmp_path / "controller.sock", None)
    with Client(tmp_path, timeout=0.1) as client, pytest.raises(WorldError, match="no answer within") as caught:
        client.info()
    assert "tide down ends it" in str(caught.value) and "controller.log" in str(caught.value)
    thread.join(5)


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "not understood"),
        (b"HTTP/1.1 500 Oops\r\ncontent-length: 4\r\n\r\nouch", "answered 500: ouch"),
        (b"SSH-2.0-OpenSSH\r\n", "no controller answers"),
        (b"", "no controller answers"),
    ],
)
def test_answers_of_somebody_else(tmp_path: Path, answer: bytes, says: str) -> None:
    thread = _answer(tmp_path / "controller.sock", answer)
    with Client(tmp_path) as client, pytest.raises(UsageError, match=says):
        client.info()
    thread.join(5)


def test_a_controller_that_has_too_many_questions_says_when_to_ask_again(tmp_path: Path) -> None:
    body = b'{"error": "10 questions wait", "code": "busy"}'
    head = b"HTTP/1.1 503 Busy\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n" % len(body)
    thread = _answer(tmp_path / "controller.sock", head + body)
    with Client(tmp_path) as client, pytest.raises(Busy, match="10 questions wait") as caught:
        client.eta(1)
    assert caught.value.retry_s == 7.0
    thread.join(5)


@pytest.mark.parametrize(("scheme", "says"), [("http", "write https://"), ("https", "write http://")])
def test_an_address_asked_in_the_wrong_scheme(scheme: str, says: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            with listener.accept()[0] as peer:
                peer.recv(65536)
                if scheme == "https":
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(Unreachable) as caught:
            Client(url=f"{scheme}://127.0.0.1:{listener.getsockname()[1]}").info()
        thread.join(5)
    assert says in caught.value.remedy


def test_an_address_where_nothing_listens_is_not_started_from_here() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    with pytest.raises(Unreachable) as caught:
        Client(url=f"http://127.0.0.1:{port}").info()
    assert "on its machine" in caught.value.remedy


def test_addresses_that_are_none() -> None:
    for url in ("ftp://host", "http://", "http://host:port"):
        with pytest.raises(UsageError, match="not an address"):
            Client(url=url).info()


def test_the_state_directory_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDE_STATE", str(tmp_path / "a"))
    assert default_state() == tmp_path / "a"
    monkeypatch.delenv("TIDE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "b"))
    assert default_state() == tmp_path / "b" / "tidewright"
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_state() == tmp_path / ".local/state/tidewright"


def test_importing_the_client_loads_nothing_heavy() -> None:
    code = "import sys, tidewright.wire.client; print([m for m in ('numpy','starlette','uvicorn','rich') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"
