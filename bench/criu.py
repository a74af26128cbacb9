"""Full images of one and two ranks of a small training job (0.4 M parameters, 240 MB of memory): what each step costs.

Suspend: dump side by side, then end the processes; the devices are free. Resume: check every hash and this host, then
restore. Migrate: suspend, copy the images to another node's directory, resume there. Nothing is flushed to disk in
these times. Also what a rank of its own namespaces costs at its start. Needs root, CRIU and PyTorch.

Run: python bench/criu.py [--runs 7]
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from facts import keep
from tidewright.checkpoint.criu.driver import CriuDriver, find_criu
from tidewright.checkpoint.processes import alive
from tidewright.checkpoint.protocol import RankHandle
from tidewright.launch import shim

BARS_S = {"suspend": 1.0, "resume": 0.5, "migrate": 2.5}
TRAIN = """
import torch
from torch import nn
torch.set_num_threads(1)
layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
net, rows = nn.Sequential(*layers, nn.Linear(256, 8)), torch.randn(128, 256)
best = torch.optim.AdamW(net.parameters())
while True:
    net(rows).square().mean().backward()
    best.step()
    best.zero_grad()
    print(".", end="", flush=True)
"""


class Bench:
    """Ranks below a temporary directory."""

    def __init__(self, root: Path, driver: CriuDriver) -> None:
        self.root, self.driver = root, driver
        self.handles: list[RankHandle] = []
        self._count = 0

    def start(self, rank: int, command: list[str], *, boxed: bool = True, restore: Any = None) -> Path:
        """Run a shim to the point where its rank runs; the rank's directory."""
        self._count += 1
        directory = self.root / f"{rank}.{self._count}"
        (directory / "box").mkdir(parents=True)
        places = dict.fromkeys(("rank", "lib", "slots", "logs"), str(directory / "box"))
        spec = {
            "command": command, "env": {"PATH": os.environ["PATH"], "HOME": "/"}, "workdir": "/",
            "log": str(directory / "log"), "own_log": False, "fresh_log": False, "cpus": [], "cgroups": [],
            "grace_us": 0, "umask": 0o022, "box": places if boxed else None, "no_aslr": True, "restore": restore,
        }  # fmt: skip
        (directory / "spec.json").write_text(json.dumps(spec))
        subprocess.run([sys.executable, "-I", "-S", shim.__file__, str(directory)], env={}, check=True)
        return directory

    def handle(self, rank: int, directory: Path) -> RankHandle:
        started = json.loads((directory / "started").read_text())
        owner = json.loads((directory / "shim").read_text())["pid"]
        handle = RankHandle(rank=rank, pid=started["pid"], start=started["start"], init=started["init"], shim=owner)
        self.handles.append(handle)
        return handle

    def side_by_side(self, deed: Callable[[int], Any], world: int) -> list[Any]:
        with ThreadPoolExecutor(world) as pool:
            return list(pool.map(deed, range(world)))

    def clean(self) -> None:
        for handle in self.handles:
            if alive(handle.pid, handle.start):
                os.kill(handle.init, signal.SIGKILL)


def steps(directory: Path, least: int) -> None:
    """Wait until a rank has printed so many steps."""
    while (directory / "log").stat().st_size < least:
        time.sleep(0.001)


class Watch:
    """Named laps of one run, seconds."""

    def __init__(self) -> None:
        self.laps: dict[str, float] = {}

    @contextlib.contextmanager
    def lap(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.laps[name] = time.perf_counter() - began


def one_run(bench: Bench, ranks: list[RankHandle], copy: bool) -> tuple[list[RankHandle], dict[str, float]]:
    """Suspend and bring back, perhaps by way of a copy."""
    watch, world, driver = Watch(), len(ranks), bench.driver
    images, other = bench.root / "images", bench.root / "elsewhere"
    shutil.rmtree(other, ignore_errors=True)
    with watch.lap("dump"):
        report = driver.dump(ranks, images, leave_running=False)
    with watch.lap("end"):
        driver.finish(ranks)
    with watch.lap("copy"):
        if copy:
            bench.side_by_side(lambda rank: shutil.copytree(images / str(rank), other / str(rank)), world)
    place = other if copy else images
    with watch.lap("check"):
        specs = bench.side_by_side(lambda rank: driver.restore_spec(place / str(rank)), world)
    with watch.lap("restore"):
        directories = bench.side_by_side(lambda rank: bench.start(rank, [], restore=specs[rank]), world)
    with watch.lap("first step"):
        for directory in directories:
            steps(directory, (place / "0" / "files" / "0").stat().st_size + 1)
    laps = watch.laps
    laps["criu dump"] = max(each.criu_us for each in report.ranks) / 1e6
    laps["image MB per rank"] = report.size_bytes / world / 1e6
    laps["suspend"] = laps["dump"] + laps["end"]
    laps["resume"] = laps["check"] + laps["restore"]
    laps["migrate"] = laps["suspend"] + laps["copy"] + laps["resume"]
    return [bench.handle(rank, directory) for rank, directory in enumerate(directories)], laps


def world_of(bench: Bench, world: int, runs: int) -> dict[str, Any]:
    """Medians over runs with ``world`` ranks; every second run goes by way of a copy, and only those count for it."""
    directories = bench.side_by_side(lambda rank: bench.start(rank, [sys.executable, "-I", "-c", TRAIN]), world)
    ranks = [bench.handle(rank, directory) for rank, directory in enumerate(directories)]
    for directory in directories:
        steps(directory, 20)
    found: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for run in range(2 * runs):
        ranks, laps = one_run(bench, ranks, copy=run % 2 == 1)
        found[run % 2 == 1].append(laps)
        time.sleep(0.3)
    bench.driver.finish(ranks)
    result = {name: statistics.median(laps[name] for laps in found[False]) for name in found[False][0]}
    result |= {name: statistics.median(laps[name] for laps in found[True]) for name in ("copy", "migrate")}
    return {name: round(value, 4) for name, value in result.items()}


def start_up(bench: Bench, runs: int) -> dict[str, float]:
    """Milliseconds from a shim's start to its rank running, with and without namespaces."""
    found: dict[bool, list[float]] = {False: [], True: []}
    for run in range(4 * runs):
        began = time.perf_counter()
        bench.start(0, ["/bin/true"], boxed=run % 2 == 1)
        found[run % 2 == 1].append(time.perf_counter() - began)
    return {
        "bare": round(statistics.median(found[False]) * 1e3, 2),
        "boxed": round(statistics.median(found[True]) * 1e3, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=7)
    runs = parser.parse_args().runs
    criu = find_criu()
    if isinstance(criu, str):
        print(f"skipped: {criu}")
        return 0
    with tempfile.TemporaryDirectory() as root:
        bench = Bench(Path(root), CriuDriver("n", criu))
        try:
            measured: dict[str, Any] = {"start-up ms": start_up(bench, runs)}
            measured |= {f"{world} rank(s)": world_of(bench, world, runs) for world in (1, 2)}
        finally:
            bench.clean()
    print(f"CRIU {criu.version}; start of a rank {measured['start-up ms']} ms")
    failed = False
    for title in ("1 rank(s)", "2 rank(s)"):
        laps = measured[title]
        print(f"{title}: image {laps['image MB per rank']:.0f} MB each")
        print("  " + "  ".join(f"{name} {laps[name]:.3f}" for name in laps if name not in BARS_S and "MB" not in name))
        for name, bar in BARS_S.items():
            failed |= laps[name] > bar
            print(f"  {name:8} {laps[name]:.3f} s   bar {bar} s   {'ok' if laps[name] <= bar else 'OVER'}")
    keep("criu", {"criu": criu.version, **measured})
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
