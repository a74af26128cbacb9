"""A pool in virtual time: the very policies that serve, against replicas that take as long as a profile says.

Refuses to know how policies decide. What it leaves out: networks, parsing, and the time that deciding takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy
from numpy.typing import NDArray

from ..base.errors import UsageError
from ..base.rng import stream_seed
from ..base.units import SECOND
from .autoscale import Autoscaler
from .lane import ServedModel
from .request import NO_DEADLINE, BatchDispatch, InferenceRequest
from .routing import PoolSettings, Router


@dataclass(frozen=True)
class OfferedLoad:
    """Requests for one model: rising arrival times in microseconds. ``best_effort``: without a deadline."""

    model: str
    times_us: NDArray[numpy.int64]
    best_effort: bool = False


@dataclass(frozen=True)
class ServingFigures:
    """What became of the real-time requests of a run. Latencies are of answered requests, microseconds.

    ``within``: answered within the objective. ``attainment``: of all offered, refused ones included. ``goodput``: within the
    objective, per second of the arrivals' span. ``replica_s``: replicas that were up or starting, times seconds.
    """

    offered: int
    answered: int
    within: int
    refused: int
    span_s: float
    p50_us: int
    p99_us: int
    mean_batch: float
    replica_s: float
    busy_s: float
    best_effort_answered: int

    @property
    def goodput(self) -> float:
        return self.within / self.span_s

    @property
    def attainment(self) -> float:
        return self.within / self.offered if self.offered else 1.0


@dataclass(frozen=True)
class SimulatedPool:
    """``replicas`` at the start. ``noise``: sigma of the natural logarithm of measured over profiled latency (median 1).

    Figures are of the requests that arrive from ``counted_from_us`` on: before that, a policy may learn.
    """

    models: Sequence[ServedModel]
    replicas: int
    settings: PoolSettings | None = None
    noise: float = 0.0
    seed: int = 0
    counted_from_us: int = 0


class PoolSimulation:
    """One run. ``latency_us`` and ``dispatches`` may be read afterwards: latency by request id, -1 where it was refused."""

    def __init__(self, pool: SimulatedPool, loads: Sequence[OfferedLoad], scaler: Autoscaler | None = None) -> None:
        if not math.isfinite(pool.noise) or pool.noise < 0 or pool.replicas < 0:
            raise UsageError(
                f"noise {pool.noise}, {pool.replicas} replicas", "give a finite noise >= 0 and replicas >= 0"
            )
        self._pool, self._loads, self._scaler = pool, loads, scaler
        self._settings = pool.settings or PoolSettings()
        self._router = Router(pool.models, self._settings)
        self._true_us = {model.name: model.profile.table(model.max_batch).us for model in pool.models}
        self._objective_us = {model.name: model.objective_us for model in pool.models}
        self._draw = numpy.random.default_rng(stream_seed(pool.seed, "noise"))
        self._ends: list[tuple[int, int]] = []
        times = numpy.concatenate([load.times_us for load in loads]) if loads else numpy.empty(0, numpy.int64)
        order = numpy.argsort(times, kind="stable")
        owners = numpy.repeat(numpy.arange(len(loads)), [len(load.times_us) for load in loads])
        self._times, self._owners = times[order].tolist(), owners[order].tolist()
        self.latency_us: NDArray[numpy.int64] = numpy.full(len(times), -1, numpy.int64)
        self.sizes: list[int] = []
        """Of each real-time batch, in the order of dispatch."""
        self._replica_us = self._busy_us = 0
        self._up: dict[int, int] = {}
        self._next_replica = 0
        self._next_scaling_us = 0

    def run(self) -> ServingFigures:
        """Until every request is answered or refused. Raises UsageError when none would ever be."""
        for _ in range(self._pool.replicas):
            self._start_replica(0, 0)
        now_us, wake_us, index, count = 0, None, 0, len(self._times)
        while True:
            upcoming = [self._times[index]] if index < count else []
            if self._ends:
                upcoming.append(self._ends[0][0])
            if wake_us is not None:
                upcoming.append(wake_us)
            if self._scaler is not None and (upcoming or self._waits()):
                upcoming.append(self._next_scaling_us)
            if not upcoming:
                break
            now_us = max(now_us, min(upcoming))
            while self._ends and self._ends[0][0] <= now_us:
                self._complete(now_us, heappop(self._ends)[1])
            while index < count and self._times[index] <= now_us:
                self._arrive(now_us, index)
                index += 1
            if self._scaler is not None and now_us >= self._next_scaling_us:
                self._scale(now_us, self._scaler)
            step = self._router.poll(now_us)
            for dispatch in step.dispatches:
                self._begin(dispatch)
            wake_us = step.wake_us
        if self._waits():
            raise UsageError("requests wait for a replica that never comes", "give the pool replicas or a scaler")
        return self._figures(now_us)

    def _waits(self) -> bool:
        return any(sum(self._router.waiting(model.name)) for model in self._pool.models)

    def _arrive(self, now_us: int, index: int) -> None:
        load = self._loads[self._owners[index]]
        deadline_us = NO_DEADLINE if load.best_effort else now_us + self._objective_us[load.model]
        request = InferenceRequest(index, load.model, now_us, deadline_us, load.best_effort)
        refusal = self._router.arrive(now_us, request)
        if self._scaler is not None and not load.best_effort:
            self._scaler.arrived(now_us, refusal is not None and bool(self._up))
            if self._scaler.is_asleep(len(self._up)):
                self._next_scaling_us = now_us

    def _begin(self, dispatch: BatchDispatch) -> None:
        size = dispatch.items
        taken_us = self._true_us[dispatch.model][size]
        if self._pool.noise:
            taken_us = max(1, round(taken_us * math.exp(self._pool.noise * self._draw.standard_normal())))
        self._busy_us += taken_us
        if not dispatch.best_effort:
            self.sizes.append(size)
        heappush(self._ends, (dispatch.started_us + taken_us, dispatch.replica))

    def _complete(self, now_us: int, replica: int) -> None:
        for request in self._router.completed(now_us, replica).requests:
            self.latency_us[request.id] = now_us - request.arrived_us
        if replica not in self._router.replicas():
            self._stopped(now_us, replica)

    def _scale(self, now_us: int, scaler: Autoscaler) -> None:
        self._next_scaling_us = now_us + scaler.settings.interval_us
        current = self._router.replicas()
        wanted = scaler.decide(now_us, len(current), self._router.waited_us(now_us))
        for _ in range(wanted - len(current)):
            self._start_replica(now_us, now_us + self._settings.cold_start_us)
        for replica in current[wanted:]:
            if self._router.remove_replica(replica):
                self._stopped(now_us, replica)

    def _start_replica(self, now_us: int, ready_us: int) -> None:
        self._router.add_replica(now_us, self._next_replica, ready_us)
        self._up[self._next_replica] = now_us
        self._next_replica += 1

    def _stopped(self, now_us: int, replica: int) -> None:
        self._replica_us += now_us - self._up.pop(replica)

    def _figures(self, now_us: int) -> ServingFigures:
        for replica in list(self._up):
            self._stopped(now_us, replica)
        owners = numpy.array(self._owners, numpy.int64)
        best_effort = numpy.array([load.best_effort for load in self._loads] or [False])
        objectives = numpy.array([self._objective_us[load.model] for load in self._loads] or [0], numpy.int64)
        times = numpy.array(self._times, numpy.int64)
        counted = times >= self._pool.counted_from_us
        real_time = ~best_effort[owners] & counted
        mine, limits = self.latency_us[real_time], objectives[owners[real_time]]
        answered = mine[mine >= 0]
        p50, p99 = numpy.percentile(answered, [50, 99], method="higher") if len(answered) else (0, 0)
        span_us = max(SECOND // 1000, int(numpy.ptp(times[counted]))) if counted.any() else SECOND
        return ServingFigures(
            offered=len(mine),
            answered=len(answered),
            within=int(((mine >= 0) & (mine <= limits)).sum()),
            refused=len(mine) - len(answered),
            span_s=span_us / SECOND,
            p50_us=int(p50),
            p99_us=int(p99),
            mean_batch=sum(self.sizes) / len(self.sizes) if self.sizes else 0.0,
            replica_s=self._replica_us / SECOND,
            busy_s=self._busy_us / SECOND,
            best_effort_answered=int((self.latency_us[best_effort[owners] & counted] >= 0).sum()),
        )


def simulate(pool: SimulatedPool, loads: Sequence[OfferedLoad], scaler: Autoscaler | None = None) -> ServingFigures:
    """Run the loads through the pool. Equal arguments give equal figures."""
    return PoolSimulation(pool, loads, scaler).run()
