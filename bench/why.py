"""Questions about a waiting job at 20,000 waiting jobs, beside their bars: ``python bench/why.py [--jobs N] [--policy P ...]``.

60 nodes x 8 devices in use, Philly sizes, a tenth of the jobs elastic, one node drained. Asked are the first job that waits, one
in the middle and the last one: the limit (100 ms), the smallest changes and the forecast (3 s, of which 2 s are the budget that
the controller gives; the rest is what a search takes beyond it).
"""

from __future__ import annotations

import argparse
import random
import time

from facts import keep
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.explain.changes import smallest_changes
from tidewright.explain.forecast import forecast
from tidewright.explain.trial import settle
from tidewright.explain.why import limit_of
from tidewright.model.job import JobSpec
from tidewright.model.node import NodeSpec
from tidewright.plan.render import render
from tidewright.policy.registry import make
from tidewright.sim.traces import load_trace

NODES, DEVICES = 60, 8
BUDGET_S = 2.0
LIMIT_BAR_S, SEARCH_BAR_S = 0.1, 3.0


def pool(policy: str, waiting: int) -> Engine:
    """Full, and so many jobs behind."""
    dice, engine, planner = random.Random(3), Engine(), make(policy)
    sizes = [int(size) for size in load_trace("philly", NODES * DEVICES).devices]
    nodes = [NodeSpec(name=f"n{i}", kind="v100", devices=DEVICES) for i in range(NODES)]
    engine.step(SECOND, [ev.NodeUp(node, "1") for node in nodes])
    for count in (800, waiting - 800):
        now = engine.book.now + 10 * MINUTE
        submissions: list[ev.Event] = [ev.Submit(_spec(dice, sizes), f"{now}.{at}") for at in range(count)]
        engine.step(now, submissions)
        engine.replan()
        settle(engine, planner, [ev.Tick()], -1)
    engine.step(engine.book.now + MINUTE, [ev.NodeDrain("n0", True)])
    return engine


def _spec(dice: random.Random, sizes: list[int]) -> JobSpec:
    devices = dice.choice(sizes)
    least = max(devices // 2, 1) if dice.random() < 0.1 else 0
    return JobSpec(
        command=("python", "train.py"), ranks=devices, devices=devices, min_devices=least,
        tier=dice.choice(("premium", "standard", "standard", "basic", "basic")),  # type: ignore[arg-type]
        expected_us=int(dice.lognormvariate(0, 2) * HOUR),
    )  # fmt: skip


def ask(engine: Engine, policy: str, job: int) -> dict[str, object]:
    """Seconds that each question about a job takes, and what was answered."""
    planner = make(policy)
    begun = time.perf_counter()
    limit_of(engine, planner, job)
    limit = time.perf_counter() - begun
    begun = time.perf_counter()
    changes = smallest_changes(engine.snapshot(), planner, job, lambda: time.perf_counter() - begun > BUDGET_S)
    search = time.perf_counter() - begun
    begun = time.perf_counter()
    forecast(engine.snapshot(), planner, [job], lambda: time.perf_counter() - begun > BUDGET_S)
    return {
        "limit_s": round(limit, 4), "changes_s": round(search, 2), "eta_s": round(time.perf_counter() - begun, 2),
        "changes": [render(one.what) for one in changes],
    }  # fmt: skip


def main() -> None:
    """Ask under each policy, and keep the answers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--policy", nargs="+", default=["sla", "srtf", "fifo-backfill"])
    chosen = parser.parse_args()
    measured: dict[str, object] = {}
    for policy in chosen.policy:
        engine = pool(policy, chosen.jobs)
        jobs = engine.view().jobs
        waiting = jobs.id[jobs.waiting].tolist()
        for job in (waiting[0], waiting[len(waiting) // 2], waiting[-1]):
            found = measured[f"{policy}, job {job}"] = ask(engine, policy, job)
            late = found["limit_s"] > LIMIT_BAR_S or max(found["changes_s"], found["eta_s"]) > SEARCH_BAR_S  # type: ignore[call-overload, operator]
            print(
                f"{policy}, {len(waiting):,} waiting, job {job}: {found}{'   OVER THE BAR' if late else ''}", flush=True
            )
    print(f"kept in {keep('why', measured)}")


if __name__ == "__main__":
    main()
