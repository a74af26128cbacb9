"""A service beside training on the same devices: it takes devices in time, training loses no work, and gets them back."""

from __future__ import annotations

import numpy as np

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.model.job import JobSpec, Tier
from tidewright.model.service import ServiceSpec
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import Costs
from tidewright.sim.run import Options
from tidewright.sim.shared_pool.run import SharedPool
from tidewright.sim.shared_pool.service import ReplicaRecord, SimulatedService, StepLine, reclaims
from tidewright.sim.trace import Trace, make_trace

LOAD_US = 10 * SECOND
COSTS = Costs(launch_us=3 * SECOND, save_us=4 * SECOND, restore_us=2 * SECOND)
START_US = COSTS.save_us + COSTS.launch_us + LOAD_US
DEVICES = 16
END_US = 2 * HOUR


class Steps:
    """So many replicas from each of these seconds on."""

    def __init__(self, *steps: tuple[int, int]) -> None:
        self._steps = [(second * SECOND, count) for second, count in steps]
        self.next_us = self._steps[0][0]
        self.seen: list[int] = []

    def wanted(self, now_us: int, ready: int, current: int) -> int:
        self.seen.append(ready)
        self.next_us = min((at for at, _ in self._steps if at > now_us), default=1 << 60)
        return next(count for at, count in reversed(self._steps) if at <= now_us)


def training(jobs: int = 40, devices: int = 1, hours: float = 10.0) -> Trace:
    tier = np.full(jobs, int(Tier.BASIC), np.int8)
    return make_trace("full", np.zeros(jobs), np.full(jobs, hours * 3600), np.full(jobs, devices), tier=tier)


def pool(trace: Trace, demand: Steps | None) -> SharedPool:
    service = None
    if demand is not None:
        replica = JobSpec(command=("replica",), tier="premium", preempt="requeue")
        spec = ServiceSpec(name="s", replica=replica, max_replicas=DEVICES, reports_ready=True)
        service = SimulatedService(spec=spec, demand=demand, load_us=LOAD_US)
    return SharedPool(trace, load_cluster(f"2x{DEVICES // 2}"), make("sla"), Options(costs=COSTS), service)


def test_replicas_take_devices_within_the_deadline_and_return_them() -> None:
    run = pool(training(), Steps((0, 1), (1800, 7), (5400, 2)))
    run.advance_to(END_US)
    found = reclaims(list(run.replicas.values()), 600 * SECOND, END_US, START_US)
    assert (found.replicas, found.cancelled, found.in_time) == (6, 0, 1.0)
    assert found.released_p99_s <= 4 and 13 <= found.ready_longest_s <= 17
    at_peak, after = run.ready.between(2400 * SECOND, 3000 * SECOND), run.held.between(6000 * SECOND, END_US)
    assert at_peak == [(2400 * SECOND, 3000 * SECOND, 7)]
    assert [held for _, _, held in after] == [2]
    assert run.world.meter.held_milli == 1000 * DEVICES  # training has all others again


def test_suspended_training_loses_no_work() -> None:
    alone, beside = pool(training(), None), pool(training(), Steps((0, 1), (1800, 9), (5400, 1)))
    without, found = alone.run_until(END_US), beside.run_until(END_US)
    assert found.lost == 0.0 and sum(truth.lost for truth in beside.world.jobs.values()) == 0
    # What is missing is what replicas held and what suspending and restoring took, both ways and for each device at most.
    held = beside.held.mean(0, END_US) * END_US / HOUR
    pauses = 3 * 9 * (COSTS.save_us + COSTS.restore_us + COSTS.launch_us) / HOUR
    assert without.kept - held - pauses <= found.kept <= without.kept - held + pauses
    assert found.waiting == 40 - (DEVICES - 1)


def test_gangs_are_suspended_whole_and_their_other_devices_are_used() -> None:
    wide = pool(training(jobs=6, devices=4), Steps((0, 1), (1800, 2)))
    wide.advance_to(END_US)
    assert wide.ready.value == 2
    running = [truth for truth in wide.world.jobs.values() if truth.row >= 0 and truth.allocation]
    assert len(running) == 3 and all(sum(part.mask.bit_count() for part in one.allocation) == 4 for one in running)


def test_a_replica_counts_only_once_it_has_loaded() -> None:
    demand = Steps((0, 1), (300, 3), (310, 3), (320, 3))
    run = pool(training(), demand)
    run.advance_to(6 * MINUTE)
    assert demand.seen == [0, 1, 1, 3]


def test_a_replica_that_is_stopped_while_it_loads_never_answers() -> None:
    run = pool(training(jobs=4), Steps((0, 1), (60, 5), (66, 1)))
    run.advance_to(5 * MINUTE)
    assert max(value for _, value in run.ready.points) == 1
    assert reclaims(list(run.replicas.values()), 0, 5 * MINUTE, START_US).cancelled == 4


def test_equal_arguments_give_equal_runs() -> None:
    one, other = (pool(training(), Steps((0, 1), (1800, 9), (5400, 1))) for _ in range(2))
    assert one.run_until(END_US) == other.run_until(END_US)
    assert one.ready.points == other.ready.points and one.replicas == other.replicas


def test_a_step_line_is_cut_to_an_interval() -> None:
    line = StepLine()
    for at, value in ((5, 2), (8, 3), (8, 4), (20, 1)):
        line.change(at, value)
    assert line.between(6, 12) == [(6, 8, 2), (8, 12, 4)]
    assert line.mean(0, 10) == (0 * 5 + 2 * 3 + 4 * 2) / 10
    assert line.between(15, 30) == [(15, 20, 4), (20, 30, 1)]


def test_a_replica_that_never_becomes_ready_is_late() -> None:
    records = [ReplicaRecord(0, 5, 10), ReplicaRecord(0, 5), ReplicaRecord(95)]
    assert reclaims(records, 0, 100, 10).in_time == 0.5
