"""One pool against a static split: the same training, the same requests, the same devices, the same policy.

The day of requests is replayed twice: first to fill the cluster with training, then to be measured. The split serves with the
fewest constant replicas whose attainment is that of the pool, and trains on all other devices.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec import Struct, structs

from ...base.errors import UsageError
from ...base.units import MINUTE, SECOND
from ...model.job import JobSpec
from ...model.node import NodeSpec
from ...model.service import ServiceSpec
from ...policy.registry import make
from ...serve.arrivals import RateCurve
from ...serve.autoscale import Autoscaler, ScalingSettings
from ...serve.fluid import ServiceFlow
from ...serve.profile import BatchProfile
from ...sim.costs import Cost
from ...sim.run import Options
from ...sim.shared_pool.run import SharedPool, WorkDone
from ...sim.shared_pool.service import ReclaimFigures, SimulatedService, reclaims
from ...sim.trace import Trace
from .attainment import Attainment, attained, fewest_replicas
from .demand import DayOfRequests, RecordedDemand

Progress = Callable[[str, int, int], None]
"""Called with (what runs, simulated microseconds, of how many)."""
_NAME = "service"
_STEPS = 40


class ServedDay(Struct, frozen=True, kw_only=True):
    """The service. ``peak_share``: part of the cluster's devices that the day's highest bin needs, one a replica. ``load_us``:
    from a replica's start to its first answer. ``start_us``: what a replica is planned to take from being wanted to its first
    answer, the release of its device by others included: the horizon of the forecast, and the deadline of a reclaim."""

    curve: RateCurve
    profile: BatchProfile
    objective_us: int
    peak_share: float = 0.4
    load_us: Cost = 20 * SECOND
    start_us: int = 30 * SECOND
    hold_us: int = 5 * MINUTE
    interval_us: int = SECOND
    utilisation: float = 0.8


class TrainingDone(Struct, frozen=True, kw_only=True):
    """Of the measured day. ``useful``: device-hours of work done in it and kept. ``devices``: that training had, on average."""

    devices: float
    useful: float
    lost: float
    completed: int
    waiting: int
    """Jobs without devices at its end."""


class PoolDay(Struct, frozen=True, kw_only=True):
    """The one pool. Devices are averages over the day; ``wanted`` ones need not be ready yet."""

    attainment: Attainment
    training: TrainingDone
    reclaims: ReclaimFigures
    wanted_devices: float
    ready_devices: float
    held_devices: float
    wanted_most: int


class SplitDay(Struct, frozen=True, kw_only=True):
    """A static split with so many devices for the service."""

    serving_devices: int
    attainment: Attainment
    training: TrainingDone


class PoolComparison(Struct, frozen=True, kw_only=True):
    """``gain``: useful training of the pool over that of ``split``, which answers as large a part of the requests in time;
    ``gain_over_bins``: over that of the split with as many good bins; ``gain_over_peak``: over that of the split that carries
    the day's peak."""

    devices: int
    peak_replicas: int
    objective_us: int
    requests: int
    day_s: float
    pool: PoolDay
    split: SplitDay
    bins_split: SplitDay
    peak_split: SplitDay
    gain: float
    gain_over_bins: float
    gain_over_peak: float
    lines: dict[str, list[tuple[float, float, int]]]
    """For plots: replicas wanted, ready and holding a device, as (from, to, number), hours of the day."""


def compare_day(
    trace: Trace, nodes: tuple[NodeSpec, ...], policy: str, options: Options, day: ServedDay,
    progress: Progress = lambda name, at, end: None,
) -> PoolComparison:  # fmt: skip
    """Simulate all. Raises UsageError for a peak that the cluster has no devices for."""
    return _Comparison(trace, nodes, policy, options, day, progress).run()


def without(nodes: tuple[NodeSpec, ...], devices: int) -> tuple[NodeSpec, ...]:
    """The nodes that are left when so many devices are taken off the last ones. Raises UsageError when none is left."""
    left = list(nodes)
    while left and devices >= left[-1].devices:
        devices -= left.pop().devices
    if not left:
        raise UsageError("no device is left for training", "give a larger cluster or a smaller peak")
    if devices:
        left[-1] = structs.replace(left[-1], devices=left[-1].devices - devices)
    return tuple(left)


class _Comparison:
    def __init__(
        self,
        trace: Trace,
        nodes: tuple[NodeSpec, ...],
        policy: str,
        options: Options,
        day: ServedDay,
        progress: Progress,
    ) -> None:
        self.trace, self.nodes, self.policy, self.options, self.day = trace, nodes, policy, options, day
        self.progress = progress
        self.devices = sum(node.devices for node in nodes)
        self.peak = round(day.peak_share * self.devices)
        if not 0 < self.peak < self.devices:
            raise UsageError(
                f"the service's peak is {self.peak} of {self.devices} devices", "give a share above 0 and below 1"
            )
        self.table = day.profile.table()
        self.flow = ServiceFlow(self.table, day.objective_us)
        requests = DayOfRequests(day.curve, self.flow.capacity(self.peak))
        self.start_us, self.end_us = requests.length_us, 2 * requests.length_us
        self.arrivals = requests.arrivals(day.interval_us, self.end_us, options.profile.seed)
        self.measured = self.arrivals[-(-self.start_us // day.interval_us) :]

    def run(self) -> PoolComparison:
        pool, simulated = self._pool_day()
        aim, most = pool.attainment, self.devices - 1
        count, found = fewest_replicas(self._constant, most, lambda one: one.requests >= aim.requests)
        by_bins, found_by_bins = fewest_replicas(self._constant, most, lambda one: one.bins >= aim.bins)
        splits = [
            self._split_day(count, found),
            self._split_day(by_bins, found_by_bins),
            self._split_day(self.peak, self._constant(self.peak)),
        ]
        gains = [pool.training.useful / one.training.useful - 1 for one in splits]
        return PoolComparison(
            devices=self.devices, peak_replicas=self.peak, objective_us=self.day.objective_us,
            requests=int(self.measured.sum()), day_s=(self.end_us - self.start_us) / SECOND, pool=pool,
            split=splits[0], bins_split=splits[1], peak_split=splits[2],
            gain=gains[0], gain_over_bins=gains[1], gain_over_peak=gains[2],
            lines={name: self._line(name, simulated) for name in ("wanted", "ready", "held")},
        )  # fmt: skip

    def _constant(self, replicas: int) -> Attainment:
        whole = [(0, len(self.measured) * self.day.interval_us, replicas)]
        return attained(self.measured, self.day.interval_us, self.day.curve.bin_us, 0, whole, self.flow)

    def _pool_day(self) -> tuple[PoolDay, SharedPool]:
        day = self.day
        settings = ScalingSettings(
            minimum=1, maximum=self.devices, interval_us=day.interval_us, horizon_us=day.start_us, hold_us=day.hold_us,
            utilisation=day.utilisation,
        )  # fmt: skip
        demand = RecordedDemand(self.arrivals, Autoscaler(self.table, day.objective_us, settings), self.flow)
        replica = JobSpec(command=("replica",), tier="premium", preempt="requeue", team=_NAME)
        spec = ServiceSpec(name=_NAME, replica=replica, max_replicas=self.devices, reports_ready=True)
        service = SimulatedService(spec=spec, demand=demand, load_us=day.load_us)
        pool = SharedPool(self.trace, self.nodes, make(self.policy), self.options, service)
        training = self._train("one pool", pool)
        start, end = self.start_us, self.end_us
        held = pool.held.mean(start, end)
        return PoolDay(
            attainment=attained(
                self.measured, day.interval_us, day.curve.bin_us, start, pool.ready.between(start, end), self.flow
            ),
            training=structs.replace(training, devices=training.devices - held),
            reclaims=reclaims(list(pool.replicas.values()), start, end, day.start_us),
            wanted_devices=pool.wanted.mean(start, end), ready_devices=pool.ready.mean(start, end), held_devices=held,
            wanted_most=max(value for _, _, value in pool.wanted.between(start, end)),
        ), pool  # fmt: skip

    def _split_day(self, serving: int, found: Attainment) -> SplitDay:
        nodes = without(self.nodes, serving)
        pool = SharedPool(self.trace, nodes, make(self.policy), self.options)
        training = self._train(f"split, {serving} devices for the service", pool)
        return SplitDay(serving_devices=serving, attainment=found, training=training)

    def _train(self, name: str, pool: SharedPool) -> TrainingDone:
        before = self._reach(name, pool, 0, self.start_us)
        held = pool.meter.held_area
        after = self._reach(name, pool, self.start_us, self.end_us)
        return TrainingDone(
            devices=(pool.meter.held_area - held) / (1000 * (self.end_us - self.start_us)),
            useful=after.kept - before.kept, lost=after.lost - before.lost,
            completed=after.completed - before.completed, waiting=after.waiting,
        )  # fmt: skip

    def _reach(self, name: str, pool: SharedPool, since: int, until: int) -> WorkDone:
        for step in range(1, _STEPS):
            pool.advance_to(since + (until - since) * step // _STEPS)
            self.progress(name, since + (until - since) * step // _STEPS, self.end_us)
        return pool.run_until(until)

    def _line(self, name: str, pool: SharedPool) -> list[tuple[float, float, int]]:
        hour = 3600 * SECOND
        stretches = getattr(pool, name).between(self.start_us, self.end_us)
        return [((since - self.start_us) / hour, (to - self.start_us) / hour, value) for since, to, value in stretches]


def as_json(comparison: PoolComparison) -> bytes:
    """All figures, indented."""
    return msgspec.json.format(msgspec.json.encode(comparison), indent=2)
