"""make demo-serve: real training and a served model share one pool; a spike of requests takes the devices, and gives them back.

Training programs first run undisturbed, which gives their loss hashes. Then they run again, a standard job of two ranks
(DistributedDataParallel) and a basic one, and fill the pool but for one replica of a premium service. Requests grow fifteenfold
in a moment: the gateway scales, training is suspended, replicas take its devices; batch inference fills what is idle. After the
spike training goes on where it stood. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from demo import CHECKOUT, Failed, fresh_state, steps_shown_twice, tide
from demo_load import Load
from demo_serve_view import Bars, Sample, Story, console, live_table, plot, show_bars
from demo_view import Program, Run
from rich.live import Live

from tidewright import Client, JobSpec
from tidewright.base.errors import TideError
from tidewright.launch.environment import submitted_environment

SLOTS = 4
SERVICE = "detector"
OBJECTIVE_S = 0.5
CALM, SPIKE = 20.0, 300.0
"""Requests per second; a replica carries about 90."""
LEAD_S, SPIKE_S = 6.0, 8.0
SCALE_DOWN = "4s"
BATCH_CLIENTS = 2
POLICY = "sla:brief=0s"
"""By default this policy serves standard jobs of a few seconds as premium ones; those of the demonstration are hardly longer."""
RECLAIM = "1s"
"""Devices lent to training return within this: jobs whose images take longer are frozen in memory instead of saved by CRIU."""
TRY_STEPS = 60
TRAIN_S = 22.0
"""How long each program trains undisturbed: until well after the spike."""
POLL_S = 0.2
FORMS: tuple[Literal["svg", "png"], ...] = ("svg", "png")
LIMIT_S = 120.0
"""For each phase; reached only when something is stuck, and then the reason is printed."""

PROGRAMS = [
    Program("ddp", "standard", "train_ddp.py", 6, TRAIN_S, ranks=2),
    Program("mlp", "basic", "train_mlp.py", 1, TRAIN_S),
]


class Demo:
    """The phases: serve, train undisturbed, train with a spike, judge."""

    def __init__(self, state: Path, reclaim: str) -> None:
        self.reclaim = reclaim
        self.state, self.folder, self.client = state, state / "demo", Client(state)
        self.environment = submitted_environment(os.environ)
        self.began = time.monotonic()
        self.samples: list[Sample] = []

    def until(self, true: Callable[[], Any], what: str) -> None:
        end = time.monotonic() + LIMIT_S
        while not true():
            if time.monotonic() > end:
                raise Failed(f"{what}: not so after {LIMIT_S:.0f} s; see {self.state}/controller.log and gateway.log")
            time.sleep(POLL_S)

    def up(self) -> None:
        said = tide(self.state, "up", "--hosts", "1", "--slots", str(SLOTS), "--policy", POLICY)
        console.print(said.rstrip(), highlight=False, soft_wrap=True)
        self.until(lambda: self.client.info().devices >= SLOTS, "no devices")

    @contextlib.contextmanager
    def gateway(self) -> Iterator[str]:
        """Its address, while it runs."""
        command = [str(Path(sys.executable).with_name("tide")), "--state", str(self.state), "serve", "gateway"]
        with (self.state / "gateway.log").open("wb") as log:
            process = subprocess.Popen([*command, "--listen", "127.0.0.1:0"], stdout=log, stderr=log)
        try:
            address = self.state / "serve.address"
            self.until(lambda: address.exists() or process.poll() is not None, "no gateway")
            if process.poll() is not None:
                raise Failed(f"the gateway has ended; see {self.state}/gateway.log")
            yield address.read_text().strip()
        finally:
            process.terminate()
            process.wait(30)

    def deploy(self) -> None:
        """The service with one replica; where nodes take images further ones start from one."""
        image = ["--from-image"] if all(node.full for node in self.client.nodes().nodes) else []
        options = ["--replicas", f"1:{SLOTS}", "--objective", f"{OBJECTIVE_S}s", "--scale-down-delay", SCALE_DOWN]
        model = ["--model", "demo_load:detector", "--sla", "premium", "--team", "demo", "--reclaim", self.reclaim]
        command = ["serve", "deploy", SERVICE, *model, *options, *image]
        with contextlib.chdir(Path(__file__).parent):
            console.print(f"$ tide {' '.join(command)}", highlight=False, soft_wrap=True)
            tide(self.state, *command)
        self.until(lambda: self.replicas()[1] == 1, f"service {SERVICE} is not ready")

    def replicas(self) -> tuple[int, int]:
        """How many are wanted, and how many answer."""
        (service,) = self.client.services().services
        return service.wanted, service.running

    def submit(self, program: Program, name: str, steps: int, **fields: Any) -> Run:
        run = Run(program, name, self.folder / f"{name}.json")
        options = ("--steps", str(steps), "--seed", str(program.seed), "--out", str(run.out))
        spec = JobSpec(
            name=name, command=(sys.executable, str(CHECKOUT / "examples" / program.script), *options),
            ranks=program.ranks, devices=program.ranks, placement="any", team="demo", env=self.environment,
            workdir=str(self.folder), **fields,
        )  # fmt: skip
        run.id = self.client.submit([spec]).ids[0]
        return run

    def undisturbed(self) -> None:
        """Measure a step, then run each program for its seconds, never preempted: its loss hash."""
        for number, steps in ((1, {program.name: TRY_STEPS for program in PROGRAMS}), (2, {})):
            runs = [
                self.submit(
                    one, f"{('try', 'alone')[number - 1]}-{one.name}", steps.get(one.name, one.steps), preempt="none"
                )
                for one in PROGRAMS
            ]
            self.until(lambda runs=runs: all(self.look(run) for run in runs), "training alone")  # type: ignore[misc]
            for run in runs:
                self.collect(run)
                if number == 1:
                    step_s = float(str(run.result["seconds_training"])) / TRY_STEPS
                    run.program.steps = max(TRY_STEPS, round(run.program.seconds / step_s))
                run.program.hash = str(run.result["hash"])

    def look(self, run: Run) -> bool:
        """Whether it has ended."""
        run.view = self.client.job(run.id)
        return run.final

    def shows_steps(self, run: Run) -> bool:
        """Whether it has come past what a program does before its first steps."""
        return b"step " in b"".join(self.client.logs(run.id))

    def collect(self, run: Run) -> None:
        """Everything known of an ended job. Raises Failed with the end of its log when it did not complete."""
        self.look(run)
        run.result = json.loads(run.out.read_text()) if run.out.exists() else {}
        log = b"".join(self.client.logs(run.id)).decode(errors="replace")
        if run.view is None or run.view.state != "completed" or not run.result:
            raise Failed(f"job {run.id} ({run.name}) ended: {run.view and run.view.why}\n{log[-2000:]}")
        run.steps_lost = steps_shown_twice(log)

    def together(self, address: str) -> tuple[list[Run], Load]:
        """Training with a spike, until training has ended and one replica is left."""
        runs = [self.submit(one, one.name, one.steps, tier=one.tier) for one in PROGRAMS]
        self.until(lambda: all(self.shows_steps(run) for run in runs), "no training steps")
        load = Load(address, SERVICE, [(0, CALM), (LEAD_S, SPIKE), (LEAD_S + SPIKE_S, CALM)], BATCH_CLIENTS)
        load.start()
        end = time.monotonic() + LIMIT_S
        with Live(console=console, refresh_per_second=4, transient=True) as live:
            while not all(run.final for run in runs) or self.replicas()[0] > 1:
                views = {view.id: view for view in self.client.jobs(all=True).jobs}
                for run in runs:
                    run.view = views.get(run.id, run.view)
                wanted, running = self.replicas()
                held = {run.name: run.view.held if run.view is not None else 0 for run in runs}
                states = {run.name: run.view.state if run.view is not None else "" for run in runs}
                serving = sum(view.held for view in views.values() if view.name.startswith(f"{SERVICE}-"))
                self.samples.append(Sample(load.elapsed(), wanted, running, serving, held, states))
                live.update(live_table(self.samples, load, runs, OBJECTIVE_S, SLOTS, time.monotonic() - self.began))
                if time.monotonic() > end:
                    raise Failed(self.stuck(runs))
                time.sleep(POLL_S)
        load.stop()
        for run in runs:
            self.collect(run)
        return runs, load

    def stuck(self, runs: list[Run]) -> str:
        lines = [f"  {run.name}: {self.client.why(run.id).summary}" for run in runs if not run.final]
        return f"not finished after {LIMIT_S:.0f} s; {self.replicas()[0]} replicas are wanted\n" + "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--state", type=Path, default=CHECKOUT / ".tide", help="state directory (default: .tide here)")
    parser.add_argument("--reclaim", default=RECLAIM, help="deadline (default: 1s); with 10s training is saved by CRIU")
    given = parser.parse_args()
    state = given.state.resolve()
    demo = Demo(state, given.reclaim)
    try:
        fresh_state(state)
        demo.up()
        demo.undisturbed()
        console.print(f"[bold]1/3[/] {len(PROGRAMS)} programs ran undisturbed: their loss hashes are known")
        with demo.gateway() as address:
            demo.deploy()
            console.print(f"[bold]2/3[/] {SERVICE} answers on http://{address}")
            runs, load = demo.together(address)
            console.print(
                f"[bold]3/3[/] training ended, and one replica is left; {len(load.answers)} requests were sent\n"
            )
    except KeyboardInterrupt:
        console.print(f"\ndemo: interrupted; its jobs run on. End them and all: tide --state {state} down --jobs")
        return 130
    except (Failed, TideError) as error:
        console.print(f"demo: {error}", style="red", highlight=False, markup=False, soft_wrap=True)
        return 1
    story = Story(load.answers, demo.samples, LEAD_S, SPIKE_S, OBJECTIVE_S)
    bars = Bars.of(story, runs, SLOTS)
    show_bars(bars, runs, load)
    for form in FORMS:
        (state / "demo" / f"spike.{form}").write_bytes(plot(story, SLOTS, form))
    picture = os.path.relpath(state / "demo" / "spike.svg")
    console.print(f"\n{time.monotonic() - demo.began:.0f} s in all. The plot: {picture} (and .png)", highlight=False)
    command = f"{os.path.relpath(Path(sys.executable).with_name('tide'))} --state {os.path.relpath(state)}"
    console.print(
        f"The controller is still up: {command} ps --all. Stop it: {command} down --jobs", style="dim", soft_wrap=True
    )
    return 0 if bars.kept else 1


if __name__ == "__main__":
    sys.exit(main())
