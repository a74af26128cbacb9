"""A controller that answers from a script, and a way to type commands at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tidewright.base.errors import NotFound, Unreachable
from tidewright.base.units import SECOND
from tidewright.cli.session import Session
from tidewright.cli.shell import run
from tidewright.model.job import JobSpec
from tidewright.model.service import ServiceSpec
from tidewright.model.spec_changes import SpecChanges
from tidewright.wire import api
from tidewright.wire.calls.job_changes import BulkReply, Selection
from tidewright.wire.services import ReplicaView, ServiceList, ServiceView

NOW = 1_700_000_000 * SECOND
FIRST = 20
"""Id of the first job that is submitted."""


def running(**changes: Any) -> api.JobView:
    """A job that runs on two devices."""
    job = api.JobView(
        id=17, name="train", state="running", why="all ranks run", tier="premium", team="vision", user="me",
        submit=NOW - 90 * SECOND, start=NOW - 80 * SECOND, since=NOW - 80 * SECOND, devices=4, min_devices=1, ranks=4,
        held=2, where=(api.DeviceHeld("n1", (0, 1)),), level="freeze", attempt=1, preemptions=2, fraction=0.5,
        target=0.95, command="python train.py", spec=JobSpec(command=("python", "train.py"), workdir="/home/me"),
        story=(api.StoryLine(NOW - 90 * SECOND, "submitted", "premium, 4 devices"),),
        logs=(api.AttemptLog(1, 0, "n1", "/logs/17.log"),),
    )  # fmt: skip
    return msgspec.structs.replace(job, **changes)


def waiting(**changes: Any) -> api.JobView:
    """A job that waits."""
    plain = {"state": "queued", "held": 0, "where": (), "start": -1, "reason": "NoCapacity", "why": "needs 4 devices"}
    return running(**{"id": 18, "name": "later", "tier": "basic", "target": 0.0, **plain, **changes})


CHANGE = api.ChangeView("request", "2 devices instead of 4", api.CauseView("FewerDevices", {}, ""), "tide scale 18 2")


@dataclass
class Stub:
    """Stands in for wire.client.Client; ``calls`` is what was asked of it."""

    listing: Sequence[api.JobView] = (running(), waiting())
    exits: dict[str, int] = field(default_factory=dict)
    calls: list[tuple[Any, ...]] = field(default_factory=list)
    submitted: list[JobSpec] = field(default_factory=list)
    drained: list[Callable[[api.NodeView], api.NodeView]] = field(default_factory=list)
    """What becomes of the drained node at each look; where there is none it is up."""
    output: Sequence[bytes] = (b"step 1\n", b"step 2\n")
    down: bool = False
    selection: Selection = field(default_factory=Selection)
    bulk_reply: BulkReply = field(default_factory=BulkReply)

    def _known(self, ref: Any) -> api.JobView:
        for job in self.listing:
            if str(ref) in (str(job.id), job.name):
                return job
        raise NotFound(f"no job {ref}", "list jobs with tide ps --all")

    def info(self) -> api.Info:
        if self.down:
            raise Unreachable("no controller answers at /state", "start it with tide up")
        return api.Info(
            version="0.1.0", pid=1, state_dir="/state", policy="sla", epoch=1, started=NOW, now=NOW, turn=1, revision=1,
            nodes=1, devices=4, free=2, live_jobs=2, ended_jobs=0,
        )  # fmt: skip

    def submit(
        self, specs: Sequence[JobSpec], dry_run: bool = False, op_id: str = "", after: Sequence[str] = ()
    ) -> api.SubmitReply:
        self.calls.append(("submit", len(specs), dry_run, *after))
        if dry_run:
            return api.SubmitReply(dry_run=True, forecast=("would be launched now on n1[0]",))
        first = FIRST + len(self.submitted)
        self.submitted.extend(specs)
        ids = tuple(range(first, first + len(specs)))
        return api.SubmitReply(ids=ids, names=tuple(spec.name for spec in specs), warnings=("promise at risk",))

    def jobs(self, **query: Any) -> api.JobList:
        self.calls.append(("jobs", query))
        return api.JobList(jobs=tuple(self.listing), now=NOW)

    def job(self, ref: Any) -> api.JobView:
        if str(ref).isdecimal() and FIRST <= int(ref) < FIRST + len(self.submitted):
            return running(id=int(ref), ranks=self.submitted[int(ref) - FIRST].ranks)
        return self._known(ref)

    def lookup(self, ref: Any) -> api.JobReply:
        return api.JobReply(job=self.job(ref), now=NOW)

    def eta(self, ref: Any) -> api.EtaView:
        job = self._known(ref)
        starts, ends = (
            api.TimeInterval(*(NOW + at * 60_000_000 for at in minutes)) for minutes in ((8, 12, 25), (90, 130, 300))
        )
        return api.EtaView(job=job.id, name=job.name, state=job.state, starts=starts, ends=ends, samples=20, now=NOW)

    def why(self, ref: Any, changes: bool = True) -> api.WhyView:
        job = self._known(ref)
        return api.WhyView(
            job=job.id, name=job.name, state=job.state, summary="needs 4 devices, 2 are free", reason="NoCapacity",
            consequence="waits; tried again when devices are freed", need=4, free=2,
            holders=(api.Holder(17, "train", "premium", 2),), ahead=1, story=job.story, now=NOW,
            change="2 devices instead of 4 (tide scale 18 2)",
            changes=(CHANGE,) if changes else (), searched=changes,
            failure=job.failure,
        )  # fmt: skip

    def suspend(self, ref: Any, until_us: int = 0) -> api.ActionReply:
        self.calls.append(("suspend", ref, until_us))
        return api.ActionReply(job=self._known(ref).id)

    def resume(self, ref: Any) -> api.ActionReply:
        self.calls.append(("resume", ref))
        return api.ActionReply(job=self._known(ref).id)

    def migrate(self, ref: Any, to: Sequence[str] = ()) -> api.ActionReply:
        self.calls.append(("migrate", ref, tuple(to)))
        return api.ActionReply(job=self._known(ref).id)

    def scale(self, ref: Any, devices: int) -> api.ActionReply:
        self.calls.append(("scale", ref, devices))
        return api.ActionReply(job=self._known(ref).id)

    def checkpoint(self, ref: Any) -> api.ActionReply:
        self.calls.append(("checkpoint", ref))
        return api.ActionReply(job=self._known(ref).id)

    def cancel(self, ref: Any) -> api.ActionReply:
        self.calls.append(("cancel", ref))
        return api.ActionReply(job=self._known(ref).id)

    def hold(self, ref: Any) -> api.ActionReply:
        self.calls.append(("hold", ref))
        return api.ActionReply(job=self._known(ref).id)

    def release(self, ref: Any) -> api.ActionReply:
        self.calls.append(("release", ref))
        return api.ActionReply(job=self._known(ref).id)

    def requeue(self, ref: Any, from_image: bool = False, hold: bool = False) -> api.ActionReply:
        self.calls.append(("requeue", ref, from_image, hold))
        return api.ActionReply(job=self._known(ref).id)

    def update(self, ref: Any, changes: SpecChanges) -> api.ActionReply:
        self.calls.append(("update", ref, changes))
        return api.ActionReply(job=self._known(ref).id)

    def select(self, action: str, **filters: Any) -> Selection:
        self.calls.append(("select", action, filters))
        return self.selection

    def bulk(self, action: str, jobs: Sequence[int], **options: Any) -> Iterator[BulkReply]:
        self.calls.append(("bulk", action, tuple(jobs), options))
        yield self.bulk_reply

    def wait(self, ref: Any, timeout: float | None = None) -> api.WaitReply:
        self.calls.append(("wait", ref, timeout))
        code = self.exits.get(str(ref), 0)
        job = int(ref) if str(ref).isdigit() else self._known(ref).id
        if code < 0:
            return api.WaitReply(job=job, state="running", final=False)
        return api.WaitReply(job=job, state="failed" if code else "completed", final=True, exit_code=code)

    def logs(
        self, ref: Any, rank: int | None = 0, follow: bool = False, tail: int | None = None, attempt: int = 0
    ) -> Iterator[bytes]:
        self.calls.append(("logs", ref, rank, follow, tail, attempt))
        yield from self.output

    def nodes(self) -> api.NodeList:
        node = api.NodeView(
            name="n1", state="up", kind="h100", devices=4, free=2, jobs=(17,), device_memory=80 * 2**30,
            busy=((17,), (17,), (), ()),
        )  # fmt: skip
        drained = msgspec.structs.replace(node, state="draining", why="fan", since=NOW, moves=True)
        return api.NodeList(nodes=(self.drained.pop(0)(drained) if self.drained else node,), now=NOW)

    def drain(self, node: str, why: str = "", move: bool = False) -> api.ActionReply:
        self.calls.append(("drain", node, why, move))
        return api.ActionReply(node=node, warning="still on n1: job 17" if move else "")

    def undrain(self, node: str) -> api.ActionReply:
        self.calls.append(("undrain", node))
        return api.ActionReply(node=node)

    def usage(self, by: str = "team") -> api.UsageReply:
        row = api.UsageRow(
            key="vision", jobs=3, live=1, held_gpu_s=7200.0, delivered_gpu_s=60.0, fraction=0.5, preemptions=2
        )
        return api.UsageReply(by=by, rows=(row,), now=NOW)

    def rates(self, workload: str = "") -> api.RatesReply:
        rows = (
            api.RateRow(workload="bert", kind="a100", devices=4, nodes=1, per_s=1234.5, learnt=True),
            api.RateRow(workload="bert", kind="h100", devices=4, per_s=2500.0),
            api.RateRow(workload="bert", kind="k80", devices=4),
            api.RateRow(workload="resnet", kind="a100", step_s={"gradient": 0.0123, "local": 0.0}),
        )
        return api.RatesReply(rows=tuple(row for row in rows if workload in ("", row.workload)), now=NOW)

    def forget_rates(self, workload: str) -> api.ActionReply:
        self.calls.append(("forget_rates", workload))
        return api.ActionReply()

    def services(self) -> ServiceList:
        replicas = (
            ReplicaView(job=31, name="vision-1", state="running", version=2),
            ReplicaView(job=30, name="vision-0", state="stopping", version=1, retired=True),
        )
        vision = ServiceView(
            name="vision", state="updating", version=2, wanted=2, running=1, min_replicas=1, max_replicas=4, tier="premium",
            devices=1, since=NOW - 5_000_000, ends=3, replicas=replicas, restarts=4,
            last_end="out of memory: rank 0 passed its limit of 4GiB (--mem)", last_end_job=29, last_end_at=NOW - 2_000_000,
            command="python server.py", user="ada",
        )  # fmt: skip
        return ServiceList(services=(vision,), now=NOW)

    def deploy(self, service: ServiceSpec) -> api.ActionReply:
        self.calls.append(("deploy", service))
        return api.ActionReply(warning="standard is short")

    def scale_service(self, name: str, replicas: int) -> api.ActionReply:
        self.calls.append(("scale_service", name, replicas))
        return api.ActionReply()

    def delete_service(self, name: str) -> api.ActionReply:
        self.calls.append(("delete_service", name))
        return api.ActionReply()

    def top(self) -> api.TopView:
        load = api.JobLoad(job=17, name="train", tier="premium", team="vision", state="running", devices=2)
        loads = (api.DeviceLoad(node="n1", device=0, utilisation=42.0, memory_used=2**30, jobs=(17,)),)
        return api.TopView(
            now=NOW, devices=4, held=2, queued=1, running=1, suspended=0, ended=0, jobs=(load,), loads=loads
        )


@dataclass
class StubSession(Session):
    """A session that hands out one stub."""

    stub: Stub = field(default_factory=Stub)

    def client(self) -> Any:
        return self.stub


@dataclass
class Typed:
    """What one command line gave."""

    code: int
    out: str
    err: str


class Terminal:
    """Types ``tide …`` at a stub and returns what it printed."""

    def __init__(self, capsys: pytest.CaptureFixture[str], state: Path) -> None:
        self._capsys = capsys
        self.stub = Stub()
        self.state = state

    def __call__(self, *arguments: str) -> Typed:
        self._capsys.readouterr()
        code = run(list(arguments), StubSession(self.state, stub=self.stub))
        said = self._capsys.readouterr()
        return Typed(code, said.out, said.err)
