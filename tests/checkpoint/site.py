"""Two nodes of one machine for tests of full images: real shims, real ranks, real CRIU, on temporary directories."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.criu_here import criu_here
from tidewright.checkpoint import cgroup
from tidewright.checkpoint.criu.driver import Criu, CriuDriver
from tidewright.checkpoint.processes import alive, send
from tidewright.checkpoint.protocol import Gang, RankHandle
from tidewright.launch import shim

CHAIN = """
import hashlib, time
link = b""
while True:
    link = hashlib.sha256(link).digest()
    print(link.hex()[:16], flush=True)
    time.sleep(0.002)
"""
"""A program that would show every step lost, repeated or gone wrong."""
ENV = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}


def chain(length: int) -> list[str]:
    """What CHAIN prints first when nothing disturbs it."""
    link, lines = b"", []
    for _ in range(length):
        link = hashlib.sha256(link).digest()
        lines.append(link.hex()[:16])
    return lines


def criu_or_skip() -> Criu:
    """The CRIU of this machine; without one the test is skipped, with the reason."""
    found = criu_here()
    if isinstance(found, str):
        pytest.skip(found)
    return found


class Site:
    """Ranks by directory below ``root``; ``node`` names are free."""

    def __init__(self, root: Path, criu: Criu) -> None:
        self.root, self.criu = root, criu
        self.handles: list[RankHandle] = []
        self._count = 0

    def log(self, node: str, rank: int) -> Path:
        return self.root / node / "logs" / f"rank{rank}.log"

    def directory(self, node: str, rank: int) -> Path:
        self._count += 1
        directory = self.root / node / f"{rank}.{self._count}"
        for path in (directory / "box", self.root / node / "slots", self.root / node / "logs"):
            path.mkdir(parents=True, exist_ok=True)
        return directory

    def launch(self, node: str, rank: int = 0, *, sandboxed: bool = True, at: Path | None = None, **more: Any) -> Path:
        """Start a shim, in a new directory or ``at`` one; its directory, with ``started`` or ``error`` in it."""
        directory = at or self.directory(node, rank)
        places = {name: str(self.root / node / name) for name in ("slots", "logs")}
        mounts = {"rank": str(directory / "box"), "lib": str(self.root / node / "slots"), **places}
        spec = {
            "command": [sys.executable, "-I", "-S", "-c", CHAIN],
            "env": ENV,
            "workdir": str(self.root),
            "log": str(self.log(node, rank)),
            "own_log": False,
            "fresh_log": False,
            "cpus": [],
            "cgroups": [],
            "grace_us": 500_000,
            "umask": 0o022,
            "box": mounts if sandboxed else None,
            "no_aslr": True,
            **more,
        }
        (directory / "spec.json").write_text(json.dumps(spec))
        subprocess.run([sys.executable, "-I", "-S", shim.__file__, str(directory)], env={}, check=True, timeout=60)
        if (directory / "started").exists():
            self.handles.append(self.handle(directory, rank, spec["cgroups"]))
        return directory

    def handle(self, directory: Path, rank: int = 0, groups: Any = ()) -> RankHandle:
        started, owner = self.read(directory, "started"), self.read(directory, "shim")
        return RankHandle(
            rank=rank,
            pid=started["pid"],
            start=started["start"],
            init=started.get("init", 0),
            shim=owner["pid"],
            cgroups=tuple(groups),
        )

    @staticmethod
    def read(directory: Path, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((directory / name).read_text())
        return found

    def start(self, world: int = 1, **more: Any) -> Gang:
        """A gang on node ``a``."""
        ranks = tuple(self.handle(self.launch("a", rank, **more), rank) for rank in range(world))
        return Gang(job=1, attempt=1, world_size=world, ranks=ranks)

    def gang_of_last(self, gang: Gang) -> Gang:
        """The same gang as the ranks that were started last."""
        return Gang(job=1, attempt=1, world_size=gang.world_size, ranks=tuple(self.handles[-gang.world_size :]))

    def driver(self, node: str, criu: Criu | None = None) -> CriuDriver:
        """A driver whose restored ranks live on ``node``; images of all drivers lie in one place."""

        def bring(old: RankHandle, restore: dict[str, Any], cpus: tuple[int, ...]) -> RankHandle:
            directory = self.launch(node, old.rank, restore=restore, cpus=list(cpus))
            return self.handle(directory, old.rank)

        return CriuDriver(node, criu or self.criu, self.root / "images", bring)

    def output(self, node: str, rank: int = 0) -> list[str]:
        """Whole lines that a rank has printed."""
        path = self.log(node, rank)
        return path.read_text().split("\n")[:-1] if path.exists() else []

    def ended(self, directory: Path) -> dict[str, Any]:
        """The exit file, once it is there."""
        assert cgroup.wait_until((directory / "exit").exists, 10)
        return self.read(directory, "exit")

    def clean(self) -> None:
        """Kill what the test started, by pid."""
        for handle in self.handles:
            if alive(handle.pid, handle.start):
                send([handle.init or handle.pid], signal.SIGKILL)
        for handle in self.handles:
            with contextlib.suppress(AssertionError):
                cgroup.wait_until(lambda handle=handle: not alive(handle.pid, handle.start), 5)
