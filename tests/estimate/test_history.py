"""Run times foretold from similar jobs."""

import math
import random

import msgspec
import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.estimate.duration import foretold_us, remaining_us, total_us
from tidewright.estimate.history import ENOUGH, GROUPS, KEPT, RunTimeHistory
from tidewright.model.job import JobSpec
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Simulation
from tidewright.sim.trace import changed, make_trace
from tidewright.testing.views import ViewBuilder, pool


def job(name: str = "", user: str = "ann", devices: int = 1, team: str = "default") -> JobSpec:
    return JobSpec(command=("x",), name=name, user=user, devices=devices, ranks=devices, team=team)


def test_the_most_alike_that_have_enough_count() -> None:
    history = RunTimeHistory()
    assert history.predict(job()) is None
    for at in range(ENOUGH):
        history.add(job("train-7", devices=8), HOUR + at * MINUTE)
        history.add(job(f"eval-{at}"), (1 + at) * MINUTE)
    found = history.predict(job("train-123", devices=8))
    assert (
        found is not None
        and found.group == "user name devices"
        and HOUR <= found.low_us <= found.median_us <= found.high_us
    )
    other = history.predict(job("train-9", devices=2))
    assert other is not None and other.group == "user name" and other.median_us >= HOUR
    new = history.predict(job("never-seen", devices=8))
    assert new is not None and new.group == "user devices" and new.median_us >= HOUR
    stranger = history.predict(job("never-seen", "bob"))
    assert stranger is not None and stranger.group == "team devices" and stranger.median_us < 10 * MINUTE
    alone = history.predict(job("x", "bob", 3, "other"))
    assert alone is not None and alone.group == "all" and alone.jobs == 2 * ENOUGH


def test_only_so_much_is_kept() -> None:
    history = RunTimeHistory()
    for at in range(GROUPS + 100):
        history.add(job("n", f"user-{at}x"), SECOND)
    assert len(history.groups) <= GROUPS and max(map(len, history.groups.values())) <= KEPT
    assert "" in history.groups, "the groups that are in use stay"


def test_the_error_is_that_of_what_was_foretold() -> None:
    history = RunTimeHistory()
    assert history.error_factor() == 0 and history.sigma == 0
    for _ in range(9):
        history.add(job(), 2 * HOUR, predicted_us=HOUR)
    assert history.error_factor() == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.0, 0.5, 1.5])
def test_how_far_users_are_off_is_learnt(sigma: float) -> None:
    dice, history = random.Random(4), RunTimeHistory()
    for _ in range(400):
        history.add_estimate(HOUR, round(HOUR * math.exp(dice.gauss(0, sigma))))
    assert history.sigma == pytest.approx(sigma, rel=0.15)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(history), type=RunTimeHistory)
    assert again == history


def test_what_is_foretold_grows_with_how_long_it_runs() -> None:
    """Below the median the median, below the ninth decile that; beyond it the longer it ran, the longer it will."""
    known = {"predicted": HOUR, "predicted_low": 10 * MINUTE, "predicted_high": 5 * HOUR}
    for done, left in ((0, HOUR), (30 * MINUTE, 30 * MINUTE), (2 * HOUR, 3 * HOUR), (6 * HOUR, 6 * HOUR)):
        builder = ViewBuilder(pool(1))
        builder.run(job(), ideal=done, **known)
        jobs = builder.view().jobs
        assert remaining_us(jobs)[0] == left and total_us(jobs)[0] == done + left
        assert foretold_us(jobs)[0] == (0 if done > 5 * HOUR else done + left)
    builder = ViewBuilder(pool(1))
    builder.queue(job(), **known)
    jobs = builder.view().jobs
    assert total_us(jobs, 0.0, -1.0)[0] == 10 * MINUTE, "the least that it may be"


def test_estimates_that_are_wrong_by_any_factor_give_a_time() -> None:
    builder = ViewBuilder(pool(1))
    builder.queue(msgspec.structs.replace(job(), expected_us=365 * 24 * HOUR))
    jobs = builder.view().jobs
    assert total_us(jobs, 24.6, 1.28)[0] > 365 * 24 * HOUR > total_us(jobs, 24.6, -1.28)[0] > 0


def test_a_users_estimate_counts_before_what_others_took() -> None:
    builder = ViewBuilder(pool(1))
    builder.queue(msgspec.structs.replace(job(), expected_us=2 * HOUR), predicted=HOUR, predicted_high=HOUR)
    jobs = builder.view().jobs
    assert remaining_us(jobs)[0] == 2 * HOUR
    assert total_us(jobs, 1.0, 1.0)[0] == int(2 * HOUR * math.e) and total_us(jobs, 1.0, -1.0)[0] == int(
        2 * HOUR / math.e
    )


def test_a_simulated_pool_learns_what_its_teams_run() -> None:
    import numpy as np

    from tidewright.policy.registry import make

    count = 200
    team = (np.arange(count) % 2).astype(np.int32)
    duration = np.where(team == 0, 600.0, 36_000.0)
    trace = make_trace(
        "teams", np.arange(count) * 900.0, duration, np.ones(count, np.int64), team=team, teams=("short", "long")
    )
    blind = changed(trace, expected=np.zeros(count, np.int64))
    simulation = Simulation(blind, load_cluster("4x8"), make("srtf"))
    simulation.run()
    history = simulation.engine.book.run_times
    assert 1 <= history.error_factor() < 1.05
    assert not Simulation(trace, load_cluster("4x8"), make("srtf")).engine.settings.predict, "nothing to foretell"
