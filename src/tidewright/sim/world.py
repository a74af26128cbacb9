"""The world of a simulation: it obeys commands after a delay, and knows how much work each job truly has left.

It refuses to know why a command was given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, TypeAlias

from ..engine.commands import CheckpointRanks, Command, DropImages, Launch, ResumeRanks, StopRanks, SuspendRanks
from ..engine.events import (
    Checkpointed,
    CheckpointFailed,
    Event,
    Exited,
    NodeDown,
    NodeHealth,
    NodeUp,
    Resumed,
    ResumeFailed,
    Started,
    StartFailed,
    Suspended,
    SuspendFailed,
)
from ..estimate.pace import done_after, finish_us
from ..estimate.rates import Rates, rate_on
from ..model.board import Layout
from ..model.job import JobSpec, Level
from ..model.node import Allocation, DeviceFault, NodeSpec, milli_devices
from ..model.rate import lasts_us, progress_us, rated, workload_at
from .agenda import Agenda, Entry
from .costs import Cost, Costs, RecordedCost, cost_us
from .faults import NEVER, Faults
from .meter import PoolMeter

REQUEUE_CODE = 75
"""EX_TEMPFAIL of sysexits.h: the exit code of a cooperative job that wants to be run again."""
_RUNS_ON = (Started, Resumed, SuspendFailed, Checkpointed, CheckpointFailed)
"""Reports after which the job has its devices."""
SIGTERM_CODE = 143
SIGKILL_CODE = 137


_Answer: TypeAlias = Started | Resumed | Checkpointed


class Truth:
    """One live job as it really is. ``done`` counts full-speed microseconds; ``durable`` is what the program itself has saved,
    ``images`` what is in each full image. ``cap``: no more than that is done before its round is over.

    ``epoch`` changes whenever what was foreseen for the job no longer holds; events of an older one are dropped.
    """

    __slots__ = (
        "allocation",
        "attempt",
        "cap",
        "done",
        "durable",
        "duration",
        "epoch",
        "image_bytes",
        "images",
        "lost",
        "operations",
        "rate",
        "reference",
        "row",
        "since",
        "spec",
    )

    def __init__(self, row: int, duration: int, spec: JobSpec, reference: str, image_bytes: int = 0) -> None:
        self.row = row
        self.image_bytes = image_bytes
        self.attempt = 0
        self.cap = duration
        self.duration = duration
        self.spec = spec
        self.reference = reference
        self.done = 0
        self.durable = 0
        self.lost = 0
        self.epoch = 0
        self.rate = 0
        self.since = 0
        self.allocation: Allocation = ()
        self.images: dict[int, int] = {}
        self.operations: dict[str, int] = {}
        """How many there were of those that were recorded of this very job."""


class SimulatedWorld:
    """Answers commands by writing events into the agenda."""

    def __init__(
        self, nodes: Sequence[NodeSpec], agenda: Agenda, meter: PoolMeter, costs: Costs, faults: Faults,
        rates: Rates, seed: int = 1, whole_steps: bool = False,
    ) -> None:  # fmt: skip
        self.nodes = nodes
        self.agenda = agenda
        self.meter = meter
        self.costs = costs
        self.faults = faults
        self.rates = rates
        """How fast jobs truly run; planners may be led to believe otherwise."""
        self.layout = Layout.of(tuple(nodes))
        self.seed = seed
        """Of the streams that recorded costs are drawn from."""
        self.whole_steps = whole_steps
        """Whether jobs run by rounds of whole steps, so that their ends are known round by round only (``sim.rounds``)."""
        self.checkpoints = 0
        """Images taken of running jobs so far."""
        self.jobs: dict[int, Truth] = {}
        self.incarnations = [0] * len(nodes)
        self.broken: dict[str, int] = {}
        """Node to the mask of its devices on which nothing can go on."""

    def boot(self) -> None:
        """Every node comes up at time zero."""
        for index in range(len(self.nodes)):
            self._bring_up(index, 0)
            self._next_device_fault(index, 0)

    def admit(self, job: int, row: int, duration: int, spec: JobSpec, image_bytes: int = 0) -> None:
        """A job was accepted: its true run time is ``duration`` on its full allotment of the kind on which it is fastest."""
        self.jobs[job] = Truth(row, duration, spec, self.rates.reference(spec, self.layout.kinds), image_bytes)
        self.meter.queued += 1

    def forget(self, job: int) -> Truth:
        """A job has ended, wherever it was."""
        truth = self.jobs.pop(job)
        self._release(truth)
        self.meter.queued -= 1
        return truth

    # -- events come true ---------------------------------------------------------------------------------------------

    def deliver(self, now: int, due: Iterable[Entry]) -> list[Event]:
        """The events among ``due`` that still hold; their effects on the world happen here."""
        events: list[Event] = []
        jobs = self.jobs
        for _, _, job, epoch, event in due:
            if job >= 0:
                truth = jobs.get(job)
                if truth is None or truth.epoch != epoch:
                    continue
                if not isinstance(event, _RUNS_ON):
                    self._settle(truth, now, event)
            elif isinstance(event, NodeDown):
                self._crash(event, now)
            elif isinstance(event, NodeHealth):
                self._device_news(event, now)
            events.append(event)
        return events

    def _settle(self, truth: Truth, now: int, event: Event) -> None:
        """The job has released its devices; if it died by itself, what was not durable will have to be done again."""
        if isinstance(event, Exited):
            self._progress(truth, now)
        truth.epoch += 1
        self._release(truth)

    def _release(self, truth: Truth) -> None:
        if not truth.allocation:
            return
        self.meter.held_milli -= milli_devices(truth.allocation)
        self.meter.queued += 1
        truth.allocation = ()
        truth.rate = 0

    def _crash(self, event: NodeDown, now: int) -> None:
        index = next(at for at, node in enumerate(self.nodes) if node.name == event.name)
        for truth in self.jobs.values():
            if any(part.node == index for part in truth.allocation):
                self._progress(truth, now)
                truth.epoch += 1
                self._release(truth)
        self._bring_up(index, now + self.faults.node_downtime(index))

    def _next_device_fault(self, index: int, now: int) -> None:
        """Foresee the next fault of a device, and its repair. One device of a node is broken at a time."""
        name = self.nodes[index].name
        uptime, device, repair = self.faults.device_fault(index, self.nodes[index].devices)
        if uptime < NEVER:
            fault = DeviceFault(device, "XID 79 (simulated)", broken=True)
            self.agenda.put(now + uptime, NodeHealth(name, (fault,)))
            self.agenda.put(now + uptime + repair, NodeHealth(name))

    def _device_news(self, event: NodeHealth, now: int) -> None:
        self.broken[event.name] = sum(1 << fault.device for fault in event.faults)
        if not event.faults:
            index = next(at for at, node in enumerate(self.nodes) if node.name == event.name)
            self._next_device_fault(index, now)

    def _on_broken(self, truth: Truth) -> bool:
        return any(part.mask & self.broken.get(self.nodes[part.node].name, 0) for part in truth.allocation)

    def _bring_up(self, index: int, at: int) -> None:
        node = self.nodes[index]
        self.incarnations[index] += 1
        self.agenda.put(at, NodeUp(node, f"{node.name}/{self.incarnations[index]}"))
        uptime = self.faults.node_uptime(index)
        if uptime < NEVER:
            self.agenda.put(at + uptime, NodeDown(node.name, "crashed"))

    # -- commands are obeyed ------------------------------------------------------------------------------------------

    def obey(self, now: int, command: Command) -> None:
        """Note what a command leads to. Commands that are not for the world are none of its business."""
        if isinstance(command, Launch):
            self._launch(now, command)
        elif isinstance(command, SuspendRanks):
            self._suspend(now, command)
        elif isinstance(command, ResumeRanks):
            self._resume(now, command)
        elif isinstance(command, CheckpointRanks):
            self._checkpoint(now, command)
        elif isinstance(command, DropImages):
            self._drop(command)
        elif isinstance(command, StopRanks):
            self._stop(now, command.job, command.attempt, self._stop_us(command.job), SIGTERM_CODE)

    def _takes(self, cost: Cost, truth: Truth, operation: str) -> int:
        """Microseconds of an operation of a job; its epoch tells one from the next."""
        if isinstance(cost, int):
            return cost
        if isinstance(cost, RecordedCost) and truth.row in cost.of_row:
            recorded, nth = cost.of_row[truth.row], truth.operations.get(operation, 0)
            truth.operations[operation] = nth + 1
            if nth < len(recorded):
                return recorded[nth]
        return cost_us(cost, truth.spec.devices, truth.image_bytes, self.seed, operation, truth.row, truth.epoch)

    def takes_us(self, truth: Truth, operation: Literal["save", "restore", "checkpoint"]) -> int:
        """Microseconds of an operation of a job that has its devices, or gets them back."""
        costs = self.costs
        saves = costs.save_us if costs.checkpoint_us is None or operation == "save" else costs.checkpoint_us
        return self._takes(costs.restore_us if operation == "restore" else saves, truth, operation)

    def _stop_us(self, job: int) -> int:
        return self._takes(self.costs.stop_us, self.jobs[job], "stop")

    def launch_us(self, truth: Truth, attempt: int) -> int:
        """Microseconds of a launch."""
        again = attempt > 1 and self.costs.restart_us is not None
        cost = self.costs.restart_us if again else self.costs.launch_us
        return self._takes(cost or 0, truth, "restart" if again else "launch")

    def _launch(self, now: int, command: Launch) -> None:
        job, attempt = command.job, command.attempt
        truth = self._occupy(job, command.allocation)
        start = truth.images[command.image] if command.image else truth.durable
        truth.lost += max(0, truth.done - start)
        truth.done = start
        takes = self.launch_us(truth, attempt)
        if self.faults.active and self.faults.fails("launch", truth.row, truth.epoch):
            node = self.nodes[command.allocation[0].node].name
            failed = StartFailed(job, attempt, "the launch failed (simulated)", node=node)
            self.agenda.put(now + takes, failed, job, truth.epoch)
            return
        self._run_from(now, truth, takes, Started(job, attempt), job, attempt)

    def _resume(self, now: int, command: ResumeRanks) -> None:
        job, attempt = command.job, command.attempt
        truth = self._occupy(job, command.allocation)
        takes = self.takes_us(truth, "restore")
        if self.faults.active and self.faults.fails("resume", truth.row, truth.epoch):
            failed = ResumeFailed(job, attempt, "the restore failed (simulated)")
            self.agenda.put(now + takes, failed, job, truth.epoch)
            return
        self._run_from(now, truth, takes, Resumed(job, attempt, takes), job, attempt)

    def _occupy(self, job: int, allocation: Allocation) -> Truth:
        truth = self.jobs[job]
        truth.epoch += 1
        truth.allocation = allocation
        self.meter.held_milli += milli_devices(allocation)
        self.meter.queued -= 1
        return truth

    def _run_from(self, now: int, truth: Truth, delay: int, answer: Started | Resumed, job: int, attempt: int) -> None:
        """Foresee the answer after ``delay``, sometimes much longer, and what follows."""
        if self.faults.active:
            delay = self.faults.stretched(delay, truth.row, truth.epoch)
        self.run_on(now + delay, truth, answer, job, attempt)

    def run_on(self, since: int, truth: Truth, answer: _Answer | None, job: int, attempt: int) -> None:
        """Foresee the answer at ``since`` (None: it runs already), and then the end of the run: its work done, or a rank's
        failure."""
        truth.since, truth.attempt, truth.cap = self.agenda.ticked(since), attempt, truth.duration
        truth.rate = self._rate(truth, workload_at(truth.spec, truth.done))
        if answer is not None:
            self.agenda.put(truth.since, answer, job, truth.epoch)
        runs = self._finish_us(truth)
        lasts = self.faults.rank_lasts(truth.row, truth.epoch) if self.faults.active else NEVER
        if lasts < (NEVER if self.whole_steps else runs):
            self.agenda.put(
                truth.since + lasts, Exited(job, attempt, SIGKILL_CODE, why="a rank died (simulated)"), job, truth.epoch
            )
        elif not self.whole_steps:
            self.agenda.put(truth.since + runs, Exited(job, attempt, 0), job, truth.epoch)

    def foresee_end(self, job: int, truth: Truth, at: int) -> None:
        """The job will have done its work at ``at``, unless something happens to it before."""
        self.agenda.put(at, Exited(job, truth.attempt, 0), job, truth.epoch)

    def _rate(self, truth: Truth, workload: str) -> int:
        """Millionths of full speed on the devices it has."""
        return rate_on(self.rates, rated(truth.spec, truth.reference, workload), self.layout, truth.allocation)

    def _finish_us(self, truth: Truth) -> int:
        """Microseconds until all its work is done."""
        if not truth.spec.phases:
            return lasts_us(truth.duration - truth.done, truth.rate)
        return finish_us(truth.spec, truth.done, truth.duration, lambda workload: self._rate(truth, workload))

    def _done_by(self, truth: Truth, now: int) -> int:
        """Work done by ``now``, full-speed microseconds."""
        if not truth.spec.phases:
            return truth.done + progress_us(now - truth.since, truth.rate)
        return done_after(truth.spec, truth.done, now - truth.since, lambda workload: self._rate(truth, workload))

    def _suspend(self, now: int, command: SuspendRanks) -> None:
        job, attempt = command.job, command.attempt
        truth = self.jobs[job]
        if not truth.allocation:
            return
        delay = self.takes_us(truth, "save")
        if self.faults.active:
            delay = self.faults.stretched(delay, truth.row, truth.epoch)
            if self._on_broken(truth) or self.faults.fails("suspend", truth.row, truth.epoch):
                # The epoch stays: the job runs on, and what was foreseen for it still holds.
                self.agenda.put(
                    now + delay, SuspendFailed(job, attempt, "the save failed (simulated)"), job, truth.epoch
                )
                return
        if command.level == Level.REQUEUE:
            self._stop(now, job, attempt, self._stop_us(job), SIGTERM_CODE)
            return
        self._progress(truth, now)
        truth.epoch += 1
        truth.rate = 0
        if command.level == Level.COOPERATIVE:
            truth.durable = truth.done
            self.agenda.put(now + delay, Exited(job, attempt, REQUEUE_CODE), job, truth.epoch)
            return
        if command.serial:
            truth.images[command.serial] = truth.done
        self.agenda.put(now + delay, Suspended(job, attempt, delay, command.serial), job, truth.epoch)

    def _checkpoint(self, now: int, command: CheckpointRanks) -> None:
        """The job stands still for the image and runs on; what was foreseen for it is put off."""
        job, attempt, serial = command.job, command.attempt, command.serial
        truth = self.jobs[job]
        if not truth.allocation:
            return
        took = self.takes_us(truth, "checkpoint")
        if self.faults.active:
            took = self.faults.stretched(took, truth.row, truth.epoch)
            if self.faults.fails("checkpoint", truth.row, truth.epoch + serial):
                # The epoch stays: the job runs on, and what was foreseen for it still holds.
                failed = CheckpointFailed(job, attempt, serial, "the image failed (simulated)")
                self.agenda.put(now + took, failed, job, truth.epoch)
                return
        self._progress(truth, now)
        truth.epoch += 1
        truth.images[serial] = truth.done
        self.checkpoints += 1
        self.run_on(now + took, truth, Checkpointed(job, attempt, serial, took), job, attempt)

    def _drop(self, command: DropImages) -> None:
        truth = self.jobs.get(command.job)
        for serial in [serial for serial in truth.images if serial not in command.keep] if truth else ():
            del self.jobs[command.job].images[serial]

    def _stop(self, now: int, job: int, attempt: int, delay: int, code: int) -> None:
        """Answered also when nothing of the job is left, so that the engine never waits for the dead."""
        truth = self.jobs[job]
        self._progress(truth, now)
        truth.epoch += 1
        truth.rate = 0
        self.agenda.put(now + delay, Exited(job, attempt, code), job, truth.epoch)

    def count_progress(self, truth: Truth, now: int) -> None:
        """A round is over: count what the job did in it."""
        self._progress(truth, now)

    def _progress(self, truth: Truth, now: int) -> None:
        """Count the work done until ``now``. Floor division never counts a job as finished before its end."""
        if truth.rate and now > truth.since:
            truth.done = min(truth.cap, self._done_by(truth, now))
            truth.since = now
            every = self.costs.checkpoint_every_us
            if every:
                truth.durable = max(truth.durable, truth.done // every * every)
