"""DISB on the device model: standalone latencies, the slow-down table of the model, one row, the whole matrix.

What comes out is a model's and is labelled so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ..device_model.costs import ModelCosts
from ..device_model.gpu import GpuModel
from ..device_model.kernels import KernelChain
from ..device_model.published_rows import ROWS
from ..device_model.rows import ModelClient, SharingRow
from ..padding.slowdown import DeviceFingerprint, PairSlowdown, SlowdownTable
from .arrivals import SECOND_NS, DisbLoads, IntendedLaunch, stagger
from .meter import DisbMeter, preemption_figures
from .result import DisbResult
from .workload import DisbTask, DisbWorkload

Loop = Literal["closed", "open"]


@dataclass(slots=True)
class ModelledDevice:
    """A device of ``sms`` SMs and the chain of each DISB model on it."""

    name: str
    sms: int
    chains: Mapping[str, KernelChain]
    costs: ModelCosts = field(default_factory=ModelCosts)
    segment_kernels: int = 64
    table: SlowdownTable | None = None
    _alone: dict[str, int] = field(default_factory=dict)

    def gpu(self) -> GpuModel:
        return GpuModel(self.sms, self.costs, segment_kernels=self.segment_kernels)

    def standalone_ns(self, model: str) -> int:
        """Nanoseconds of one inference on the idle device."""
        if model not in self._alone:
            self._alone[model] = _latency(self.gpu(), self.chains[model], 1)
        return self._alone[model]


def _latency(gpu: GpuModel, chain: KernelChain, times: int) -> int:
    """Mean nanoseconds of ``times`` inferences one after the other."""
    stream = gpu.stream("rt", priority=1)
    ends: list[int] = []

    def again(now: int) -> None:
        ends.append(now)
        if len(ends) < times:
            gpu.submit(stream, chain, again)

    begin = gpu.now
    gpu.submit(stream, chain, again)
    while len(ends) < times:
        gpu.run_until(gpu.now + SECOND_NS // 100)
    return (ends[-1] - begin) // times


def model_table(device: ModelledDevice, models: Iterable[str], shares: Sequence[int], times: int = 3) -> SlowdownTable:
    """What each model on each share of SMs adds to the latency of each other, on the model of the device.

    The rows are named by chain. ``measured`` is False: on a device the table has to be measured.
    """
    chains = [device.chains[name] for name in models]
    pairs = tuple(
        PairSlowdown(rt.name, be.name, share, _pair(device, rt, be, share, times), times)
        for rt in chains
        for be in chains
        for share in shares
    )
    fingerprint = DeviceFingerprint(f"model of {device.name}", device.sms, "none")
    return SlowdownTable(fingerprint, pairs, measured=False)


def _pair(device: ModelledDevice, rt: KernelChain, be: KernelChain, share: int, times: int) -> float:
    gpu = device.gpu()
    beside = gpu.stream("be", partition=gpu.partition(share))

    def again(_: int) -> None:
        gpu.submit(beside, be, again)

    gpu.submit(beside, be, again)
    gpu.run_until(device.costs.graph_launch_ns * 4)
    return _latency(gpu, rt, times) / _latency(device.gpu(), rt, times) - 1


class _ModelRun:
    """The clients of one workload on one row."""

    def __init__(self, device: ModelledDevice, workload: DisbWorkload, row: type[SharingRow], end: int) -> None:
        self.device, self.workload, self.end = device, workload, end
        self.gpu = device.gpu()
        clients = [ModelClient(t.id, device.chains[t.client.model_name], t.realtime) for t in workload.tasks]
        self.row = row(self.gpu, clients, device.table)
        alone = {task.id: device.standalone_ns(task.client.model_name) for task in workload.tasks}
        self.meter = DisbMeter(workload, alone, end)
        self.delays = stagger(workload.tasks, alone)
        self.tasks = {task.id: task for task in workload.tasks}

    def begin(self, loop: Loop, seed: int) -> None:
        self.loads = DisbLoads(self.workload.tasks, loop, self.end, seed, self.delays)
        for task in self.workload.tasks:
            self._next(task, 0)

    def _next(self, task: DisbTask, now: int) -> None:
        if launch := self.loads.next_launch(task.id, now):
            self.gpu.at(launch.at, self._launch, task, launch)

    def _launch(self, task: DisbTask, launch: IntendedLaunch) -> None:
        waits = self.loads.by_client[task.id].waits

        def done(now: int) -> None:
            self.meter.completed(task.id, launch, now)
            for follower in self.loads.completed(task.id, now):
                self._next(self.tasks[follower], now)
            if waits:
                self._next(task, now)

        self.meter.launched(task.id)
        self.row.request(task.id, done)
        if not waits:
            self._next(task, launch.at)

    def result(self, loop: Loop, seed: int) -> DisbResult:
        streams = [stream for stream in self.gpu.streams if stream.name.endswith("_be")]
        executed, wasted = sum(s.executed for s in streams), sum(s.wasted for s in streams)
        figures = preemption_figures(
            self.gpu.preemption_ns, self.gpu.restore_ns, wasted / executed if executed else 0.0
        )
        dropped = {name: load.dropped for name, load in self.loads.by_client.items()}
        busy = self.gpu.busy / (self.gpu.capacity * self.end)
        return self.meter.result(self.row.label, "model", loop, seed, dropped, busy, figures)


def run_row(
    device: ModelledDevice,
    workload: DisbWorkload,
    row: type[SharingRow],
    *,
    seconds: float,
    seed: int = 0,
    loop: Loop = "closed",
) -> DisbResult:
    """One workload under one row for ``seconds`` of virtual time."""
    end = round(seconds * SECOND_NS)
    run = _ModelRun(device, workload, row, end)
    run.begin(loop, seed)
    run.gpu.run_until(end)
    return run.result(loop, seed)


def run_matrix(
    device: ModelledDevice,
    workloads: Iterable[DisbWorkload],
    rows: Sequence[type[SharingRow]] = ROWS,
    *,
    seconds: float,
    seed: int = 0,
    loop: Loop = "closed",
) -> tuple[DisbResult, ...]:
    """Every row on every workload; equal arguments give equal results."""
    return tuple(
        run_row(device, workload, row, seconds=seconds, seed=seed, loop=loop) for workload in workloads for row in rows
    )
