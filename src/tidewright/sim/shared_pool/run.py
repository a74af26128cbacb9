"""The simulator's loop with a service in the pool: the demand is asked when it wants to be, and replicas answer requests from
when they have started and loaded until they are stopped, suspended or lost.

It refuses to know what a request is.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from msgspec import Struct

from ...base.units import DAY, HOUR
from ...engine.commands import Command, Ended, Launch, Reply, ResumeRanks
from ...engine.events import DeployService, PlanReady, ReplicaReady, ScaleService
from ...engine.services.records import ServiceRecord
from ...model.job import State
from ...model.node import NodeSpec
from ...plan.plan import Planner
from ..costs import cost_us
from ..metrics import UNFINISHED
from ..run import Options, Simulation
from ..trace import Trace
from ..world import Truth
from .service import ReplicaRecord, SimulatedService, StepLine

_ENDLESS_US = 36_500 * DAY
"""Work of a replica: more than any run lasts."""


class WorkDone(Struct, frozen=True, kw_only=True):
    """Training at one instant, since the beginning: device-hours of work done and kept, and done but lost again; jobs
    completed."""

    kept: float
    lost: float
    completed: int
    waiting: int
    """Jobs without devices: where none wait, more devices would do no more work."""


class SharedPool(Simulation):
    """A trace, and one service if there is one. ``ready`` and ``held``: its replicas that answer, and that have devices."""

    def __init__(
        self,
        trace: Trace,
        nodes: Sequence[NodeSpec],
        planner: Planner,
        options: Options,
        service: SimulatedService | None = None,
    ) -> None:
        super().__init__(trace, nodes, planner, options)
        self.service = service
        self.replicas: dict[int, ReplicaRecord] = {}
        """Those made so far, by job."""
        self.wanted, self.ready, self.held = StepLine(), StepLine(), StepLine()
        self._made = 0
        """Replicas seen so far."""
        self._epochs: dict[int, int] = {}
        """Of the replicas that answer: when a replica's epoch changes it answers no more."""
        self._loading: list[tuple[int, int, int]] = []
        """(when it answers, job, epoch)."""
        if service is not None:
            self.agenda.put(0, DeployService(service.spec))

    def run_until(self, end_us: int) -> WorkDone:
        """Simulate to this instant, whatever comes after it, and count the training done by then."""
        self.advance_to(end_us)
        return self._work_done(end_us)

    def advance_to(self, end_us: int) -> None:
        """Simulate to this instant."""
        while (now := self.next_instant()) is not None and now <= end_us:
            self.turn(now)
        self.arrivals.advance(end_us)

    def next_instant(self) -> int | None:
        """When something happens next, a look at the demand included."""
        times = [super().next_instant(), self._loading[0][0] if self._loading else None]
        times.append(self.service.demand.next_us if self.service is not None else None)
        return min((at for at in times if at is not None), default=None)

    def turn(self, now: int) -> None:
        """Everything that happens at one instant."""
        if self.service is not None:
            self._load(now, self.service.spec.name)
            self._look(now, self.service)
        super().turn(now)
        if self.service is not None:
            self._note_replicas(now)

    def _record(self) -> ServiceRecord | None:
        return self.engine.book.services.records.get(self.service.spec.name) if self.service is not None else None

    def _look(self, now: int, service: SimulatedService) -> None:
        record = self._record()
        if record is None or now < service.demand.next_us:
            return
        spec = service.spec
        wanted = service.demand.wanted(now, self.ready.value, record.wanted)
        wanted = min(max(wanted, spec.min_replicas), spec.max_replicas)
        if wanted != record.wanted:
            self.agenda.put(now, ScaleService(spec.name, wanted))

    def _load(self, now: int, name: str) -> None:
        """Replicas that have loaded by now answer, unless they were stopped or lost meanwhile."""
        while self._loading and self._loading[0][0] <= now:
            _, job, epoch = heappop(self._loading)
            truth = self.world.jobs.get(job)
            if truth is None or truth.epoch != epoch:
                continue
            self._epochs[job] = epoch
            record = self.replicas[job]
            record.ready_us = now if record.ready_us < 0 else record.ready_us
            self.ready.change(now, len(self._epochs))
            self.agenda.put(now, ReplicaReady(name, job, truth.attempt))

    def _note_replicas(self, now: int) -> None:
        record = self._record()
        if record is None:
            return
        self.wanted.change(now, record.wanted)
        if record.made > self._made:
            self._made = record.made
            for job in record.replicas:
                self.replicas.setdefault(job, ReplicaRecord(now))
        if self.world.faults.active:
            for job, epoch in list(self._epochs.items()):
                if self.world.jobs[job].epoch != epoch:
                    self._silence(now, job)

    def _silence(self, now: int, job: int) -> None:
        if self._epochs.pop(job, None) is not None:
            self.ready.change(now, len(self._epochs))

    def _carry_out(self, now: int, command: Command) -> PlanReady | None:
        job = getattr(command, "job", 0)
        spec = self.engine.book.specs.get(job) if self.service is not None and isinstance(command, Launch) else None
        if spec is not None and spec.service and job not in self.world.jobs:
            self.world.admit(job, -job, _ENDLESS_US, spec)
            self.replicas.setdefault(job, ReplicaRecord(now)).launched_us = now
            self.held.change(now, self.held.value + 1)
        plan = super()._carry_out(now, command)
        if job in self.replicas and job in self.world.jobs:
            self._follow(now, command, self.world.jobs[job])
        return plan

    def _follow(self, now: int, command: Command, truth: Truth) -> None:
        """A replica was launched, resumed, stopped or suspended."""
        assert self.service is not None
        job = -truth.row
        if self._epochs.get(job, truth.epoch) != truth.epoch:
            self._silence(now, job)
        if isinstance(command, Launch | ResumeRanks) and truth.rate:
            load_us = 0 if isinstance(command, ResumeRanks) else cost_us(
                self.service.load_us, truth.spec.devices, 0, self.world.seed, "load", job, truth.epoch
            )  # fmt: skip
            heappush(self._loading, (truth.since + load_us, job, truth.epoch))

    def _ended(self, ended: Ended) -> None:
        record = self.replicas.get(ended.job)
        if record is None:
            super()._ended(ended)
            return
        record.ended_us = ended.end
        if ended.job in self.world.jobs:
            self.world.forget(ended.job)
            self.held.change(ended.end, self.held.value - 1)
            self._silence(ended.end, ended.job)

    def _answered(self, reply: Reply) -> None:
        if reply.op_id:  # what the service's own calls are answered, the book says
            super()._answered(reply)

    def _work_done(self, now: int) -> WorkDone:
        outcomes, trace = self.outcomes, self.trace
        completed = (outcomes.state == int(State.COMPLETED)).nonzero()[0].tolist()
        devices, duration = trace.devices.tolist(), trace.duration.tolist()
        kept = sum(duration[row] * devices[row] for row in completed)
        lost = sum(us * devices[row] for row, us in enumerate(outcomes.lost.tolist()))
        waiting = 0
        for truth in self.world.jobs.values():
            if truth.row >= 0 and outcomes.state[truth.row] == UNFINISHED:
                self.world.count_progress(truth, now)
                kept += truth.done * devices[truth.row]
                lost += truth.lost * devices[truth.row]
                waiting += not truth.allocation
        return WorkDone(kept=kept / HOUR, lost=lost / HOUR, completed=len(completed), waiting=waiting)
