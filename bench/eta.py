"""Whether forecasts of starts hold: a Philly week without run times, simulated, with questions when waiting jobs will start.

``python bench/eta.py [--quick] [--load X] [--policy P]``. The simulated pool plays the part of the live one: jobs run
for as long as the trace says, which neither the scheduler nor the forecasts know.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tidewright.base.units import DAY, MINUTE
from tidewright.engine.book import QUEUED
from tidewright.explain.forecast import forecast
from tidewright.plan.explain import Interval
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Simulation
from tidewright.sim.trace import with_load, without_estimates
from tidewright.sim.traces import load_trace

BUDGET_S = 2.0
SHARE = 0.3
"""Of the instants at which jobs begin to wait, those at which is asked."""
WARM = 2_000
"""Jobs that have ended before the first question: a pool that has been in use for a while."""
TRACE, CLUSTER = "philly:10000", "philly-480"


class Asked(NamedTuple):
    """A question: when it was, what was said, how, and in how many seconds."""

    now: int
    said: Interval
    method: str
    took: float


def ask(simulation: Simulation, policy: str, job: int, samples: int) -> tuple[Interval | None, str, float]:
    """The forecast of a job's start, how it was made, and the seconds it took."""
    image, begun = simulation.engine.snapshot(), time.perf_counter()
    found = forecast(image, make(policy), [job], lambda: time.perf_counter() - begun > BUDGET_S, samples)[0]
    return found.start, found.method, time.perf_counter() - begun


def collect(policy: str, load: float, wanted: int, samples: int) -> tuple[Simulation, dict[int, Asked]]:
    """Simulate, and ask of jobs that wait although all that can be planned has been, at random; by row of the trace."""
    nodes = load_cluster(CLUSTER)
    capacity = sum(node.devices for node in nodes)
    trace = without_estimates(with_load(load_trace(TRACE, capacity), load, capacity))
    simulation, dice = Simulation(trace, nodes, make(policy)), random.Random(7)
    asked: dict[int, Asked] = {}
    fresh: dict[int, bool] = {}
    """Jobs that have begun to wait since the last question."""
    until = None
    while simulation.outcomes.settled < len(trace):
        now = simulation.next_instant()
        if now is None or (until is not None and now > until):
            break
        book, world = simulation.engine.book, simulation.world.jobs
        waiting = [job for job in fresh if job in world and book.state(job) == QUEUED and job not in book.reservations]
        if waiting and now > book.now and len(asked) < wanted and dice.random() < SHARE:
            job = dice.choice(waiting)
            start, method, took = ask(simulation, policy, job, samples)
            if start is not None:
                asked[world[job].row] = Asked(book.now, start, method, took)
                print(f"\r{len(asked)} of {wanted}", end="", flush=True)
        if now > book.now:
            fresh.clear()
        if len(asked) == wanted and (begun_at(simulation)[list(asked)] >= 0).all():
            break
        before = simulation.engine.book.next_job
        simulation.turn(now)
        if simulation.outcomes.settled >= WARM:
            until = until or now + 7 * DAY
            fresh.update(dict.fromkeys(range(before, simulation.engine.book.next_job), True))
    print()
    return simulation, asked


def begun_at(simulation: Simulation) -> Any:
    """First start of each row of the trace, -1 for none; those of jobs that have not ended are not among the outcomes."""
    begun, table = simulation.outcomes.start.copy(), simulation.engine.book.table
    for job, truth in simulation.world.jobs.items():
        begun[truth.row] = table.first_start.item(table.row[job])
    return begun


def report(policy: str, load: float, simulation: Simulation, asked: dict[int, Asked]) -> None:
    """Figures beside their bars: 75 % inside the 80 % interval, which is half as wide as that of all waits; those that waited for
    a minute or longer also on their own, for a policy that preempts starts most jobs within seconds."""
    begun, trace = begun_at(simulation), simulation.trace
    waits = sorted(
        (int(begun[row]) - int(trace.submit[row])) / MINUTE
        for row in range(simulation.next_row)
        if begun[row] - trace.submit[row] > MINUTE / 6
    )
    half = (waits[int(0.9 * len(waits))] - waits[int(0.1 * len(waits))]) / 2
    print(f"{policy}, load {load:g}: forecasts of starts, of jobs that wait")
    # One that waits still has started late if its interval is over; else nothing is known of it.
    still = {row: one for row, one in asked.items() if begun[row] < 0}
    begun[list(still)] = simulation.engine.book.now
    left_out = [row for row, one in still.items() if not 0 <= one.said.high < simulation.engine.book.now]
    asked = {row: one for row, one in asked.items() if row not in left_out}
    longer = {row: one for row, one in asked.items() if int(begun[row]) - one.now >= MINUTE}
    for name, some in (("all", asked), ("a minute or longer", longer)):
        _print(name, some, begun, half)
    print(f"  wait still: {len(still)}, of which left out, since their interval is not over: {len(left_out)}")
    took = sorted(one.took for one in asked.values())
    print(f"  seconds                    {took[len(took) // 2]:7.2f} median, {took[-1]:.2f} at most   (bar: 3)")
    print(f"  by the work ahead alone    {sum(one.method == 'work-ahead' for one in asked.values()):7d}")


def _print(name: str, asked: dict[int, Asked], begun: Sequence[int], half: float) -> None:
    count, widths, errors, inside, late = max(len(asked), 1), [], [], 0, 0
    for row, (_, said, *_) in asked.items():
        start, high = int(begun[row]), said.high if said.high >= 0 else said.low + 60 * DAY
        inside += said.low <= start <= high
        late += start > high
        widths.append((high - said.low) / MINUTE)
        errors.append(abs(said.middle - start) / MINUTE if said.middle >= 0 else 60 * DAY / MINUTE)
    print(f"  {name}: {len(asked)}")
    if asked:
        print(f"    inside the 80 % interval   {inside / count:7.1%}   (bar: 75 %)   later: {late / count:.1%}")
        print(
            f"    median width               {statistics.median(widths):7.1f} min   (bar: {half:.1f}, half of all waits')"
        )
        print(f"    median error of the middle {statistics.median(errors):7.1f} min")


def main() -> None:
    """Ask, wait, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 forecasts instead of 200")
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--policy", default="sla")
    parser.add_argument("--samples", type=int, default=20)
    chosen = parser.parse_args()
    simulation, asked = collect(chosen.policy, chosen.load, 40 if chosen.quick else 200, chosen.samples)
    report(chosen.policy, chosen.load, simulation, asked)


if __name__ == "__main__":
    main()
