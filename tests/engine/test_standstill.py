"""Whatever happens to a queue, nobody waits for a plan that nothing asks for."""

from __future__ import annotations

import random

import pytest

from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import events as ev
from tidewright.model.job import State
from tidewright.plan.moves import Migrate, Resize, Resume, Start
from tidewright.policy.registry import make, policies
from tidewright.testing.worldlet import Worldlet

BEGIN = (Start, Resume, Migrate, Resize)


def blocked_head(policy: str) -> tuple[Worldlet, int, int, int]:
    """Two of four devices are free; the first in the queue wants four, the second two."""
    pool = Worldlet(nodes=1, devices=4, planner=make(policy))
    running = pool.submit(2, expected_us=MINUTE, preempt="none")
    head, second = pool.submit(4, expected_us=2 * MINUTE), pool.submit(2, expected_us=3 * MINUTE)
    assert pool.state(running) is State.RUNNING and pool.state(head) is State.QUEUED
    return pool, running, head, second


@pytest.mark.parametrize("policy", ["fifo", "sjf"])
@pytest.mark.parametrize("leave", [lambda job: ev.Cancel(job, "c"), lambda job: ev.Hold(job, "h")])
def test_the_next_job_starts_once_the_head_of_the_queue_has_left_it(policy, leave) -> None:
    pool, _, head, second = blocked_head(policy)
    assert pool.state(second) is State.QUEUED
    pool.tell(leave(head))
    assert pool.state(second) is State.RUNNING


def random_story(policy: str, seed: int) -> None:
    dice = random.Random(seed)
    pool = Worldlet(nodes=2, devices=4, planner=make(policy))
    for at in range(60):
        alive = list(pool.engine.book.jobs)
        act = dice.choice(("submit", "submit", "cancel", "hold", "release", "exit", "wait", "scale"))
        job = dice.choice(alive) if alive else 0
        if act == "submit" or not alive:
            devices = dice.choice((1, 1, 2, 4, 8))
            fewest = {"min_devices": 1} if dice.random() < 0.2 else {}
            expected = {"expected_us": dice.choice((1, 5, 60)) * MINUTE} if dice.random() < 0.8 else {}
            tier = dice.choice(("premium", "standard", "basic"))
            pool.submit(devices, tier=tier, preempt=dice.choice(("auto", "none")), **fewest, **expected)
        elif act == "cancel":
            pool.tell(ev.Cancel(job, f"c{at}"))
        elif act == "hold":
            pool.tell(ev.Hold(job, f"h{at}"))
        elif act == "release":
            pool.tell(ev.Release(job, f"r{at}"))
        elif act == "exit" and pool.state(job) is State.RUNNING:
            pool.tell(ev.Exited(job, pool.engine.book.table.attempt.item(pool.engine.book.table.row[job]), 0))
        else:
            # What time alone changes is looked at when the policy asks for it; here it is not what is tested.
            pool.later(dice.choice((1, 30, 400)) * SECOND)
            pool.engine.replan()
            pool.tell(ev.Tick())
        view = pool.engine.view()
        wanted = [move for move in pool.planner.plan(view).moves if isinstance(move, BEGIN)]
        assert not wanted, f"seed {seed}, step {at}, {act} {job}: nothing asks for a plan that would make {wanted[0]}"


@pytest.mark.parametrize("policy", sorted(policies.names()))
def test_after_anything_a_plan_made_now_would_begin_nothing_more(policy: str) -> None:
    for seed in range(15):
        random_story(policy, seed)
