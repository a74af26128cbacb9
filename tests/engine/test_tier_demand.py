"""Demand by tier is kept as jobs come and go; every promise that could go wrong with it."""

import pytest

from tidewright.base.errors import Bug
from tidewright.engine import events as ev
from tidewright.engine.check import check_all
from tidewright.engine.engine import Engine
from tidewright.engine.requests.amend import amend
from tidewright.engine.settings import live_settings
from tidewright.engine.tier_demand import Demand
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec
from tidewright.testing.worldlet import Worldlet

GIB = 2**30


def pool() -> Worldlet:
    return Worldlet(1, 4, settings=live_settings(check_every=1), kind="cpu", full=True)


def test_it_follows_submissions_sizes_and_ends() -> None:
    world = pool()
    premium = world.submit(4, tier="premium", min_devices=1)
    shared = world.submit(1, tier="standard", gpu_memory=GIB)
    demand = world.engine.book.tier_demand
    assert demand.at_least(2) == Demand(4, 0, 0, 0)
    assert demand.at_least(1) == Demand(5, 1, GIB, 0)
    assert not world.reply(ev.Scale(premium, 2, "s"), "s").error
    assert demand.at_least(2) == Demand(2, 0, 0, 0)
    part = world.submit(1, tier="standard", gpu_share=300)
    assert demand.at_least(1) == Demand(3, 1, GIB, 300)
    world.tell(ev.Cancel(part))
    world.tell(ev.Cancel(shared))
    world.tell(ev.Cancel(premium))
    assert demand.at_least(0) == Demand(0, 0, 0, 0)


def test_a_forecast_counts_what_others_have_been_scaled_to() -> None:
    world = pool()
    first = world.submit(4, tier="premium", min_devices=1)
    second = JobSpec(command=("true",), tier="premium", devices=2, ranks=2)
    assert world.reply(ev.Submit(second, "a"), "a").warning == Code.OVERSUBSCRIBED("premium", 6000, 4, 667)
    assert not world.reply(ev.Scale(first, 1, "s"), "s").error
    assert world.reply(ev.Submit(second, "b"), "b").warning == Code.OVERSUBSCRIBED("premium", 5000, 4, 800)


def test_a_snapshot_and_a_fork_have_the_same() -> None:
    world = pool()
    world.submit(3, tier="standard")
    waiting = world.submit(3, tier="standard")
    again = Engine.restore(world.engine.snapshot()).book.tier_demand
    assert again.at_least(0) == world.engine.book.tier_demand.at_least(0) == Demand(6, 0, 0, 0)
    fork = world.engine.fork()
    amend(fork.book, waiting, JobSpec(command=("true",), tier="premium", devices=1))
    assert fork.book.tier_demand.at_least(2) == Demand(1, 0, 0, 0)
    check_all(fork.book)


def test_a_wrong_sum_is_found() -> None:
    world = pool()
    world.submit(1)
    world.engine.book.tier_demand.add(0, 1, 0)
    with pytest.raises(Bug, match="tiers ask for"):
        check_all(world.engine.book)
