"""The bounded wait of the default policy, attacked by floods of more urgent jobs on the real engine."""

import random

import numpy as np
import pytest
from msgspec import structs

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.estimate.duration import remaining_us
from tidewright.model.job import JobSpec
from tidewright.policy.compose import Composer
from tidewright.policy.overdue import WaitBound, bound_us, patience_us, spacing_us
from tidewright.policy.sla import Sla
from tidewright.sim.costs import Costs
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import make_trace
from tidewright.testing.views import ViewBuilder, pool

LIMIT = WaitBound(max_wait_us=10 * MINUTE, quantum_us=2 * MINUTE, share=0.25)
SETTLE = 3 * SECOND
DEADLY = (2, 3, 6, 11)
"""Floods by each of which a job would wait for longer, were it not for the rule."""


def seeds(*quick: int) -> list:
    """All in make test-full."""
    return [pytest.param(seed, marks=() if seed in quick else pytest.mark.full) for seed in range(12)]


class Witness:
    """Plans like ``sla`` and notes, for every wait of every job, how long it was and what the formula allows."""

    name = "witness"

    def __init__(self, max_wait_us: int = LIMIT.max_wait_us, settle: int = SETTLE, limit=LIMIT, **settings) -> None:
        self.settle, self.limit = settle, limit
        self.sla = Sla(max_wait_us=max_wait_us, quantum_us=limit.quantum_us, overdue_share=limit.share, **settings)
        self.bounds: dict[tuple[int, int], int] = {}
        self.waits: dict[tuple[int, int], int] = {}

    def plan(self, view):
        jobs = view.jobs
        plan = self.sla.plan(view)
        started = {move.job for move in plan.moves}
        left = remaining_us(jobs)
        waiting = np.flatnonzero(jobs.waiting)
        for row in waiting.tolist():
            wait = (int(jobs.id[row]), int(jobs.wait_since[row]))
            if wait not in self.bounds:
                ahead = waiting[(jobs.wait_since[waiting] <= wait[1])]
                patience = patience_us(self.limit, jobs.floor[ahead], view.capacity).max()
                spacing = spacing_us(self.limit, jobs.floor[ahead], view.capacity)
                self.bounds[wait] = bound_us(self.limit, patience, left[ahead].tolist(), spacing.tolist(), self.settle)
            self.waits[wait] = view.now - wait[1]
            assert wait[0] in started or self.waits[wait] <= self.bounds[wait], (
                f"job {wait[0]} waited {self.waits[wait]} us"
            )
        return plan


def flood(seed: int):
    """A few basic jobs, then premium and standard ones without end, of the sizes and lengths that hurt most."""
    dice = random.Random(seed)
    basic = dice.randint(1, 4)
    jobs = 120
    gap = dice.choice((2.0, 10.0, 30.0))
    submit = [0.0] * basic + [dice.choice((0.0, 1.0)) + gap * at * dice.uniform(0.9, 1.1) for at in range(jobs - basic)]
    length = dice.choice(((20, 61), (100, 400), (30, 3000)))
    duration = [dice.choice((60, 600, 2000)) for _ in range(basic)] + [
        dice.randint(*length) for _ in range(jobs - basic)
    ]
    sizes = [dice.choice((1, 2, 4, 8)) for _ in range(basic)]
    sizes += [dice.choice(dice.choice(((1,), (1, 4), (4, 8), (1, 2, 3, 4)))) for _ in range(jobs - basic)]
    tiers = [0] * basic + [dice.choice((1, 2, 2)) for _ in range(jobs - basic)]
    floats = np.array(submit), np.array(duration, dtype=float)
    return make_trace("flood", *floats, np.array(sizes), tier=np.array(tiers, dtype=np.int8))


def attack(seed: int, costs: Costs | None = None, **settings) -> Witness:
    witness = Witness(**settings)
    Simulation(flood(seed), pool(4, 4, rack=2), witness, Options(horizon_us=6 * HOUR, costs=costs)).run()
    return witness


@pytest.mark.parametrize("seed", seeds(*DEADLY[::2]))
def test_no_wait_is_longer_than_the_formula_says(seed):
    assert attack(seed).waits


@pytest.mark.parametrize("seed", seeds(*DEADLY[1::2]))
def test_nor_where_devices_are_kept_free_and_brief_jobs_go_first(seed):
    costs = Costs(save_us=30 * SECOND, restore_us=10 * SECOND)
    assert attack(seed, costs, settle=30 * SECOND, headroom=0.5, brief_us=HOUR).waits


@pytest.mark.parametrize("seed", seeds(*DEADLY[1::2]))
def test_nor_where_overdue_jobs_hold_a_small_share(seed):
    assert attack(seed, limit=structs.replace(LIMIT, share=0.02)).waits


def test_overdue_jobs_hold_a_tenth_of_a_small_pool_and_a_fiftieth_of_a_large_one():
    pools = (8, 40, 80, 200, 480, 2000)
    assert [WaitBound().devices(size) for size in pools] == pytest.approx([0.8, 4, 8, 8, 9.6, 40])
    assert [WaitBound(share=share).devices(480) for share in (0.0, 0.1)] == pytest.approx([0, 48])


def test_the_attack_would_succeed_without_the_rule():
    for seed in DEADLY[:2]:
        with pytest.raises(AssertionError, match="waited"):
            attack(seed, max_wait_us=100 * HOUR)


def test_the_formula():
    assert patience_us(LIMIT, np.array([1, 4, 8]), 16).tolist() == [12 * MINUTE, 12 * MINUTE, 22 * MINUTE]
    assert spacing_us(LIMIT, np.array([1, 4, 5, 8, 16], dtype=np.int32), 16).tolist() == [
        0,
        0,
        150 * SECOND,
        4 * MINUTE,
        8 * MINUTE,
    ]
    assert bound_us(LIMIT, 12 * MINUTE, [30 * SECOND], [0], SETTLE) == 14 * MINUTE + 9 * SECOND
    longer = bound_us(LIMIT, 12 * MINUTE, [30 * SECOND, 3 * MINUTE], [0, 4 * MINUTE], SETTLE)
    assert longer == 24 * MINUTE + 18 * SECOND


def test_of_thousands_of_overdue_jobs_alike_one_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    start = Composer.start
    monkeypatch.setattr(Composer, "start", lambda self, row: tried.append(row) or start(self, row))
    build = ViewBuilder(pool(4))
    long_ago = build.now - 20 * HOUR
    for _ in range(4):
        spec = JobSpec(command=("x",), devices=8, ranks=8, expected_us=10 * HOUR)
        build.run(spec, wait_since=long_ago, run_since=long_ago)
    for at in range(2000):
        spec = JobSpec(command=("x",), devices=8, ranks=8, expected_us=6 * HOUR)
        build.queue(spec, wait_since=build.now - 4 * HOUR - MINUTE + at)
    assert not Sla().plan(build.view()).moves and len(tried) == 1
