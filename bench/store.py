"""The image store on images of real PyTorch ranks: what is new in each, what ten checkpoints of four ranks take, how fast.

The ranks train as DDP does, by CRIU's leave: same parameters, own data, gradients averaged; each works out the others'
gradients itself, so that no socket is open when it is dumped (and a large rank is 1.2 GB, not 740 MB). Those of a real
job are measured by bench/images.py.
Needs root and CRIU (`tide setup criu`).

Run: python bench/store.py [small] [large]
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from facts import keep
from tidewright.checkpoint.criu.driver import CriuDriver, find_criu
from tidewright.checkpoint.processes import PROC, alive, send
from tidewright.checkpoint.protocol import RankHandle
from tidewright.checkpoint.store import FsspecRemote, ImageName, ImageStore
from tidewright.launch import shim

RANKS, CHECKPOINTS, STEPS = 4, 10, {"small": 20, "large": 5}
BARS = {"small": 0.6, "large": 1.5}
"""Of one raw set of images, on disk, for CHECKPOINTS of them."""
BAR_NEXT, BAR_RANK, BAR_PUT, BAR_GET = 0.10, 0.45, 300e6, 1e9
PROGRAM = """
import os, sys, time
import torch, torch.distributed
import torch.nn as nn
rank, world, size, root = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
torch.set_num_threads(1)
torch.manual_seed(0)
dims, batch = ([256, 512, 512, 10], 128) if size == "small" else ([1024] + [2048] * 6 + [1024], 32)
layers = [layer for a, b in zip(dims, dims[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
model = nn.Sequential(*layers[:-1])
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
step = 0
while True:
    data = [torch.Generator().manual_seed(1000 * step + each) for each in range(world)]
    mine = {}
    for each in [other for other in range(world) if other != rank] + [rank]:
        optimizer.zero_grad()
        x = torch.randn(batch, dims[0], generator=data[each])
        nn.functional.mse_loss(model(x), torch.randn(batch, dims[-1], generator=data[each])).backward()
        mine[each] = [p.grad for p in model.parameters()]
    for at, p in enumerate(model.parameters()):  # always in the order of ranks: sums are then equal to the last bit
        p.grad = sum(mine[each][at] for each in range(world)) / world
    del mine
    optimizer.step()
    step += 1
    with open(f"{root}/at.{rank}", "w") as file:
        file.write(str(step))
    while step >= int(open(f"{root}/allowed").read() or 0):
        time.sleep(0.02)
"""


class Ranks:
    """Real ranks behind real shims, in step with ``allowed``."""

    def __init__(self, root: Path, size: str, driver: CriuDriver) -> None:
        self._root, self._driver = root, driver
        self._allow(0)
        self._step = 0
        self.handles = [self._start(rank, size) for rank in range(RANKS)]

    def _allow(self, step: int) -> None:
        draft = self._root / "draft"
        draft.write_text(str(step))
        draft.rename(self._root / "allowed")

    def _start(self, rank: int, size: str) -> RankHandle:
        directory = self._root / str(rank)
        for path in (directory / "box", self._root / "slots", self._root / "logs", self._root / "workdir"):
            path.mkdir(parents=True, exist_ok=True)
        shared = {name: str(self._root / name) for name in ("slots", "logs")}
        spec = {
            "command": [sys.executable, "-c", PROGRAM, str(rank), str(RANKS), size, str(self._root)],
            "env": {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "USE_LIBUV": "0"},
            # Its own and empty: Python remembers a listing of where it starts, and a longer one moves all that follows.
            "workdir": str(self._root / "workdir"), "log": str(self._root / "logs" / f"{rank}.log"), "own_log": False,
            "fresh_log": False, "cpus": [], "cgroups": [], "grace_us": 500_000, "umask": 0o022, "no_aslr": True,
            "box": {"rank": str(directory / "box"), "lib": str(self._root / "slots"), **shared},
        }  # fmt: skip
        (directory / "spec.json").write_text(json.dumps(spec))
        subprocess.run([sys.executable, "-I", "-S", shim.__file__, str(directory)], env={}, check=True, timeout=60)
        if not (directory / "started").exists():
            raise SystemExit((directory / "error").read_text())
        started, owner = (json.loads((directory / name).read_text()) for name in ("started", "shim"))
        return RankHandle(
            rank=rank, pid=started["pid"], start=started["start"], init=started["init"], shim=owner["pid"]
        )

    def train(self, steps: int) -> None:
        """Let all take so many steps more."""
        self._step += steps
        self._allow(self._step)
        deadline = time.monotonic() + 600
        while any(self._at(rank) < self._step for rank in range(RANKS)):
            if time.monotonic() > deadline or not all(alive(each.pid, each.start) for each in self.handles):
                raise SystemExit(f"ranks do not train: {(self._root / 'logs' / '0.log').read_text()[-2000:]}")
            time.sleep(0.05)
        time.sleep(0.2)

    def _at(self, rank: int) -> int:
        try:
            return int((self._root / f"at.{rank}").read_text() or 0)
        except FileNotFoundError:
            return 0

    def dump(self, directory: Path) -> None:
        self._driver.dump(self.handles, directory, leave_running=True)

    def end(self) -> None:
        self._driver.finish(self.handles)
        for each in self.handles:
            send([each.init], 9)


def checkpoints(ranks: Ranks, store: ImageStore, work: Path, size: str) -> dict[str, Any]:
    """Ten checkpoints: shares of new bytes by checkpoint and rank, and the size on disk after each."""
    new: list[list[float]] = []
    disk: list[float] = []
    raw = 0
    for serial in range(1, CHECKPOINTS + 1):
        ranks.train(STEPS[size])
        directory = work / str(serial)
        ranks.dump(directory)
        reports = [store.put(ImageName("bench", 1, serial, rank), directory / str(rank)) for rank in range(RANKS)]
        raw = raw or sum(report.raw_bytes for report in reports)
        new.append([report.new_bytes / report.raw_bytes for report in reports])
        disk.append(store.stored_bytes() / raw)
        print(f"  {size} {serial:2d}: new {' '.join(f'{100 * x:5.1f} %' for x in new[-1])}   disk {disk[-1]:.3f}")
        if serial > 1:
            shutil.rmtree(directory)
    return {"raw_mb_per_rank": raw / RANKS / 1e6, "new": new, "disk": disk}


def speeds(store: ImageStore, raw: Path, work: Path) -> dict[str, float]:
    """MB/s of processor time on one core to put a first image, of wall time to get and copy one; medians of three."""
    put, wall, get, push, pull = [], [], [], [], []
    for number in range(3):
        fresh, name = ImageStore(work / f"fresh{number}"), ImageName("bench", 1, 1, 0)
        used, began = time.process_time(), time.perf_counter()
        size = fresh.put(name, raw / "0").raw_bytes
        put.append(size / (time.process_time() - used) / 1e6)
        wall.append(size / (time.perf_counter() - began) / 1e6)
        get.append(size / _timed(lambda s=fresh, n=name: s.get(n, work / "out")) / 1e6)
        remote = FsspecRemote(f"file://{work}/remote{number}")
        push.append(size / _timed(lambda s=fresh, n=name, r=remote: s.push(n, r)) / 1e6)
        there = ImageStore(work / f"there{number}")
        pull.append(size / _timed(lambda t=there, n=name, r=remote: t.pull(n, r)) / 1e6)
        for path in ("out", f"fresh{number}", f"there{number}", f"remote{number}"):
            shutil.rmtree(work / path)
    verify = store.stored_bytes() / _timed(store.verify) / 1e6
    names = {"put_core": put, "put_wall": wall, "get_wall": get, "push_wall": push, "pull_wall": pull}
    return {**{name: statistics.median(values) for name, values in names.items()}, "verify_wall": verify}


def _timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(size: str, driver: CriuDriver) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="tidewright-bench-") as folder:
        work = Path(folder)
        (work / "job").mkdir()
        ranks = Ranks(work / "job", size, driver)
        try:
            store = ImageStore(work / "store")
            found = checkpoints(ranks, store, work, size)
        finally:
            ranks.end()
        found["mb_per_s"] = speeds(store, work / "1", work)
        for serial in range(1, CHECKPOINTS):
            for rank in range(RANKS):
                store.drop(ImageName("bench", 1, serial, rank))
        found["gc_s"] = _timed(store.gc)
        found["disk_of_last_alone"] = store.stored_bytes() / found["raw_mb_per_rank"] / RANKS / 1e6
        return found


def report(size: str, found: dict[str, Any]) -> None:
    later = statistics.median(found["new"][1])
    others = statistics.median(found["new"][0][1:])
    print(f"{size}: {found['raw_mb_per_rank']:.0f} MB per rank")
    print(f"  second checkpoint, new per rank: {100 * later:.1f} %" + _bar(size, f"{100 * BAR_NEXT:.0f} %"))
    print(f"  second rank, new: {100 * others:.1f} %" + _bar(size, f"{100 * BAR_RANK:.0f} %"))
    print(f"  ten checkpoints of four ranks: {found['disk'][-1]:.2f} of one raw set (bar {BARS[size]})")
    print("  MB/s: " + ", ".join(f"{name} {speed:.0f}" for name, speed in found["mb_per_s"].items())
          + f" (bars: put_core {BAR_PUT / 1e6:.0f}, get_wall {BAR_GET / 1e6:.0f})")  # fmt: skip
    print(f"  collecting nine of ten: {found['gc_s']:.1f} s; the last alone takes {found['disk_of_last_alone']:.2f}")


def _bar(size: str, bar: str) -> str:
    return f" (bar {bar})" if size == "small" else ""


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ranks are ended on the way out
    criu = find_criu()
    if isinstance(criu, str) or os.geteuid() or not PROC.exists():
        print(f"not measured: {criu if isinstance(criu, str) else 'needs root'}")
        return 0
    measured = {}
    for size in sys.argv[1:] or list(STEPS):
        measured[size] = measure(size, CriuDriver("bench", criu))
        report(size, measured[size])
    print(f"kept in {keep('store', measured)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
