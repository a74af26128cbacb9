"""make demo: real PyTorch jobs in three tiers on two local hosts, pre-empted, moved and resized, and no step lost.

Every program first runs alone, which gives its ideal time and its loss hash. Then basic and standard jobs fill the pool,
and premium jobs come late, in waves sent while basic jobs run, until each of those was pre-empted twice. At last a
distributed job is made smaller, moved to the other host, made larger, suspended and resumed. At the end the hashes are
compared. Exits with 1 if a job failed, a hash differs, or a basic job was pre-empted too little. The controller stays up.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from demo_tour import Tour
from demo_view import Program, Run, console, progress, show_closing, show_next, show_tour
from rich.live import Live

from tidewright import Client, JobSpec
from tidewright.base.errors import TideError
from tidewright.base.units import SECOND
from tidewright.launch.environment import submitted_environment

CHECKOUT = Path(__file__).resolve().parents[1]
HOSTS = 2
"""Agents on this machine, each with its share of the cores and one slot."""
SLOTS = HOSTS
POLICY = "sla:min_run=2s"
"""By default this policy leaves a job alone for its first minute; the whole demonstration is hardly longer than that."""
PREEMPTIONS = 2
"""How often each basic job must have been pre-empted."""
CALIBRATION_STEPS = 40
LEAST_RUN_S = 2.2
"""A basic job runs at least this long between two waves: longer than the policy's ``min_run``."""
LONGEST_RUN_S = 3.3
"""After so long a wave is sent for it, also when another basic job has just begun and cannot be hit by the same one."""
POLL_S = 0.25
UP_S = 20.0
LIMIT_S = 150.0
"""For each phase; reached only when something is stuck, and then the reason is printed."""

PROGRAMS = [
    Program("mlp-a", "basic", "train_mlp.py", 1, 8.0),
    Program("cnn", "basic", "train_cnn.py", 2, 8.0),
    Program("gpt", "basic", "train_gpt.py", 3, 8.0),
    Program("mlp-b", "basic", "train_mlp.py", 4, 8.0),
    Program("cnn-std", "standard", "train_cnn.py", 5, 4.0),
    Program("ddp", "standard", "train_ddp.py", 6, 8.0, ranks=2),
    Program("urgent-gpt", "premium", "train_gpt.py", 7, 1.5),
    Program("urgent-mlp", "premium", "train_mlp.py", 8, 1.5),
]


class Failed(Exception):
    """The demonstration cannot go on; the text says why."""


class Demo:
    """The phases: measure speed, run each program alone, run them all together, send a distributed one around."""

    def __init__(self, state: Path) -> None:
        self.folder = state / "demo"
        self.client = Client(state)
        self.began = time.monotonic()
        self.environment = submitted_environment(os.environ)

    def submit(self, program: Program, name: str, steps: int, **fields: Any) -> Run:
        run = Run(program, name, self.folder / f"{name}.json")
        script = str(CHECKOUT / "examples" / program.script)
        options = ("--steps", str(steps), "--seed", str(program.seed), "--out", str(run.out))
        spec = JobSpec(
            name=name,
            command=(sys.executable, script, *options),
            ranks=program.ranks,
            devices=program.ranks,
            placement="any",
            team="demo",
            env=self.environment,
            workdir=str(self.folder),
            expected_us=program.alone_us,
            **fields,
        )
        run.id = self.client.submit([spec]).ids[0]
        return run

    def watch(self, runs: list[Run], title: str, each: Callable[[list[Run]], None] = lambda _: None) -> None:
        """Show the jobs until all have ended; ``each`` is called at every look and may add to ``runs``."""
        until = time.monotonic() + LIMIT_S
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while not all(run.final for run in runs):
                views = {view.id: view for view in self.client.jobs(all=True).jobs}
                for run in runs:
                    run.view = views.get(run.id, run.view)
                live.update(progress(runs, f"{title}   {time.monotonic() - self.began:.0f} s"))
                each(runs)
                if time.monotonic() > until:
                    raise Failed(self.stuck(runs))
                time.sleep(POLL_S)
        for run in runs:
            self.collect(run)

    def collect(self, run: Run) -> None:
        """Everything known of an ended job. Raises Failed with the end of its log when it did not complete."""
        run.view = self.client.job(run.id)
        run.result = json.loads(run.out.read_text()) if run.out.exists() else {}
        if run.view.state != "completed" or run.view.exit_code != 0 or not run.result:
            tail = b"".join(self.client.logs(run.id, tail=8)).decode(errors="replace")
            raise Failed(f"job {run.id} ({run.name}) ended as {run.view.state}: {run.view.why}\n{tail}")
        run.steps_lost = steps_shown_twice(b"".join(self.client.logs(run.id)).decode(errors="replace"))

    def stuck(self, runs: Iterable[Run]) -> str:
        lines = [f"  {run.name}: {self.client.why(run.id).summary}" for run in runs if not run.final]
        return f"not finished after {LIMIT_S:.0f} s:\n" + "\n".join(lines)

    def calibrate(self) -> None:
        """Choose steps so that every program trains for about its seconds on this machine."""
        scripts = {program.script: program for program in PROGRAMS}
        tries = [self.submit(program, f"try-{program.name}", CALIBRATION_STEPS) for program in scripts.values()]
        self.watch(tries, "1/4 measuring the speed of this machine")
        step_s = {run.program.script: float(str(run.result["seconds_training"])) / CALIBRATION_STEPS for run in tries}
        for program in PROGRAMS:
            program.steps = max(60, round(program.seconds / step_s[program.script]))
        steps = ", ".join(f"{Path(name).stem} {step * 1000:.0f} ms" for name, step in step_s.items())
        console.print(f"[bold]1/4[/] measured this machine; one step takes: {steps}")

    def run_alone(self) -> None:
        """Each program by itself and never pre-empted: its ideal time and its loss hash."""
        runs = [self.submit(program, f"alone-{program.name}", program.steps, preempt="none") for program in PROGRAMS]
        self.watch(runs, "2/4 every program alone, never pre-empted")
        for run in runs:
            assert run.view is not None
            run.program.alone_us = run.view.ideal_us
            run.program.hash = str(run.result["hash"])
        console.print(f"[bold]2/4[/] {len(runs)} programs ran alone: their ideal times and loss hashes are known")

    def run_together(self) -> list[Run]:
        """Standard and basic jobs first, then premium waves until every basic job was pre-empted enough."""
        runs = [self.start(program) for tier in ("standard", "basic") for program in PROGRAMS
                if program.tier == tier and program.ranks == 1]  # fmt: skip
        waves = Waves(self, [program for program in PROGRAMS if program.tier == "premium"])
        self.watch(runs, "3/4 all together; premium jobs arrive in waves", waves.send)
        console.print(f"[bold]3/4[/] {len(runs)} jobs ended; premium jobs came in {waves.sent} waves")
        return runs

    def send_around(self) -> tuple[list[Run], Tour | None]:
        """Distributed jobs, resized and moved while they run; where nodes take no full images they only run."""
        runs = [self.start(program) for program in PROGRAMS if program.ranks > 1]
        why = [
            f"{node.name}: {node.full_why or 'no full images'}" for node in self.client.nodes().nodes if not node.full
        ]
        if why:
            self.watch(runs, "4/4 a distributed job")
            console.print(f"[bold]4/4[/] not resized and not moved ({'; '.join(why)}); see tide setup criu\n")
            return runs, None
        tour = Tour(self.client, runs[0].id)
        self.watch(runs, "4/4 a distributed job is made smaller, moved, made larger, suspended", tour.go_on)
        if tour.left:
            raise Failed(f"{runs[0].name} ended before it could: {', '.join(stop.what for stop in tour.left)}")
        console.print(f"[bold]4/4[/] {runs[0].name} went through {len(tour.stops)} events, and ended\n")
        return runs, tour

    def start(self, program: Program, number: str = "") -> Run:
        return self.submit(program, f"{program.name}{number}", program.steps, tier=program.tier)


class Waves:
    """Bursts of premium jobs, each sent when it will take devices from a basic job that was pre-empted too little."""

    def __init__(self, demo: Demo, programs: list[Program]) -> None:
        self.demo = demo
        self.programs = programs
        self.sent = 0
        self.jobs = 0

    def send(self, runs: list[Run]) -> None:
        """Add one burst to ``runs`` if now is the moment: one premium job for each basic job that may be sent away."""
        if any(run.program.tier != "basic" and not (run.final or is_running(run)) for run in runs):
            return
        now = self.demo.client.info().now
        basic = [run.view for run in runs if run.program.tier == "basic" and is_running(run) and run.view is not None]
        ripe = [view for view in basic if now - view.since >= LEAST_RUN_S * SECOND]
        wanted = [view for view in ripe if view.preemptions < PREEMPTIONS]
        urgent = any(now - view.since >= LONGEST_RUN_S * SECOND for view in wanted)
        if wanted and (urgent or ripe == basic):
            self.sent += 1
            runs += [self.one() for _ in ripe]

    def one(self) -> Run:
        program = self.programs[self.jobs % len(self.programs)]
        self.jobs += 1
        return self.demo.start(program, f"-{self.jobs}")


def is_running(run: Run) -> bool:
    return run.view is not None and run.view.state == "running"


def steps_shown_twice(log: str) -> int:
    """Steps that a log shows more than once. An equal hash alone would not reveal a job that began again from step 0."""
    shown = [int(number) for number in re.findall(r"^step (\d+)/", log, re.MULTILINE)]
    return sum(before - after + shown[0] for before, after in itertools.pairwise(shown) if after <= before)


def judge(runs: Iterable[Run]) -> list[str]:
    """What the demonstration promised and did not keep."""
    wrong = []
    for run in runs:
        assert run.view is not None
        if not run.equal:
            wrong.append(f"{run.name}: its losses differ from those of the run alone")
        if run.steps_lost:
            wrong.append(f"{run.name}: {run.steps_lost} steps were computed twice")
        if run.view.tier == "basic" and run.view.preemptions < PREEMPTIONS:
            wrong.append(f"{run.name}: pre-empted {run.view.preemptions} times, not {PREEMPTIONS}")
    return wrong


def tide(state: Path, *arguments: str) -> str:
    """Run the command as a user would; raises Failed with what it printed."""
    command = [str(Path(sys.executable).with_name("tide")), "--state", str(state), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise Failed(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
    return done.stdout


def up(state: Path) -> None:
    """Start the controller and wait until its agent has brought the slots into the pool."""
    options = ("--hosts", str(HOSTS), "--slots", str(SLOTS // HOSTS), "--policy", POLICY)
    console.print(tide(state, "up", *options).rstrip(), highlight=False, soft_wrap=True)
    until = time.monotonic() + UP_S
    while (info := Client(state).info()).devices < SLOTS:
        if time.monotonic() > until:
            raise Failed(f"no devices after {UP_S:.0f} s; the agent: {info.agent}; see {state}/hosts/*/agent.log")
        time.sleep(POLL_S)


def fresh_state(state: Path) -> None:
    """An empty state directory. One that is not of an earlier demonstration, or in which jobs live, is left alone."""
    other = f"give another one: {sys.executable} {sys.argv[0]} --state DIR"
    if state.exists() and any(state.iterdir()):
        if not (state / "demo").is_dir():
            raise Failed(f"{state} is not of an earlier demonstration; {other}")
        tide(state, "up")
        mine = [job for job in Client(state).jobs().jobs if job.team != "demo"]
        if mine:
            raise Failed(f"{len(mine)} of your jobs live in {state}; let them end, or {other}")
        tide(state, "down", "--jobs")
        shutil.rmtree(state)
    (state / "demo").mkdir(parents=True)
    state.chmod(0o700)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=Path, default=CHECKOUT / ".tide", help="state directory (default: .tide here)")
    state = parser.parse_args().state.resolve()
    demo = Demo(state)
    try:
        fresh_state(state)
        up(state)
        demo.calibrate()
        demo.run_alone()
        runs = demo.run_together()
        moved, tour = demo.send_around()
    except KeyboardInterrupt:
        console.print(f"\ndemo: interrupted; its jobs run on. End them and all: tide --state {state} down --jobs")
        return 130
    except (Failed, TideError) as error:
        console.print(f"demo: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    show_closing([*runs, *moved], runs, SLOTS)
    if tour is not None:
        show_tour(tour, moved[0])
    wrong = judge([*runs, *moved])
    for line in wrong:
        console.print(f"demo: {line}", style="red", highlight=False)
    if not wrong:
        console.print(
            f"[green]Every job ended with 0 and lost no step[/], {time.monotonic() - demo.began:.0f} s in all."
        )
    show_next(state, CHECKOUT)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
