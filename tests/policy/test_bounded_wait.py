"""The bounded wait of the default policy, attacked by floods of more urgent jobs on the real engine."""

import random

import numpy as np
import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.policy.overdue import Patience, bound_us, in_quantum
from tidewright.policy.sla import Sla
from tidewright.sim.run import Options, Simulation
from tidewright.sim.trace import make_trace
from tidewright.testing.views import pool

PATIENCE = Patience(max_wait_us=10 * MINUTE, quantum_us=2 * MINUTE, share=0.25)
SETTLE = 3 * SECOND


class Witness:
    """Plans like ``sla`` and notes, for every wait of every job, how long it was and what the formula allows."""

    name = "witness"

    def __init__(self, max_wait_us: int = PATIENCE.max_wait_us) -> None:
        self.sla = Sla(max_wait_us=max_wait_us, quantum_us=PATIENCE.quantum_us, overdue_share=PATIENCE.share)
        self.bounds: dict[tuple[int, int], int] = {}
        self.waits: dict[tuple[int, int], int] = {}

    def plan(self, view):
        jobs = view.jobs
        plan = self.sla.plan(view)
        started = {move.job for move in plan.moves}
        owed = int(in_quantum(view, PATIENCE).sum())
        waiting = np.flatnonzero(jobs.waiting)
        since = np.sort(jobs.wait_since[waiting])
        for row in waiting.tolist():
            wait = (int(jobs.id[row]), int(jobs.wait_since[row]))
            if wait not in self.bounds:
                ahead = int(np.searchsorted(since, wait[1], side="right")) - 1 + owed
                self.bounds[wait] = bound_us(PATIENCE, ahead, SETTLE)
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


def attack(seed: int, **settings) -> Witness:
    witness = Witness(**settings)
    Simulation(flood(seed), pool(4, 4, rack=2), witness, Options(horizon_us=6 * HOUR)).run()
    return witness


@pytest.mark.parametrize("seed", range(12))
def test_no_wait_is_longer_than_the_formula_says(seed):
    assert attack(seed).waits


def test_the_attack_would_succeed_without_the_rule():
    with pytest.raises(AssertionError, match="waited"):
        for seed in range(12):
            attack(seed, max_wait_us=100 * HOUR)


def test_the_formula():
    assert bound_us(PATIENCE, 0, SETTLE) == 12 * MINUTE + 9 * SECOND
    assert bound_us(PATIENCE, 3, SETTLE) - bound_us(PATIENCE, 2, SETTLE) == 2 * MINUTE + 9 * SECOND
