"""A real controller with few descriptors against 1,200 half requests."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.ports import free_port
from tidewright.base.errors import TideError
from tidewright.wire.client import Client

pytestmark = pytest.mark.processes
STRANGERS = 1_200


def test_1200_half_requests_starve_neither_the_socket_nor_the_log(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < STRANGERS + 500:
        pytest.skip(f"this machine allows {hard} open files")
    port = free_port()
    state, log = tmp_path / "state", tmp_path / "log"
    argv = [sys.executable, "-m", "tidewright.app.daemon", "--state", str(state), "--listen", f"127.0.0.1:{port}"]
    argv += ["--jobs-as", "nobody"] * (os.geteuid() == 0)
    with log.open("wb") as out:
        limited = ["/bin/sh", "-c", 'ulimit -n 1024 && exec "$@"', "sh", *argv, "--agent-socket", f"{tmp_path}/none"]
        daemon = subprocess.Popen(limited, stdout=out, stderr=out)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, STRANGERS + 500), hard))
    try:
        _up(state)
        with contextlib.ExitStack() as stack:
            for number in range(STRANGERS):
                sock = stack.enter_context(socket.socket())
                sock.bind((f"127.0.{1 + number // 200}.{1 + number % 200}", 0))
                sock.connect(("127.0.0.1", port))
                with contextlib.suppress(OSError):
                    sock.sendall(b"GET /v1/jobs HTTP/1.1\r\nhost: x\r\nx-filler: ")
            assert Client(state, timeout=20).jobs().jobs == ()
            token = (state / "token").read_text().strip()
            assert Client(url=f"127.0.0.1:{port}", token=token, timeout=20).info().pid == daemon.pid
        assert log.stat().st_size < 64 * 1024
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        daemon.terminate()
        daemon.wait(20)


def _up(state: Path) -> None:
    for _ in range(400):
        try:
            Client(state).info()
            return
        except TideError:
            time.sleep(0.05)
    raise AssertionError("the controller did not come up")
