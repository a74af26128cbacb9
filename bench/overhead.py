"""What it costs a job that it could be suspended, as long as nothing happens to it.

The same plain PyTorch program (programs/steps.py) runs twice, side by side, on the same cores: once as ``tide run``
starts it (box, namespaces, wrapper; *on*) and once as ``tide run --level none`` does (*off*), through the agent's own
code and real shims. They train by turns, off-on, on-off, off-on, and whoever does not train sleeps. A turn is a fifth of
a second, so that a machine that is slower for a while is slower for both: with turns of a second, pairs differ twice as
much. Shorter ones would measure the first step after a sleep.

A figure is the time of a step in many turns, with one model. What is held against a bar is not the best guess but the
upper end of its 95 % interval, from a bootstrap over starts of the program and over the pairs of each. The model is built
anew for each pair, as steps differ by up to 10 % by the luck of where in memory it lies. Longer pairs do not lessen that,
more of them do. Of all pairs the middle half counts: a host that takes the processor away for a second changes a pair by as
much as fifty others, on either side. A share is a mean of logarithms, as a mean of quotients would be too large, by the
square of how much ``off`` varies. The pairs themselves are kept, too.

    python bench/overhead.py [--starts 6] [--pairs 8] [--keep]        (48 pairs of each kind; some 7 minutes)
    python bench/overhead.py --only long --starts 16 --pairs 16       (long steps vary most; some 9 minutes)
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from facts import keep
from tidewright.agent.layout import AgentLayout
from tidewright.agent.machine.record import AttemptRecord
from tidewright.agent.processes.attempt import Attempt
from tidewright.agent.processes.rank_spec import NodeContext, specs
from tidewright.agent.rendezvous.coordinator import RendezvousCoordinator
from tidewright.agent.rendezvous.server import RendezvousServer
from tidewright.checkpoint.cgroup import detect
from tidewright.checkpoint.criu.driver import find_criu
from tidewright.checkpoint.processes import PROC
from tidewright.devices.cpu import open_backend
from tidewright.launch.environment import submitted_environment
from tidewright.launch.sandbox import INJECT
from tidewright.model.job import Level
from tidewright.wire.agent import LaunchArgs, RankSeat

PROGRAM = Path(__file__).with_name("programs") / "steps.py"
PATIENCE_S = 120.0
RESAMPLES = 4000
WAYS = ("mean", "median", "cpu")
"""How a stretch is summed up: the mean step, the median step, and the CPU time of a step (all threads of a rank)."""


@dataclass(frozen=True)
class Kind:
    """One thing that is measured: ``ranks`` with a model, ``ms`` per step, so many steps a turn and turns a pair, its bar."""

    name: str
    model: str
    ranks: int
    ms: float
    warm: int
    steps: int
    turns: int
    bar: float
    percent: bool


KINDS = (
    Kind("two ranks, short steps", "short", 2, 1.0, 100, 200, 4, 0.06, False),
    Kind("two ranks, long steps", "long", 2, 52.0, 3, 4, 4, 2.0, True),
    Kind("not distributed, short steps", "short", 1, 1.0, 100, 200, 4, 0.06, False),
)
BAR_IMPORT_MS = 50.0
WITH_TORCH, OWN = "import torch, torch.distributed", "the wrapper's own modules, with torch"
_IMPORTED = re.compile(r"^import time: +(\d+) \| +\d+ \| +(\S+)", re.MULTILINE)
OURS = re.compile(r"_tidewright\b|sitecustomize$")


class Site:
    """What an agent launches ranks with, in a state directory of its own; the meeting is served by a thread."""

    def __init__(self, root: Path) -> None:
        self._layout = AgentLayout(root)
        self._layout.prepare()
        full = os.geteuid() == 0 and PROC.exists() and not isinstance(find_criu(), str)
        self._node_context = NodeContext(self._layout, open_backend("bench"), detect(), full=full)
        self._rendezvous_server, self._jobs = RendezvousServer(), 0
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._do(self._rendezvous_server.start("127.0.0.1"))
        self._rendezvous = RendezvousCoordinator("bench", "127.0.0.1", "a token", self._rendezvous_server)

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def start(self, ranks: int, on: bool) -> Job:
        """The program, as an agent starts it."""
        self._jobs += 1
        place = self._layout.root / f"job{self._jobs}"
        place.mkdir()
        args = LaunchArgs(
            job=self._jobs, attempt=1, command=(sys.executable, str(PROGRAM), str(place)), workdir=str(place),
            env=submitted_environment(os.environ), world_size=ranks, devices=ranks, level=-1 if on else int(Level.NONE),
            ranks=tuple(RankSeat(rank, rank, (rank,)) for rank in range(ranks)), master_port=29500 + self._jobs,
        )  # fmt: skip
        for rank in range(ranks):
            for name in ("order", "answer"):
                os.mkfifo(place / f"{name}.{rank}")
        return self._do(self._launch(args, place))

    async def _launch(self, args: LaunchArgs, place: Path) -> Job:
        attempt = Attempt.create(self._layout, args, specs(args, self._node_context), AttemptRecord())
        if any(box.is_dir() for box in attempt.rank_dirs().values()):
            await self._rendezvous.write(attempt)
        await asyncio.gather(*(rank.spawn() for rank in attempt.ranks))
        return Job(attempt, place)

    def close(self) -> None:
        """No more meetings."""
        self._do(self._rendezvous_server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)


class Job:
    """Ranks that train when they are told to. Opening the pipes waits until they are ready."""

    def __init__(self, attempt: Attempt, place: Path) -> None:
        self._attempt, self._place = attempt, place
        self._pipes: list[tuple[Any, Any]] = []

    def open(self) -> None:
        """Wait until the ranks have met."""
        for rank in self._attempt.ranks:
            orders = self._opened(rank)
            self._pipes.append((orders, (self._place / f"answer.{rank.number}").open()))

    def _opened(self, rank: Any) -> Any:
        """The pipe to a rank, once it reads it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and rank.ending() is None:
            with contextlib.suppress(OSError):  # nobody reads it yet
                return os.fdopen(os.open(self._place / f"order.{rank.number}", os.O_WRONLY | os.O_NONBLOCK), "w")
            time.sleep(0.05)
        raise SystemExit(f"a rank does not start:\n{Path(rank.spec.log).read_text()[-2000:]}")

    def train(self, kind: Kind, rows: int, steps: int = 0, *, anew: bool = True) -> dict[str, float]:
        """Milliseconds per step over a stretch, by WAYS, and of the fastest step; means over the ranks."""
        order = {"anew": anew, "model": kind.model, "rows": rows, "warm": kind.warm, "steps": steps or kind.steps}
        for orders, _ in self._pipes:
            print(json.dumps(order), file=orders, flush=True)
        found = [json.loads(answers.readline()) for _, answers in self._pipes]
        return {name: statistics.mean(each[name] for each in found) for name in (*WAYS, "least")}

    def end(self) -> None:
        """Let the program end, and see to it that it has."""
        for orders, _ in self._pipes:
            orders.close()
        deadline = time.monotonic() + 20
        while any(rank.ending() is None for rank in self._attempt.ranks) and time.monotonic() < deadline:
            time.sleep(0.02)
        for rank in self._attempt.ranks:
            rank.end()
            rank.tidy()
        for _, answers in self._pipes:
            answers.close()


@contextmanager
def running(site: Site, kinds: Sequence[Kind]) -> Iterator[dict[tuple[int, bool], Job]]:
    """One start of everything: jobs by their number of ranks and whether they are on."""
    sizes = sorted({kind.ranks for kind in kinds}, reverse=True)
    jobs = {(ranks, on): site.start(ranks, on) for ranks in sizes for on in (False, True)}
    try:
        for job in jobs.values():
            job.open()
        yield jobs
    finally:
        for job in jobs.values():
            job.end()


def calibrated(job: Job, kind: Kind) -> int:
    """Rows of a batch with which the fastest step takes ``kind.ms``, or one row: a busy machine changes little in that."""
    low, high = 1, 4096
    quick = replace(kind, warm=kind.warm // 3)
    while low < high - low // 8 - 1:
        middle = round((low * high) ** 0.5)
        if job.train(quick, middle, max(4, kind.steps // 5))["least"] < kind.ms:
            low = middle
        else:
            high = middle
    return high


Pair = tuple[dict[str, float], dict[str, float]]
"""What off took, and on."""

Found = dict[str, list[list[Pair]]]
"""By kind, by start."""


def measure(kinds: Sequence[Kind], starts: int, pairs: int) -> tuple[Found, dict[str, int]]:
    """Train by turns."""
    found: Found = {kind.name: [] for kind in kinds}
    rows: dict[str, int] = {}
    with tempfile.TemporaryDirectory(prefix="tide-bench-") as folder:
        site = Site(Path(folder))
        try:
            for start in range(starts):
                with running(site, kinds) as jobs:
                    for kind in kinds:
                        off, on = jobs[kind.ranks, False], jobs[kind.ranks, True]
                        if not start:
                            rows[kind.name] = calibrated(off, kind)
                        found[kind.name].append(
                            [pair(kind, rows[kind.name], off, on, number + start) for number in range(pairs)]
                        )
                print(f"start {start + 1} of {starts}: {brief(kinds, found)}", file=sys.stderr, flush=True)
        finally:
            site.close()
    return found, rows


def pair(kind: Kind, rows: int, off: Job, on: Job, number: int) -> Pair:
    """A model built anew in each, and its steps by turns, the other one first every time."""
    sides = (off, on) if number % 2 else (on, off)
    for job in sides:
        job.train(kind, rows, 1)
    took: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    for turn in range(kind.turns):
        for job in sides[:: -1 if turn % 2 else 1]:
            took[job is on].append(job.train(kind, rows, anew=False))
    first, second = (
        {way: statistics.fmean(each[way] for each in took[side]) for way in WAYS} for side in (False, True)
    )
    return first, second


def added(kind: Kind, by: str, pairs: Sequence[Pair]) -> float:
    """What ``on`` took more than ``off``: milliseconds of a step, or per cent."""
    if kind.percent:
        return 100 * math.expm1(middle([math.log(on[by] / off[by]) for off, on in pairs]))
    return middle([on[by] - off[by] for off, on in pairs])


def middle(values: Sequence[float]) -> float:
    """Mean of the middle half."""
    cut = len(values) // 4
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


def brief(kinds: Sequence[Kind], found: Found) -> str:
    """What each kind has come to so far."""
    parts = []
    for kind in kinds:
        value = added(kind, "mean", [pair for one in found[kind.name] for pair in one])
        parts.append(f"{value:+.2f} %" if kind.percent else f"{value:+.3f} ms")
    return "  ".join(parts)


def interval(starts: list[list[Any]], figure: Callable[[list[Any]], float]) -> tuple[float, float, float]:
    """The figure, and its 95 % interval: starts drawn again, and of each its pairs."""
    draw = random.Random(0)
    found = sorted(
        figure([pair for one in draw.choices(starts, k=len(starts)) for pair in draw.choices(one, k=len(one))])
        for _ in range(RESAMPLES)
    )
    best = figure([pair for one in starts for pair in one])
    return best, found[round(0.025 * RESAMPLES)], found[round(0.975 * RESAMPLES) - 1]


def results(kinds: Sequence[Kind], found: Found, rows: dict[str, int]) -> list[dict[str, Any]]:
    """One record per kind, by each of WAYS."""
    made = []
    for kind in kinds:
        starts = found[kind.name]
        record: dict[str, Any] = {
            "name": kind.name, "unit": "percent" if kind.percent else "ms", "bar": kind.bar, "rows": rows[kind.name],
            "pairs": sum(map(len, starts)),
        }  # fmt: skip
        for by in WAYS:
            best, low, high = interval(starts, partial(added, kind, by))
            off = statistics.median(off[by] for one in starts for off, _ in one)
            record[by] = {"off_ms": off, "added": best, "low": low, "high": high}
        record["pairs_ms"] = [[[round(side["mean"], 4) for side in pair] for pair in one] for one in starts]
        made.append(record)
    return made


def imports(rounds: int) -> dict[str, list[float]]:
    """Milliseconds added to the start of Python, and to a start with ``import torch``: on less off, pair by pair."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as box:
        plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        around = {False: plain, True: _wrapped(box)}
        for code, times in (("pass", rounds), (WITH_TORCH, max(2, rounds // 3))):
            for environment in around.values():
                _start_ms(code, environment)
            for number in range(times):
                order = (False, True) if number % 2 else (True, False)
                took = {on: _start_ms(code, around[on]) for on in order}
                found.setdefault(code, []).append(took[True] - took[False])
    return found


def modules(times: int) -> list[float]:
    """Milliseconds that the wrapper's own modules take of a start with torch, by Python's own account: a whole start differs by
    more than that from the next."""
    found = []
    with tempfile.TemporaryDirectory() as box:
        command = [sys.executable, "-X", "importtime", "-c", WITH_TORCH]
        for _ in range(times):
            told = subprocess.run(command, env=_wrapped(box), check=True, stderr=subprocess.PIPE, text=True).stderr
            found.append(sum(int(own) for own, name in _IMPORTED.findall(told) if OURS.match(name)) / 1000)
    return found


def _wrapped(box: str) -> dict[str, str]:
    """The environment of a rank."""
    return {**os.environ, "TIDE_BOX": box, "PYTHONPATH": str(INJECT)}


def _start_ms(code: str, environment: dict[str, str]) -> float:
    """CPU time of a whole process: other work on the machine does not count as ours."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def show(records: list[dict[str, Any]], starting: dict[str, Any]) -> bool:
    """The table; whether all bars are met."""
    good = True
    print(f"\n{'':28} {'off':>9} {'added':>10} {'95 % interval':>22} {'bar':>10}")
    for record in records:
        unit = "%" if record["unit"] == "percent" else "ms"
        for by in WAYS:
            each = record[by]
            bar = f"{record['bar']:g} {unit}" if by == "mean" else "-"
            print(f"{record['name']:28} {each['off_ms']:6.3f} ms {each['added']:+7.3f} {unit:2} "
                  f"{each['low']:+9.3f} to {each['high']:+7.3f} {unit:2} {bar:>10}  ({by} step)")  # fmt: skip
        good = good and record["mean"]["high"] <= record["bar"]
    for code, each in starting.items():
        print(f"{code}: {each['added']:+.1f} ms ({each['low']:+.1f} to {each['high']:+.1f}; "
              f"bar {BAR_IMPORT_MS:g} ms)")  # fmt: skip
        good = good and each["high"] <= BAR_IMPORT_MS
    return good


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=6, help="how often all programs are started anew")
    parser.add_argument("--pairs", type=int, default=8, help="of each kind and start")
    parser.add_argument("--only", default="", metavar="WORD", help="kinds with this word in their name, such as long")
    parser.add_argument("--keep", action="store_true", help="write bench/results")
    given = parser.parse_args()
    if len(os.sched_getaffinity(0)) < 2:
        print("not measured: two ranks need two cores")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the programs end too
    starting = {}
    for code, values in imports(3 * min(given.starts, 8)).items():
        mean, low, high = interval([[value] for value in values], statistics.fmean)
        starting[code] = {"added": mean, "low": low, "high": high, "pairs": len(values)}
    own = modules(5)
    starting[OWN] = {"added": statistics.median(own), "low": min(own), "high": max(own), "pairs": len(own)}
    kinds = [kind for kind in KINDS if given.only in kind.name]
    records = results(kinds, *measure(kinds, given.starts, given.pairs))
    good = show(records, starting)
    if given.keep:
        name = f"overhead-{given.only}" if given.only else "overhead"
        print(keep(name, {"starts": given.starts, "steps": records, "import_ms": starting}))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
