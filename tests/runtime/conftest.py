"""Runtimes of tests: processes of their own, on sockets of their own, ended with the test."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tidewright.runtime.client import RuntimeClient


@dataclass
class RunningRuntime:
    socket: Path
    process: subprocess.Popen[bytes]
    log: Path


Start = Callable[..., RunningRuntime]
DAEMON = "tidewright.runtime.daemon"


@pytest.fixture(scope="module")
def start_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Start one with these arguments; all are ended after the module."""
    running: list[RunningRuntime] = []

    def start(*arguments: str, socket: Path | None = None, module: str = DAEMON) -> RunningRuntime:
        folder = tmp_path_factory.mktemp("rt")
        found = RunningRuntime(socket or folder / "s", None, folder / "log")  # type: ignore[arg-type]
        with found.log.open("wb") as log:
            command = [sys.executable, "-m", module, "--socket", str(found.socket), *arguments]
            found.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        assert found.process.stdout is not None
        assert found.process.stdout.readline().startswith(b"runtime: ready"), found.log.read_text()
        running.append(found)
        return found

    yield start
    for one in running:
        one.process.terminate()
    for one in running:
        assert one.process.wait(20) in (0, -9), one.log.read_text()[-2000:]
        assert not children_of(one.process.pid)


def children_of(pid: int) -> list[int]:
    """Processes whose parent is ``pid``, the dead ones left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            found.append(int(entry.parent.name))
    return found


def until(what: Callable[[], bool], limit_s: float = 20.0) -> None:
    """Wait until it is true."""
    ends = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < ends, "it never happened"
        time.sleep(0.005)


def entry_of(client: RuntimeClient) -> dict:  # type: ignore[type-arg]
    """What the runtime says of this client."""
    return next(entry for entry in client.stats()["clients"] if entry["queue"] == client.queue)
