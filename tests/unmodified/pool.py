"""A pool of two hosts on this machine under real daemons, and the events that a job is put through."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from tests.agent.agent_bench import groups
from tests.command import tide
from tests.unmodified.harness import LIMIT_S, SLOTS_IN_ALL, Outcome, read, user_environment
from tests.unmodified.programs import Program
from tidewright.base.errors import TideError
from tidewright.checkpoint.cgroup import remove, wait_until
from tidewright.checkpoint.processes import PROC, grouped, send
from tidewright.model.job import JobSpec
from tidewright.wire.api import JobView
from tidewright.wire.client import Client

FINAL = ("completed", "failed", "cancelled", "timeout")
HOSTS = ("east", "west")
SLOTS = SLOTS_IN_ALL // len(HOSTS)
TRIES = 10
"""Of one event, when it is refused: a process that is just being started cannot be saved, say."""


Event = Callable[[int, random.Random], None]
"""What a job is put through."""


@dataclass(slots=True)
class Ride:
    """What a job went through: the events that took place, what was refused, and what its ranks printed."""

    outcome: Outcome
    view: JobView
    events: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    last: str = ""
    """The end of what its ranks printed, for whoever must find out why it failed."""


class Refused(Exception):
    """An event did not take place; the job runs on."""


class Ended(Exception):
    """The job has ended meanwhile."""


def places(view: JobView) -> set[str]:
    """The nodes that a job is on."""
    return {held.node for held in view.where}


class Pool:
    """Two agents with some CPU slots each. ``clean`` leaves no process behind."""

    names: Iterable[str] = HOSTS

    def __init__(self, root: Path, slots: int = SLOTS) -> None:
        self.root, self.state, self.slots = root, root / "state", slots

    def tide(self, *arguments: str) -> str:
        """A command as a user types it; what it printed. Raises AssertionError when it fails."""
        done = tide(self.state, *arguments, cwd=self.root)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def up(self) -> None:
        hosts = [word for name in HOSTS for word in ("--host", f"{name}={self.slots}")]
        self.tide("up", *hosts, "--policy", "fifo")
        self.until(lambda: len(self.client().nodes().nodes) == len(HOSTS))

    def client(self) -> Client:
        return Client(self.state, timeout=30)

    def submit(self, program: Program, world: int, name: str, steps: int = 0) -> int:
        """A job of ``world`` ranks, each on a slot of its own."""
        work = self.root / name
        work.mkdir()
        return self.start(name, program.argv(steps), work, user_environment(self.root), ranks=world, devices=world)

    def start(
        self, name: str, argv: list[str], work: Path, env: dict[str, str], ranks: int = 1, devices: int = 1
    ) -> int:
        """Any command as a job in ``work``; its id."""
        spec = JobSpec(
            name=name,
            command=tuple(argv),
            ranks=ranks,
            devices=devices,
            env=env,
            workdir=str(work),
            checkpoint_us=-1,
        )
        return self.client().submit([spec]).ids[0]

    def view(self, job: int) -> JobView:
        return self.client().job(job)

    def until(self, true: Callable[[], bool], seconds: float = 60.0) -> None:
        """Wait for something, and tell the daemons' story if it does not happen."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with contextlib.suppress(TideError):
                if true():
                    return
            time.sleep(0.05)
        raise AssertionError(self.story())

    def reach(self, job: int, *states: str) -> str:
        """Wait until the job is in one of these states or has ended; the state."""
        found = ""

        def there() -> bool:
            nonlocal found
            found = self.view(job).state
            return found in (*states, *FINAL)

        self.until(there)
        return found

    def story(self) -> str:
        """The ends of all logs of daemons, for a failure."""
        paths = [*self.state.glob("*.log"), *self.state.glob("*/*.log")]
        jobs = "\n".join(f"{each.id} {each.state}: {each.why} {each.level_why}" for each in self._jobs())
        return jobs + "\n" + "\n".join(f"{path.name}:\n{path.read_text()[-3000:]}" for path in paths)

    def _jobs(self) -> tuple[JobView, ...]:
        with contextlib.suppress(TideError):
            return self.client().jobs(all=True).jobs
        return ()

    # -- events -----------------------------------------------------------------------------------------------------

    def suspend(self, job: int, dice: random.Random) -> None:
        """Suspend, wait a little, resume."""
        since = self.view(job).since
        self.client().suspend(job)
        self.settle(job, lambda view: view.state in ("suspended", "held"), since)
        time.sleep(dice.uniform(0, 0.3))
        self.client().resume(job)
        self.settle(job, lambda view: view.state == "running", 0)

    def migrate(self, job: int, dice: random.Random) -> None:
        """Move to the other host."""
        view = self.view(job)
        self.client().migrate(job)
        self.settle(job, lambda now: now.state == "running" and places(now) != places(view), view.since)

    def scale(self, job: int, dice: random.Random) -> None:
        """Run on another number of devices."""
        view = self.view(job)
        sizes = [size for size in (1, 2, 4) if size <= view.devices and size != view.held]
        if not sizes:
            raise Refused("there is one rank")
        wanted = dice.choice(sizes)
        self.client().scale(job, wanted)
        self.settle(job, lambda now: now.state == "running" and now.held == wanted, view.since)

    def checkpoint(self, job: int, dice: random.Random) -> None:
        """Take an image of the running job; every other time something else is asked for before that is done."""
        before = self.view(job)
        self.client().checkpoint(job)
        if dice.random() < 0.5:
            time.sleep(dice.uniform(0, 0.3))
            dice.choice((self.suspend, self.migrate))(job, dice)
        else:
            self.until(lambda: self._imaged(before))

    def _imaged(self, before: JobView) -> bool:
        """Whether there is an image that was not there. Raises Refused when none could be made, Ended when the job has
        ended."""
        view = self.view(before.id)
        if failed := [line.why for line in view.story[len(before.story) :] if line.what == "image"]:
            raise Refused(failed[0])
        if view.state in FINAL:
            raise Ended
        return bool({image.serial for image in view.images} - {image.serial for image in before.images})

    def settle(self, job: int, there: Callable[[JobView], bool], since: int) -> None:
        """Wait until an event has had its effect. Raises Refused when it was given up, Ended when the job has ended."""

        def settled() -> bool:
            view = self.view(job)
            if there(view):
                return True
            if view.state in FINAL:
                raise Ended
            if view.state == "running" and since and view.since > since:
                raise Refused(view.why)
            return False

        self.until(settled)

    def ride(self, program: Program, world: int, name: str, *, events: int, seed: int, steps: int = 0) -> Ride:
        """Run a program as a job through ``events`` random events, at random steps, the first perhaps at its start."""
        dice, deck = random.Random(seed), list[Event]()
        job = self.submit(program, world, name, steps)
        ride = Ride(Outcome({}, {}), self.view(job))
        self.reach(job, "running")
        with contextlib.suppress(Ended):
            for at in sorted(dice.choices(range((steps or program.steps) // 3), k=events)):
                self.until(lambda at=at: self.steps(job) >= at or self._over(job), LIMIT_S)  # type: ignore[misc]
                time.sleep(dice.uniform(0, 0.05))
                deck = deck or self.deck(world, dice)
                self.event(job, dice, deck, ride)
        self.until(lambda: self._over(job), LIMIT_S)
        logs = [self.log(job, rank) for rank in range(world)]
        ride.outcome, ride.view, ride.last = read(logs), self.view(job), "\n".join(log[-4000:] for log in logs)
        return ride

    def deck(self, world: int, dice: random.Random) -> list[Event]:
        """All events in random order, from the end; an image of the running job is among the first three."""
        others = [self.suspend, self.migrate, *([self.scale] if world > 1 else [])]
        drawn = dice.sample(others, len(others))
        drawn.insert(dice.randrange(3), self.checkpoint)
        return drawn[::-1]

    def event(self, job: int, dice: random.Random, deck: list[Event], ride: Ride) -> None:
        """The next event that takes place; one that is refused is put last, a bounded number of times."""
        for _ in range(TRIES):
            event = deck[-1]
            try:
                event(job, dice)
            except (TideError, Refused) as error:
                ride.refused.append(f"{event.__name__}: {error}")
                deck.insert(0, deck.pop())
                if self._over(job):
                    raise Ended from None
                time.sleep(0.3)
            else:
                ride.events.append(event.__name__)
                deck.pop()
                return

    def _over(self, job: int) -> bool:
        return self.view(job).state in FINAL

    def steps(self, job: int) -> int:
        """Steps that rank 0 has printed."""
        last = b"".join(self.client().logs(job, 0, tail=1)).decode(errors="replace").split()
        return int(last[1]) if len(last) > 1 and last[0] == "step" and last[1].isdigit() else 0

    def log(self, job: int, rank: int) -> str:
        return b"".join(self.client().logs(job, rank)).decode()

    # -- the end ----------------------------------------------------------------------------------------------------

    def left(self) -> list[int]:
        """Every process of this pool that still lives."""
        found = []
        for entry in PROC.iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    if str(self.state).encode() in said:
                        found.append(int(entry.name))
        return found

    def groups(self) -> list[Path]:
        """Freezer groups of ranks on any of its hosts."""
        return [group for name in self.names for group in groups(self.state / "hosts" / name)]

    def clean(self) -> None:
        """Stop the daemons, and kill by id whatever is left."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired, TideError):
            for each in self._jobs():
                if each.state not in FINAL:
                    self.client().cancel(each.id)
            self.tide("down")
        send(self.left(), signal.SIGKILL)
        wait_until(lambda: not self.left(), 5)
        for group in self.groups():
            send(grouped([str(group)]), signal.SIGKILL)
            remove((str(group),))
