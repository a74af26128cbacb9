"""An agent that dies and comes back, on real directories, with real shims and real small processes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from tidewright.agent.layout import AgentLayout
from tidewright.agent.main import standard_drivers
from tidewright.agent.processes.rank import Rank
from tidewright.agent.processes.rank_spec import NodeContext
from tidewright.agent.supervisor import Supervisor
from tidewright.base.errors import WorldError
from tidewright.checkpoint.cgroup import detect
from tidewright.devices.fake import FakeBackend
from tidewright.launch import shim
from tidewright.model.job import Level
from tidewright.testing.crash import Crash, Fuse, begin, effect
from tidewright.wire.agent import ForgetArgs, JobReport, LaunchArgs, RankSeat, ResumeArgs, StopArgs, SuspendArgs

NURSERY = """
import os, sys
sys.path.insert(0, sys.argv[1])
import shim
for line in sys.stdin:
    if os.fork() == 0:
        os._exit(shim.main(line.strip()))
    os.wait()
"""
"""Forks shims without starting an interpreter for each; they are the real ones in every other way."""
PATIENCE_S = 20.0
SCRIPTS = {
    1: "sleep 0.12; echo done >> $W/1",  # frozen and thawed on its way
    2: "echo done >> $W/2; exit 7",
    3: "trap '' TERM; echo on >> $W/3; while :; do sleep 0.05; done",  # stopped, and killed after its grace
}
ENDS = {1: 0, 2: 7, 3: 137}
LINES = {1: ["done"], 2: ["done"], 3: ["on"]}
GRACE_US = 30_000


class Nursery:
    """One process that forks shims."""

    def __init__(self) -> None:
        argv = [sys.executable, "-I", "-S", "-u", "-c", NURSERY, str(Path(shim.__file__).parent)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, cwd="/", env={}, bufsize=0)

    def fork(self, directory: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{directory}\n".encode())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class Plan(NamedTuple):
    """When the lives of one play end: each at a side effect of its own, counted from one; later lives are whole."""

    cuts: tuple[int, ...] = ()
    after: bool = False
    kind: str = ""
    """Count only side effects of this name."""


class Bench:
    """What outlives an agent: its directory, its ranks, and the controller that asks until it has heard every end."""

    def __init__(self, root: Path, plan: Plan, nursery: Nursery) -> None:
        self.layout, self.work = AgentLayout(root / "state"), root / "work"
        self.layout.prepare()
        self.work.mkdir()
        self.plan, self.cuts, self.nursery = plan, iter(plan.cuts), nursery
        self.fuses: list[Fuse] = []
        self.ended: dict[int, int] = {}
        """Exit code by job, once journaled."""
        self.forgotten: set[int] = set()
        self.suspended = False
        self.asked: set[tuple[int, str]] = set()

    # -- lives ------------------------------------------------------------------------------------------------------

    async def play(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.forgotten) < len(SCRIPTS):
                fuse = Fuse(next(self.cuts, 0), self.plan.after, kind=self.plan.kind)
                self.fuses.append(fuse)
                task, death = begin(fuse, self._live()), asyncio.ensure_future(fuse.death())
                await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)
                death.cancel()
                if not fuse.blown:
                    await task
                else:
                    await fuse.reap()
                await self._close()

    async def _live(self) -> None:
        backend = FakeBackend("n1", kind="cpu")
        self.supervisor = Supervisor(NodeContext(self.layout, backend, detect()), standard_drivers("n1"), self._publish)
        self.asked.clear()
        self.supervisor.adopt()
        while len(self.forgotten) < len(SCRIPTS):
            for job in SCRIPTS:
                if job not in self.forgotten and not self.fuses[-1].blown:
                    self._ask(job)
            self.supervisor.health_check()
            await asyncio.sleep(0.01)

    async def _close(self) -> None:
        """The kernel's part of a death: timers, watches and descriptors go."""
        with contextlib.suppress(AttributeError, Crash):
            await self.supervisor.close()

    def _publish(self, report: JobReport) -> None:
        with effect("report"):
            pass

    # -- the controller ---------------------------------------------------------------------------------------------

    def _ask(self, job: int) -> None:
        """What a controller would ask next, from what the agent says of the job now."""
        found = next((report for report in self.supervisor.reports() if report.job == job), None)
        with contextlib.suppress(WorldError):
            if job in self.ended:
                self.supervisor.forget(ForgetArgs(job=job, attempt=0), "")
                self.forgotten.add(job)
            elif found is None:
                self._once(job, "launch", lambda: self.supervisor.launch(self._launch(job), f"launch-{job}"))
            elif found.state in ("exited", "failed"):
                assert not found.lost and found.state == "exited", found
                self.ended[job] = found.code
            else:
                self._steer(job, found)

    def _steer(self, job: int, found: JobReport) -> None:
        if job == 1 and found.state == "running" and not self.suspended:
            freeze = SuspendArgs(job=1, attempt=0, level=Level.FREEZE, grace_us=GRACE_US)
            self._once(job, "suspend", lambda: self.supervisor.suspend(freeze, "suspend-1"))
        elif job == 1 and found.state == "suspended":
            self.suspended = True
            self._once(job, "resume", lambda: self.supervisor.resume(ResumeArgs(job=1, attempt=0), "resume-1"))
        elif job == 3 and found.state == "running" and (self.work / "3").exists():
            stop = StopArgs(job=3, attempt=0, grace_us=GRACE_US)
            self._once(job, "stop", lambda: self.supervisor.stop(stop, "stop-3"))

    def _once(self, job: int, verb: str, ask: Callable[[], object]) -> None:
        """A controller asks again only of an agent that was away."""
        if (job, verb) not in self.asked:
            self.asked.add((job, verb))
            ask()

    def _launch(self, job: int) -> LaunchArgs:
        return LaunchArgs(
            job=job, attempt=0, command=("/bin/sh", "-c", SCRIPTS[job]), ranks=(RankSeat(0, 0, (job - 1,)),),
            env={"PATH": os.environ["PATH"], "W": str(self.work)}, workdir=str(self.work), grace_us=GRACE_US,
        )  # fmt: skip

    # -- what must hold ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Each ran to its end once, the end is told right, and nothing is left on disk, in groups or running."""
        assert self.ended == ENDS
        assert {job: (self.work / str(job)).read_text().split() for job in SCRIPTS} == LINES
        assert list(self.layout.ranks.iterdir()) == []
        assert detect().made(f"tidewright-{self.layout.tag}-") == ()


@contextlib.contextmanager
def spawning(nursery: Nursery) -> Iterator[None]:
    """Ranks get their shims from the nursery. The agent may die while one is on its way."""

    async def spawn(rank: Rank) -> None:
        with effect("shim asked for"):
            nursery.fork(rank.directory)
        await rank.settled()

    with mock.patch.object(Rank, "spawn", spawn):
        yield


async def crashes(root: Path, nursery: Nursery, plan: Plan) -> Bench:
    """Play the scenario in ``root`` with lives cut short, and check what is left."""
    root.mkdir(parents=True)
    bench = Bench(root, plan, nursery)
    try:
        await bench.play()
        bench.check()
    except BaseException as error:
        told = [(fuse.at, fuse.blown, fuse.effects[-5:]) for fuse in bench.fuses]
        raise AssertionError(f"{plan} {told}: {error!r}") from error
    return bench
