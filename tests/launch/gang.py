"""Ranks with their directories, the rendezvous store, and an agent's operations: what tests of the wrapper drive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tidewright.agent.checkpointing.control_pages import LocalPages
from tidewright.agent.rendezvous.server import RendezvousServer
from tidewright.checkpoint.cut.barrier import CutReport, cut, release

from .warm import Warm, WarmRank

PROGRAMS = Path(__file__).parent / "inject_programs"
INJECT = Path(__file__).parents[2] / "src/tidewright/launch/inject"
PYTHON = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""Read as Python and its libraries are loaded."""


class Server:
    """A rendezvous server in a thread, which can move to another port and address."""

    def __init__(self, directory: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.directory = directory
        self.meet = RendezvousServer(directory)
        self.token = self.meet_token()
        self.address, self.port = "127.0.0.1", self.do(self.meet.start("127.0.0.1"))

    def meet_token(self) -> str:
        async def opened() -> str:
            self.directory.mkdir(parents=True, exist_ok=True)
            return self.meet.open_job("1")

        return self.do(opened())

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(20)

    def move(self, address: str) -> None:
        """Another server on another address has the keys: by ``dump`` and ``load``."""

        async def moved() -> int:
            data = self.meet.dump("1")
            await self.meet.stop()
            self.meet = RendezvousServer()
            self.meet.load("1", data)
            self.meet.open_job("1", self.token)
            return await self.meet.start(address)

        self.address, self.port = address, self.do(moved())

    def stop(self) -> None:
        self.do(self.meet.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Gang:
    """``size`` ranks of a program of ``inject_programs``; with ``wrapped`` false they run without any wrapper, with ``warm``
    they are forked from that."""

    def __init__(
        self, place: Path, size: int, argv: list[str], wrapped: bool = True, warm: Warm | None = None, **environ: str
    ) -> None:
        self.place, self.size, self.argv, self.wrapped, self.warm = place, size, argv, wrapped, warm
        place.mkdir(parents=True)
        self.out = place / "out"
        self.environ = environ
        self.rank_dirs = {rank: place / f"rank_dir{rank}" for rank in range(size)}
        self.server = Server(place / "meet") if wrapped else None
        self.ranks: list[subprocess.Popen | WarmRank] = []

    def start(self, port: int) -> None:
        for rank, rank_dir in self.rank_dirs.items():
            rank_dir.mkdir()
            if self.wrapped:
                self.reach(rank, f"127.0.0.{rank % 4 + 1}")
            self.ranks.append(self._start(rank, rank_dir, port))

    def reach(self, rank: int, host: str) -> None:
        assert self.server is not None
        where = {"address": self.server.address, "port": self.server.port, "token": self.server.token}
        text = json.dumps({**where, "host": host, "devices": [0], "share": 1})
        (self.rank_dirs[rank] / "reach.new").write_text(text)
        os.replace(self.rank_dirs[rank] / "reach.new", self.rank_dirs[rank] / "reach.json")

    def _start(self, rank: int, rank_dir: Path, port: int) -> subprocess.Popen | WarmRank:
        environ = {key: value for key, value in os.environ.items() if not key.startswith("TIDE_")}
        environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.size), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port), "OUT": str(self.out), "USE_LIBUV": "0", "PYTHONPATH": str(PROGRAMS),
            **PYTHON, **self.environ,
        }  # fmt: skip
        if self.wrapped:
            environ |= {"TIDE_BOX": str(rank_dir), "TIDE_STEP_FILE": str(rank_dir / "step")}
            environ["PYTHONPATH"] = f"{INJECT}:{PROGRAMS}"
        if self.warm is not None:
            return WarmRank(self.warm, self.argv, environ, PROGRAMS, self.place / f"log{rank}")
        log = (self.place / f"log{rank}").open("wb")
        return subprocess.Popen([sys.executable, *self.argv], env=environ, stdout=log, stderr=log, cwd=PROGRAMS)

    def running(self) -> bool:
        return any(rank.poll() is None for rank in self.ranks)

    def pages(self, ranks: list[int] | None = None) -> LocalPages:
        chosen = self.rank_dirs if ranks is None else {rank: self.rank_dirs[rank] for rank in ranks}
        return LocalPages(chosen)

    def parties(self) -> list[LocalPages]:
        """As two nodes would have them."""
        half = self.size // 2
        return [self.pages(list(range(half))), self.pages(list(range(half, self.size)))] if half else [self.pages()]

    def cut(self, timeout_s: float = 60) -> CutReport:
        return cut(self.parties(), timeout_us=int(timeout_s * 1e6))

    def release(self) -> None:
        release(self.parties())

    def wait(self, timeout_s: float = 120) -> dict[int, dict]:
        """What the ranks left, once they have ended well."""
        until = time.monotonic() + timeout_s
        for rank in self.ranks:
            rank.wait(max(0.1, until - time.monotonic()))
        assert not any(map(self._failed, range(self.size))), self.logs()
        return {rank: json.loads(Path(f"{self.out}.{rank}").read_text()) for rank in range(self.size)}

    def _failed(self, rank: int) -> bool:
        """PyTorch 2.13 by itself was seen to abort as it exits, on a busy machine and with all its work done ("terminate
        called without an active exception"); what is compared with it may not."""
        code = self.ranks[rank].returncode
        return bool(code) and (self.wrapped or code != -signal.SIGABRT or not Path(f"{self.out}.{rank}").exists())

    def logs(self) -> str:
        return "\n".join(f"-- {rank}\n{(self.place / f'log{rank}').read_text()[-3000:]}" for rank in range(self.size))

    def end(self) -> None:
        for rank in self.ranks:
            if rank.poll() is None:
                rank.kill()
            rank.wait()
        if self.server is not None:
            self.server.stop()


def harass(
    gang: Gang,
    seed: int,
    cuts: int,
    pause_s: float = 0.2,
    move: bool = True,
    timeout_s: float = 60,
    check: Callable[[Gang], None] | None = None,
) -> list[CutReport]:
    """Cut and release at random moments until there were ``cuts`` or the ranks have ended.

    ``check`` instead of ``check_disconnected``: for programs with sockets of their own.
    """
    rng = random.Random(seed)
    reports = []
    while gang.running() and len(reports) < cuts:
        time.sleep(rng.random() * pause_s)
        report = gang.cut(timeout_s)
        if report.ranks:
            reports.append(report)
            (check or check_disconnected)(gang)
            if move:
                move_to(gang, rng)
        gang.release()
    return reports


def check_disconnected(gang: Gang) -> None:
    """No socket is open in a rank that stands still.

    Files may come and go: its threads compute on until they come to their next operation, and write logs meanwhile. One
    that has ended holds nothing.
    """
    for page in (state for party in gang.parties() for state in party.read()):
        if page.dead:
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for file in Path(f"/proc/{page.pid}/fd").iterdir():
                target = link_of(file)
                assert not target.startswith("socket:"), (page, target)


def link_of(file: Path) -> str:
    """What a descriptor is; "" when it was closed just now."""
    with contextlib.suppress(FileNotFoundError):
        return os.readlink(file)
    return ""


def move_to(gang: Gang, rng: random.Random) -> None:
    """As after a migration: the store elsewhere, the ranks at other addresses."""
    assert gang.server is not None
    gang.server.move(f"127.0.0.{rng.randint(1, 9)}")
    for rank in gang.rank_dirs:
        gang.reach(rank, f"127.0.0.{rng.randint(1, 9)}")
