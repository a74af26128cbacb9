"""How well a simulation says what really happened: some jobs in three tiers on CPU slots of this machine, with preemption by
images, against the same jobs replayed from the journal that they left, and against a simulation that is given only what their
users knew and what operations took.

    python bench/fidelity.py [--jobs 30] [--slots 3] [--seed 1] [--mean 40]

What a program is asked to run for is not how long it runs: it starts, and sleeps a little longer than it asks for. Both are taken
from runs of the program alone, which a user would know. Takes as long as the jobs: some eight minutes.

A decision that hangs on less than the tenth of a second by which real pauses differ may fall the other way in a replay, and
then later jobs run in another order: the shorter the jobs, the more often. ``--keep`` keeps the journal, to look for it.

Learnt costs are drawn; a single draw is one history of many, so the simulation with them is made with 40 seeds, and the mean of
these is compared (and the range of the middle 80 % shown), as `tide compare --seeds` does.

Bars: replay, mean JCT within 3 %, of each job within 10 % at p90, preemptions within 1; simulation with learnt costs, mean JCT
within 5 %.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from facts import keep
from tidewright import Client, JobSpec
from tidewright.app.recorded import Recording, read
from tidewright.base.units import SECOND
from tidewright.launch.environment import submitted_environment
from tidewright.model.job import State
from tidewright.policy.registry import make
from tidewright.sim.costs import Costs
from tidewright.sim.profile import ClusterProfile
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import Trace, changed

MEAN_BAR, EACH_BAR, MOVES_BAR, LEARNT_BAR = 0.03, 0.10, 1, 0.05
PROGRAM = "import sys, time\nfor _ in range(int(float(sys.argv[1]) * 50)): time.sleep(0.02)"
"""Steps of 20 ms: what stands still meanwhile makes it longer, as it does a program that waits for a GPU."""
TIERS = ("premium", "standard", "basic")
PATIENCE_S = 600.0
SEEDS = range(1, 41)


def tide(state: Path, *arguments: str) -> None:
    """A command, which must succeed."""
    subprocess.run(
        [str(Path(sys.executable).parent / "tide"), "--state", str(state), *arguments], check=True, timeout=120
    )


def alone() -> tuple[float, float]:
    """(seconds to start and end, seconds for each second asked for), of the program by itself."""
    took = []
    for runs in (2.0, 6.0):
        begun = time.perf_counter()
        subprocess.run([sys.executable, "-c", PROGRAM, str(runs)], check=True, timeout=60)
        took.append(time.perf_counter() - begun)
    each = (took[1] - took[0]) / 4.0
    return took[0] - 2.0 * each, each


def drawn(count: int, seed: int, mean: float) -> list[tuple[float, JobSpec, float]]:
    """(seconds after the job before, the job, seconds that it runs)."""
    dice, found = random.Random(seed), []
    for at in range(count):
        runs = round(dice.uniform(mean / 3, mean * 5 / 3), 2)
        spec = JobSpec(
            name=f"job-{at}", command=(sys.executable, "-c", PROGRAM, str(runs)), devices=1 + (dice.random() < 0.3),
            tier=dice.choices(TIERS, (2, 3, 5))[0], expected_us=int(runs * SECOND) if dice.random() < 0.5 else 0,
            env=submitted_environment(dict(os.environ)), workdir="/",
        )  # fmt: skip
        found.append((dice.expovariate(3.6 / mean), spec, runs))
    return found


def run_live(state: Path, jobs: list[tuple[float, JobSpec, float]]) -> None:
    """Submit them in time, and wait for the last one."""
    client = Client(state)
    for number, (after_s, spec, _) in enumerate(jobs, 1):
        time.sleep(after_s)
        client.submit([spec])
        print(f"\r{number} of {len(jobs)} jobs submitted", end="", flush=True)
    ends = time.monotonic() + PATIENCE_S
    while left := [job for job in client.jobs().jobs if job.state not in ("completed", "failed")]:
        if time.monotonic() > ends:
            raise SystemExit(f"{len(left)} jobs have not ended after {PATIENCE_S:.0f} s")
        print(f"\r{len(left)} jobs left                 ", end="", flush=True)
        time.sleep(1.0)
    print()


def simulated(trace: Trace, recording: Recording, costs: Costs, seed: int = 1) -> Simulation:
    """On the recorded nodes, under sla, with what operations took; ``seed``: of what is drawn."""
    options = Options(engine=recording.settings, costs=costs, profile=ClusterProfile(seed=seed))
    simulation = Simulation(trace, recording.nodes, make("sla"), options)
    simulation.run()
    if not (simulation.outcomes.state == int(State.COMPLETED)).all():
        raise SystemExit("a simulated job did not end")
    return simulation


def jct_s(simulation: Simulation) -> Any:
    """[jobs] seconds."""
    return (simulation.outcomes.end - simulation.trace.submit) / SECOND


def judged(recording: Recording, jobs: list[tuple[float, JobSpec, float]], by: tuple[float, float]) -> dict[str, Any]:
    """The figures. ``by``: of ``alone``."""
    was = np.array([job.end - job.submit for job in recording.jobs]) / SECOND
    runs = {spec.name: seconds for _, spec, seconds in jobs}
    nominal = np.array([int((by[0] + by[1] * runs[job.spec.name]) * SECOND) for job in recording.jobs])
    replay = simulated(recording.trace, recording, recording.own_costs)
    asked = changed(recording.trace, duration=nominal)
    learnt = [jct_s(simulated(asked, recording, recording.costs, seed)).mean() / was.mean() - 1 for seed in SEEDS]
    each = np.abs(jct_s(replay) / was - 1)
    return {
        "jobs": len(was), "jct_mean_s": float(was.mean()), "preemptions": sum(job.preemptions for job in recording.jobs),
        "replay_mean": float(jct_s(replay).mean() / was.mean() - 1), "replay_each_p90": float(np.quantile(each, 0.9)),
        "replay_preemptions": int(replay.outcomes.preemptions.sum()),
        "learnt_mean": float(np.mean(learnt)), "learnt_p10": float(np.quantile(learnt, 0.1)),
        "learnt_p90": float(np.quantile(learnt, 0.9)),
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--slots", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="keep the state directory here, without the images")
    parser.add_argument("--mean", type=float, default=40.0, help="seconds that a job runs, in the mean")
    given = parser.parse_args()
    jobs, by = drawn(given.jobs, given.seed, given.mean), alone()
    with tempfile.TemporaryDirectory(prefix="tidewright-fidelity-") as name:
        state = Path(name)
        tide(state, "up", "--slots", str(given.slots))
        try:
            run_live(state, jobs)
        finally:
            tide(state, "down", "--jobs")
        if given.keep:
            shutil.copytree(state, given.keep, ignore=shutil.ignore_patterns("images", "*.sock"))
        found = judged(read(state), jobs, by)
    off = found["replay_preemptions"] - found["preemptions"]
    lines = (
        (f"replay, mean JCT {found['replay_mean']:+.1%}", abs(found["replay_mean"]), MEAN_BAR, "3 %"),
        (f"replay, each job, p90 {found['replay_each_p90']:.1%}", found["replay_each_p90"], EACH_BAR, "10 %"),
        (f"replay, preemptions {found['replay_preemptions']} of {found['preemptions']}", abs(off), MOVES_BAR, "1 off"),
        (
            f"simulated with learnt costs, {len(SEEDS)} draws, mean JCT {found['learnt_mean']:+.1%} "
            f"(middle 80 %: {found['learnt_p10']:+.1%} to {found['learnt_p90']:+.1%})",
            abs(found["learnt_mean"]),
            LEARNT_BAR,
            "5 %",
        ),
    )
    print(f"{found['jobs']} jobs, mean JCT {found['jct_mean_s']:.1f} s")
    for text, value, bar, said in lines:
        print(f"{text} (bar {said}){'' if value <= bar else '   MISSED'}")
    print(f"kept in {keep('fidelity', {'slots': given.slots, 'seed': given.seed, 'mean_s': given.mean, **found})}")
    return int(any(value > bar for _, value, bar, _ in lines))


if __name__ == "__main__":
    sys.exit(main())
