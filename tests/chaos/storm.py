"""Random faults over jobs on three hosts: what is done, in which order, and the verdict on every job.

Everything is drawn from one seed; a failure tells it, with what was done when and the stories of the jobs that are wrong.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.unmodified.harness import Outcome
from tests.unmodified.pool import FINAL
from tests.unmodified.programs import PROGRAMS, Program
from tidewright.base.errors import TideError

from .hosts import HOSTS, NODE_TIMEOUT_S, Hosts, plain

BY_NAME = {program.name: program for program in PROGRAMS}
TABLE = Program("table", ("{python}", str(Path(__file__).with_name("table.py"))))
"""TensorBoard opens its event files anew for each write: what it wrote after an image stays there after a rollback."""
DISK_MB = 1500
"""Of the host whose disk gets full: enough for the images of a few jobs."""

ENDS_S = 300.0
"""For jobs to end once all is mended, beside whatever else this machine has to do."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A program as it is run here: with so many ranks and steps."""

    name: str
    ranks: int
    steps: int

    @property
    def program(self) -> Program:
        return TABLE if self.name == "table" else BY_NAME[self.name]


@dataclass
class Storm:
    """Faults are methods that return what they hit, or an empty string.

    ``kinds``: name of a job to what it is; those that follow others are added.
    ``done``: faults that hit something; ``wished``: what users did meanwhile and what was mended, which are none.
    """

    hosts: Hosts
    dice: random.Random
    kinds: dict[str, Kind]
    followed: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    wished: list[str] = field(default_factory=list)
    plain: dict[Kind, Outcome] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    filler: Path | None = None

    # -- the course -------------------------------------------------------------------------------------------------

    def run(self, faults: int, pause_s: float, limit_s: float) -> None:
        """Start all jobs, strike ``faults`` times, mend everything, wait for the ends."""
        for kind in dict.fromkeys(self.kinds.values()):
            self.plain[kind] = plain(kind.program, kind.ranks, kind.steps, self.hosts.root)
        self.hosts.up()
        self.began, end = time.monotonic(), time.monotonic() + limit_s
        for name, kind in self.kinds.items():
            self.hosts.begin(kind.program, kind.ranks, name, kind.steps)
        first = next(iter(self.hosts.ids.values()))
        self.hosts.until(lambda: self.hosts.imaged(first))
        while len(self.done) < faults and time.monotonic() < end:
            self.renew()
            self.strike()
            time.sleep(self.dice.uniform(0, pause_s))
        self.mend()
        self.hosts.until(lambda: not self.alive(), max(ENDS_S, end - time.monotonic()))

    def renew(self) -> None:
        """Whatever has ended is followed by another of its kind: faults need something to hit, however fast a machine is."""
        alive = set(self.alive())
        for name, kind in list(self.kinds.items()):
            if self.hosts.ids[name] not in alive and name not in self.followed:
                self.followed.add(name)
                after = f"{kind.name}-{len(self.kinds)}"
                self.hosts.begin(kind.program, kind.ranks, after, kind.steps)
                self.kinds[after] = kind

    def alive(self) -> list[int]:
        """Jobs that have not ended."""
        return [job.id for job in self.hosts.client().jobs(all=True).jobs if job.state not in FINAL]

    def strike(self) -> None:
        """One fault, or a user's wish; one that cannot be granted now is told to the user, and nobody else."""
        wishes = self.wishes()
        deed: Callable[[], str] = self.dice.choice((*self.faults(), *wishes))
        with contextlib.suppress(TideError):
            if hit := deed():
                told = self.wished if deed in wishes else self.done
                told.append(f"{time.monotonic() - self.began:6.1f} {deed.__name__}: {hit}")

    def faults(self) -> Sequence[Callable[[], str]]:
        """Each as often as it is to be drawn."""
        once = (
            self.kill_rank, self.kill_rank, self.kill_agent, self.kill_agent, self.crash, self.lose, self.freeze_agent,
            self.freeze_host, self.kill_criu, self.kill_criu, self.kill_controller, self.flip, self.flip, self.truncate,
        )  # fmt: skip
        return (*once, self.fill) if self.hosts.mounted and self.filler is None else once

    def wishes(self) -> Sequence[Callable[[], str]]:
        """What may be asked for on any day, and a full disk that has room again."""
        daily = (self.suspend, self.migrate, self.scale, self.checkpoint)
        return daily if self.filler is None else (*daily, self.room)

    def mend(self) -> None:
        """The world is whole again."""
        self.free()
        for host in list(self.hosts.decoys):
            self.hosts.find(host)
        self.hosts.restart()
        self.hosts.until(lambda: all(state == "up" for state in self.hosts.states().values()))
        for job in self.hosts.client().jobs(all=True).jobs:
            if job.state in ("held", "suspended"):
                with contextlib.suppress(TideError):
                    self.hosts.client().resume(job.id)

    def verdict(self) -> str:
        """Everything that is wrong, with the means to find out why; empty: nothing."""
        wrong = {}
        for name, kind in self.kinds.items():
            job = self.hosts.ids[name]
            if found := self.hosts.verdict(job, self.plain[kind]):
                wrong[name] = "\n".join([*found, self.hosts.story_of(job)])
        if not wrong:
            return ""
        parts = [f"{name}: {said}" for name, said in wrong.items()]
        return "\n\n".join([*parts, "\n".join(sorted([*self.done, *self.wished])), str(self.ends())])

    def ends(self) -> Counter[str]:
        """How the jobs ended."""
        return Counter(self.hosts.view(job).state for job in self.hosts.ids.values())

    def right(self) -> list[str]:
        """Jobs that have ended with the numbers of an uninterrupted run, bit by bit."""
        return [
            name
            for name, kind in self.kinds.items()
            if (job := self.hosts.ids[name]) and self.hosts.view(job).state == "completed"
            if not self.hosts.verdict(job, self.plain[kind])
        ]

    # -- who is hit -------------------------------------------------------------------------------------------------

    def host(self) -> str:
        """One that is there."""
        return self.dice.choice([host for host in HOSTS if host not in self.hosts.decoys])

    def busy(self) -> str:
        """One with ranks on it, if there is any."""
        found = [host for host in HOSTS if host not in self.hosts.decoys and self.hosts.ranks(host)]
        return self.dice.choice(found) if found else self.host()

    def job(self, *states: str) -> int:
        """A job in one of these states; 0: none."""
        found = [job.id for job in self.hosts.client().jobs().jobs if job.state in states]
        return self.dice.choice(sorted(found)) if found else 0

    # -- faults -----------------------------------------------------------------------------------------------------

    def kill_rank(self) -> str:
        host, part = self.busy(), self.dice.choice(("main", "init", "shim"))
        return f"{part} on {host}" if self.hosts.kill_rank(host, part, self.dice) else ""

    def kill_agent(self) -> str:
        host = self.busy()
        return host if self.hosts.kill_agent(host) else ""

    def crash(self) -> str:
        host = self.busy()
        return host if self.hosts.kill_all(host) else ""

    def lose(self) -> str:
        """For longer than the pool waits for a node; every third time without its disk."""
        host, disk = self.busy(), self.dice.random() < 1 / 3
        self.free()
        self.hosts.lose(host, disk=disk)
        time.sleep(NODE_TIMEOUT_S + self.dice.uniform(0.5, 2))
        self.hosts.find(host)
        self.hosts.until(lambda: self.hosts.states()[host] == "up")
        return f"{host}, {'with' if disk else 'without'} its disk"

    def freeze_agent(self) -> str:
        host, seconds = self.busy(), self.dice.uniform(0.2, 3)
        hit = self.hosts.freeze([pid] if (pid := self.hosts.agent(host)) else [], seconds)
        return f"{host} for {seconds:.1f} s" if hit else ""

    def freeze_host(self) -> str:
        host, seconds = self.busy(), self.dice.uniform(0.2, 3)
        hit = self.hosts.freeze(self.hosts.everything(host), seconds)
        return f"{host} for {seconds:.1f} s" if hit else ""

    def kill_criu(self) -> str:
        """While it saves or restores: something of that kind is asked for, and the next CRIU dies."""
        hit: list[bool] = []
        delay = self.dice.choice((0.0, 0.0, 0.02, 0.1))
        hunter = threading.Thread(target=lambda: hit.append(self.hosts.kill_criu(3, delay)))
        hunter.start()
        verb = self.dice.choice((self.suspend, self.migrate, self.checkpoint))
        try:
            said = verb()
        except TideError as error:
            said = str(error).splitlines()[0]
        finally:
            hunter.join()
        return f"in {verb.__name__} {said}" if hit[0] else ""

    def kill_controller(self) -> str:
        if not self.hosts.kill_controller():
            return ""
        time.sleep(self.dice.uniform(0, 1))
        self.hosts.restart()
        return "and started again"

    def flip(self) -> str:
        return self._damage(self.hosts.flip)

    def truncate(self) -> str:
        return self._damage(self.hosts.truncate)

    def _damage(self, deed: Callable[[Path, random.Random], bool]) -> str:
        host = self.host()
        choices = [
            files for files in (self.hosts.raw_files(host), self.hosts.packs(host), self.hosts.manifests(host)) if files
        ]
        if not choices:
            return ""
        path = self.dice.choice(self.dice.choice(choices))
        return f"{path.relative_to(self.hosts.state)}" if deed(path, self.dice) else ""

    def fill(self) -> str:
        """The disk of one host is full for a while."""
        host = self.hosts.mounted[0].name
        if host in self.hosts.decoys:
            return ""
        self.filler = self.hosts.fill(host)
        return host

    def room(self) -> str:
        self.free()
        return "on the disk again"

    def free(self) -> None:
        if self.filler is not None:
            self.filler.unlink(missing_ok=True)
            self.filler = None

    # -- what users do ----------------------------------------------------------------------------------------------

    def suspend(self) -> str:
        job = self.job("running", "starting")
        if not job:
            return ""
        self.hosts.client().suspend(job)
        time.sleep(self.dice.uniform(0, 1))
        with contextlib.suppress(TideError):
            self.hosts.client().resume(job)
        return f"job {job}"

    def migrate(self) -> str:
        job = self.job("running")
        if job:
            self.hosts.client().migrate(job)
        return f"job {job}" if job else ""

    def scale(self) -> str:
        several = [job for job in self.hosts.client().jobs().jobs if job.devices > 1 and job.state == "running"]
        if not several:
            return ""
        job = self.dice.choice(several)
        devices = 1 if job.held > 1 else job.devices
        self.hosts.client().scale(job.id, devices)
        return f"job {job.id} to {devices}"

    def checkpoint(self) -> str:
        job = self.job("running")
        if job:
            self.hosts.client().checkpoint(job)
        return f"job {job}" if job else ""
