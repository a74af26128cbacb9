"""Planning times beside their bars: ``python bench/policies.py``. Best of several runs, so that a busy machine matters less."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec

from facts import keep
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.model.job import JobSpec
from tidewright.model.node import Part
from tidewright.model.view import View
from tidewright.placement.find import place
from tidewright.plan.request import Request
from tidewright.policy.registry import make
from tidewright.testing.views import NOW, ViewBuilder, pool

SIZES = (1, 1, 1, 1, 2, 2, 4, 8)


def spec(dice: random.Random, tier: str, sizes: tuple[int, ...] = SIZES) -> JobSpec:
    devices = dice.choice(sizes)
    return JobSpec(
        command=("x",), ranks=devices, devices=devices, tier=tier, expected_us=dice.randint(10, 3000) * MINUTE
    )  # type: ignore[arg-type]


def busy(nodes: int, jobs: int, tier: str, seed: int = 1) -> tuple[ViewBuilder, random.Random]:
    """A full pool of ``tier`` jobs; the rest of ``jobs`` wait."""
    dice = random.Random(seed)
    builder = ViewBuilder(pool(nodes))
    while sum(builder.board.free_total) and len(builder.specs) < jobs:
        builder.run(
            spec(dice, tier, (1,) if sum(builder.board.free_total) < 64 else SIZES), attained=dice.randint(0, 10**13)
        )
    return builder, dice


def storm(premium: int, longest: bool) -> View:
    """8,000 devices full of basic jobs, 10,000 active jobs in all, ``premium`` of them premium jobs that just came.

    With ``longest`` the waiting basic jobs are longer than those that run, so that only premium jobs send others away.
    """
    builder, dice = busy(1000, 10_000, "basic")
    for _ in range(premium):
        builder.queue(spec(dice, "premium"), submit=NOW - SECOND, wait_since=NOW - SECOND)
    while len(builder.specs) < 10_000:
        waiting = spec(dice, "basic")
        if longest:
            waiting = msgspec.structs.replace(waiting, expected_us=10_000 * HOUR)
        builder.queue(waiting, submit=NOW - HOUR, wait_since=NOW - HOUR)
    return builder.view()


def quiet(nodes: int = 60, jobs: int = 10_000) -> View:
    """480 devices held by jobs that deserve them, the rest of 10,000 waiting."""
    builder, dice = busy(nodes, jobs, "standard")
    while len(builder.specs) < jobs:
        builder.queue(spec(dice, "standard"), attained=10**14, first_start=NOW - HOUR, submit=NOW - 2 * HOUR)
    return builder.view()


def six_kinds(jobs: int = 10_000) -> View:
    """9,984 devices of 6 kinds, full of jobs of every tier that may use some kinds; the rest of ``jobs`` wait for hours."""
    dice = random.Random(1)
    kinds = ("v100", "p100", "a100", "h100", "l4", "t4")
    builder = ViewBuilder(tuple(node for kind in kinds for node in pool(208, kind=kind)))

    def one(sizes: tuple[int, ...] = SIZES) -> JobSpec:
        made = spec(dice, dice.choice(("premium", "standard", "basic")), sizes)
        if sizes == (1,) or dice.random() < 0.5:
            return made
        return msgspec.structs.replace(made, device_types=tuple(dice.sample(kinds, dice.randint(1, 3))))

    while free := sum(builder.board.free_total):
        builder.run(one((1,) if free < 400 else SIZES), attained=dice.randint(0, 10**13))
    while len(builder.specs) < jobs:
        since = NOW - dice.randint(1, 8) * HOUR
        builder.queue(one(), submit=since, wait_since=since)
    return builder.view()


def afresh(name: str, view: View) -> object:
    """A plan by a planner and on a view that know nothing yet."""
    view.jobs.memo.clear()
    return make(name).plan(view)


def best(work: Callable[[], object], rounds: int = 7) -> float:
    """Seconds of the fastest run."""
    times = []
    for _ in range(rounds):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def rows() -> list[tuple[str, float, str]]:
    """(what, milliseconds, bar)."""
    found = []
    for premium, longest in ((250, True), (400, False)):
        view = storm(premium, longest)
        moves = len(make("sla").plan(view).moves)
        took = best(lambda view=view: afresh("sla", view))  # type: ignore[misc]
        found.append((f"sla, {moves} moves, 10,000 jobs, 8,000 devices", took, "1000 ms, goal 200"))
    calm = quiet()
    for name, bar in (("las", "2 ms"), ("fifo", "0.1 ms"), ("srtf", "-"), ("sla", "-"), ("fifo-backfill", "-")):
        count = len(make(name).plan(calm).moves)
        found.append(
            (f"{name}, {count} moves, 10,000 jobs, 480 devices", best(lambda name=name: afresh(name, calm)), bar)
        )  # type: ignore[misc]
    mixed = six_kinds()
    for name in ("fifo", "fifo-backfill", "srtf", "las", "static", "sla"):
        count = len(make(name).plan(mixed).moves)
        took = best(lambda name=name: afresh(name, mixed), 3)  # type: ignore[misc]
        found.append((f"{name}, {count} moves, 10,000 jobs, 9,984 devices of 6 kinds", took, "1000 ms"))
    board = ViewBuilder(pool(1000)).board
    board.acquire((Part(500, 7),))
    request = Request(1, (1,))
    found.append(
        (
            "place one device on 1,000 nodes",
            best(lambda: [place(board, request) for _ in range(1000)]) / 1000,
            "0.005 ms",
        )
    )
    return [(what, seconds * 1000, bar) for what, seconds, bar in found]


def main() -> None:
    measured = {}
    for what, milliseconds, bar in rows():
        print(f"{what:<60} {milliseconds:>9.3f} ms   bar {bar}")
        measured[what] = {"ms": round(milliseconds, 3), "bar": bar}
    print(f"kept in {keep('policies', measured)}")


if __name__ == "__main__":
    main()
