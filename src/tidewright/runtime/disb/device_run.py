"""DISB on a device: real clients of a real runtime, one thread for all of them, so that they do not disturb each other.

A row is a way to share the device: options of the runtime, and the class in which clients connect.
"""

from __future__ import annotations

import heapq
import select
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ..client import PendingTask, RemoteModel, RuntimeClient
from ..embedded import Runtime
from ..padding.calibration import zeros
from ..scheduler.tasks import TaskState
from .arrivals import SECOND_NS, DisbLoads, IntendedLaunch, stagger
from .meter import DisbMeter, preemption_figures
from .networks import source
from .result import DisbResult, LatencySummary, PreemptionFigures
from .workload import DisbTask, DisbWorkload

Loop = Literal["closed", "open"]
WARM_UP = 20
STANDALONE = 100
_SLOTS = 64


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """``options`` of the runtime. ``classes`` False: all clients are best-effort. ``best_effort`` False: only real-time ones."""

    label: str
    options: Mapping[str, Any] = field(default_factory=dict)
    classes: bool = True
    best_effort: bool = True


CPU_ROWS = (
    DeviceRow("RT-only", best_effort=False),
    DeviceRow("SEQ", {"sequential": True}),
    DeviceRow("STREAM", {"stop": "none", "no_fifo": True}, classes=False),
    DeviceRow("PRIO", {"stop": "none"}),
    DeviceRow("gate", {"stop": "gate"}),
    DeviceRow("ours", {"stop": "signal"}),
    DeviceRow("ours+padding", {"stop": "signal", "padding": "TABLE"}),
)
"""``gate`` stops between operators, as REEF-N does between kernels. ``TABLE`` is replaced by the file of a slow-down table."""
CUDA_ROWS = (
    DeviceRow("RT-only", {"stop": "none"}, best_effort=False),
    DeviceRow("SEQ", {"stop": "none", "sequential": True}),
    DeviceRow("STREAM", {"stop": "none"}, classes=False),
    DeviceRow("PRIO", {"stop": "none"}),
    DeviceRow("REEF-N", {"stop": "kernel"}),
    DeviceRow("Orion", {"stop": "kernel", "padding": "profile"}),
    DeviceRow("ours", {"stop": "cta"}),
    DeviceRow("ours+padding", {"stop": "cta", "padding": "TABLE"}),
)
"""All with the same kernels: Inductor's, gated for best-effort work where gates are closed. REEF-N and Orion are those policies
written again, not those systems."""


class _Client:
    """One client of the workload, its model, and the launches that wait for a slot."""

    def __init__(self, task: DisbTask, client: RuntimeClient, model: RemoteModel) -> None:
        self.task, self.client, self.model = task, client, model
        self.given = zeros(model.signature.inputs)
        self.waiting: deque[IntendedLaunch] = deque()
        self.running: deque[tuple[IntendedLaunch, PendingTask]] = deque()

    def launch(self) -> None:
        """Submit what waits, as far as there are slots."""
        while self.waiting and self.model.free_slots:
            launch = self.waiting.popleft()
            self.running.append((launch, self.model.submit(*self.given)))

    def ended(self) -> Iterable[tuple[IntendedLaunch, PendingTask]]:
        """Launches whose task has ended since the last call."""
        self.client.collect(0)
        while self.running and self.running[0][1].completion is not None:
            yield self.running.popleft()


def standalone_ns(workloads: Iterable[DisbWorkload], small: bool, **options: Any) -> dict[str, int]:
    """DISB model to the mean latency of ``STANDALONE`` requests on the idle device, ns."""
    names = sorted({task.client.model_name for workload in workloads for task in workload.tasks})
    found = {}
    with Runtime(**options) as runtime:
        for name in names:
            with runtime.client("rt") as client:
                model = load(client, name, small)
                given = zeros(model.signature.inputs)
                for _ in range(WARM_UP):
                    model.infer(*given)
                began = time.monotonic_ns()
                for _ in range(STANDALONE):
                    model.infer(*given)
                found[name] = (time.monotonic_ns() - began) // STANDALONE
    return found


def load(client: RuntimeClient, name: str, small: bool) -> RemoteModel:
    """A DISB model on a device."""
    made, inputs = source(name, small)
    return client.load(made.factory, inputs, arguments=made.arguments, name=name, slots=_SLOTS)


def run_row(
    workload: DisbWorkload,
    row: DeviceRow,
    alone: Mapping[str, int],
    *,
    seconds: float,
    small: bool,
    seed: int = 0,
    loop: Loop = "closed",
    table: str = "",
    options: Mapping[str, Any] | None = None,
) -> DisbResult:
    """One workload in one row for ``seconds``. ``alone``: the latency of each model alone, ns. ``table``: for rows that pad."""
    given = {**(options or {}), **row.options}
    if given.get("padding") == "TABLE":
        given["padding"] = table
    tasks = [task for task in workload.tasks if row.best_effort or task.realtime]
    with Runtime(**given) as runtime:
        clients: list[_Client] = []
        try:
            for task in tasks:
                kind: Literal["rt", "be"] = "rt" if task.realtime and row.classes else "be"
                connection = runtime.client(kind, name=task.id)
                clients.append(_Client(task, connection, load(connection, task.client.model_name, small)))
            for client in clients:
                for _ in range(WARM_UP):
                    client.model.infer(*client.given)
            return _run(workload, row, clients, alone, seconds, seed, loop)
        finally:
            for client in clients:
                client.client.close()


def _run(
    workload: DisbWorkload,
    row: DeviceRow,
    clients: list[_Client],
    alone: Mapping[str, int],
    seconds: float,
    seed: int,
    loop: Loop,
) -> DisbResult:
    end = round(seconds * SECOND_NS)
    by_client = {task.id: alone[task.client.model_name] for task in workload.tasks}
    meter = DisbMeter(workload, by_client, end)
    delays = stagger(workload.tasks, by_client)
    before = clients[0].client.stats()
    loads = DisbLoads((client.task for client in clients), loop, end, seed, delays)
    driver = _Driver(clients, loads, meter, end)
    driver.run()
    after = clients[0].client.stats()
    dropped = {name: load.dropped for name, load in loads.by_client.items()}
    return meter.result(
        row.label, "measurement", loop, seed, dropped, _busy(before, after, seconds), _preemption(after)
    )


def _busy(before: Mapping[str, Any], after: Mapping[str, Any], seconds: float) -> float:
    """Processor time of the workers over that of the device's cores."""
    used: float = after["worker_cpu_s"] - before["worker_cpu_s"]
    return min(1.0, used / (seconds * len(after["cores"])))


def _preemption(stats: Mapping[str, Any]) -> PreemptionFigures:
    """Stops of the run. Nothing is restored and nothing is done twice: a stopped process keeps where it is."""
    quantiles = stats["stop_acknowledged_us"].get("quantiles", [])
    if not quantiles:
        return preemption_figures([], [], 0.0)
    found = stats["stop_acknowledged_us"]
    summary = LatencySummary(found["n"], found["mean"], found["p50"], found["p99"], found["p999"], found["max"])
    return PreemptionFigures(summary, tuple(quantiles))


class _Driver:
    """Launches when they are due, results when they come. Times are ns since its beginning."""

    def __init__(self, clients: Sequence[_Client], loads: DisbLoads, meter: DisbMeter, end: int) -> None:
        self.clients, self.meter, self.end = clients, meter, end
        self.loads = loads
        self._numbers = {client.task.id: number for number, client in enumerate(clients)}
        self._agenda: list[tuple[int, int, IntendedLaunch]] = []
        self._poll = select.epoll()
        for client in clients:
            self._poll.register(client.client.doorbell, select.EPOLLIN)

    def run(self) -> None:
        """Until the end of the run; what is outstanding then is waited for, and not counted."""
        self._began = time.monotonic_ns()
        for number in range(len(self.clients)):
            self._next(number, 0)
        while (now := self._now()) < self.end or any(client.running for client in self.clients):
            while self._agenda and self._agenda[0][0] <= now:
                _, number, launch = heapq.heappop(self._agenda)
                self._launch(number, launch, now)
            due = self._agenda[0][0] if self._agenda else self.end
            self._poll.poll(max(0.0, (min(due, now + SECOND_NS // 10) - now) / SECOND_NS))
            for number in range(len(self.clients)):
                self._collect(number)
        self._poll.close()

    def _now(self) -> int:
        return time.monotonic_ns() - self._began

    def _waits(self, number: int) -> bool:
        return self.loads.by_client[self.clients[number].task.id].waits

    def _next(self, number: int, now: int) -> None:
        launch = self.loads.next_launch(self.clients[number].task.id, now)
        if launch is not None and launch.at < self.end:
            heapq.heappush(self._agenda, (launch.at, number, launch))

    def _launch(self, number: int, launch: IntendedLaunch, now: int) -> None:
        client = self.clients[number]
        self.meter.launched(client.task.id)
        client.waiting.append(IntendedLaunch(launch.intended, now) if self._waits(number) else launch)
        client.launch()
        if not self._waits(number):
            self._next(number, launch.at)

    def _collect(self, number: int) -> None:
        client = self.clients[number]
        for launch, task in client.ended():
            now = self._now()
            if task.completion is not None and task.completion.state == TaskState.DONE:
                self.meter.completed(client.task.id, launch, now)
                for follower in self.loads.completed(client.task.id, now):
                    self._next(self._numbers[follower], now)
            if self._waits(number):
                self._next(number, now)
        client.launch()
