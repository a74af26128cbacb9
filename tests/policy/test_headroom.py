"""Devices kept free for jobs that cannot wait, and brief jobs served with premium ones."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import UsageError
from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.estimate.tolerance import noted
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, State, Tier
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.policy.headroom import REMEMBERED_US
from tidewright.policy.registry import make
from tidewright.policy.sla import Sla
from tidewright.sim.clusters import load_cluster
from tidewright.sim.costs import Costs
from tidewright.sim.run import Options, simulate
from tidewright.sim.trace import make_trace
from tidewright.testing.views import ViewBuilder, pool

from ..sizes import examples

SLOW = {"save_us": MINUTE, "restore_us": MINUTE}
MINUTES = {"gpu": {6: 100 * HOUR}}
"""A job with a promise that could have stood idle for half a minute ended now."""


def spec(tier: str = "standard", devices: int = 1, hours: float = 10.0, **more: object) -> JobSpec:
    more = {"command": ("x",), "ranks": devices, "expected_us": round(hours * HOUR), **more}
    return JobSpec(tier=tier, devices=devices, **more)


def builder(free: int = 2, save: dict[str, int] = SLOW, tolerances: dict[str, dict[int, int]] = MINUTES) -> ViewBuilder:
    """Five nodes of 8, of which ``free`` devices are free."""
    build = ViewBuilder(pool(5))
    build.tolerances = tolerances
    for _ in range(40 - free):
        assert build.run(spec("basic"), **save) > 0
    return build


def started(build: ViewBuilder, **more: object) -> set[int]:
    plan = Sla(headroom=0.05, **more).plan(build.view())  # 2 of 40
    assert not any(isinstance(move, Suspend) for move in plan.moves)
    return {move.job for move in plan.moves if isinstance(move, Start)}


def test_a_job_that_can_wait_leaves_what_is_kept_and_one_that_cannot_takes_it() -> None:
    build = builder()
    for tier in ("standard", "basic"):
        build.queue(spec(tier), submit=100 * HOUR)
    brief = build.queue(spec(hours=1 / 60), submit=100 * HOUR)
    assert started(build) == {brief}
    build.tolerances = {}
    assert len(started(build)) == 2


def test_no_device_idles_where_devices_are_released_soon() -> None:
    build = builder(save={})
    build.queue(spec("basic"), submit=100 * HOUR)
    assert len(started(build)) == 1


@pytest.mark.parametrize(
    "tolerances", [{}, {"other": {6: 100 * HOUR}}, {"gpu": {12: 100 * HOUR}}, {"gpu": {6: 100 * HOUR - REMEMBERED_US}}]
)
def test_nor_where_no_job_comes_that_cannot_wait(tolerances: dict[str, dict[int, int]]) -> None:
    """None with a promise, on another kind, that could have waited for an hour, or long ago."""
    build = builder(tolerances=tolerances)
    build.queue(spec("basic"), submit=100 * HOUR)
    assert len(started(build)) == 1


def test_a_job_takes_what_is_kept_at_the_last_moment_at_which_its_promise_can_be_kept() -> None:
    build = builder()
    job = build.queue(spec(hours=1), submit=100 * HOUR, level=0)
    plan = Sla(headroom=0.05, pressing=0.0).plan(build.view())
    assert not plan.moves and 100 * HOUR < plan.wake.at < 100 * HOUR + 25 * MINUTE
    late = builder()
    late.now = plan.wake.at
    late.tolerances = {"gpu": {6: late.now}}
    job = late.queue(spec(hours=1), submit=100 * HOUR)
    assert [move.job for move in Sla(headroom=0.05, pressing=0.0).plan(late.view()).moves] == [job]


def test_an_overdue_job_takes_what_is_kept() -> None:
    build = builder()
    job = build.queue(spec("basic"), submit=90 * HOUR, wait_since=90 * HOUR)
    assert started(build) == {job}


def test_what_is_kept_lies_on_the_fullest_nodes_so_that_a_gang_finds_a_whole_one() -> None:
    build = builder(free=10)
    gang = build.queue(spec("basic", 8), submit=100 * HOUR)
    assert started(build) == {gang}
    alone = builder(free=8)
    gang = alone.queue(spec("basic", 8), submit=100 * HOUR)
    assert started(alone) == {gang}, "no part of the only whole node is kept while a gang waits for one"


def test_a_job_frozen_on_a_node_gets_its_devices_back() -> None:
    build = builder(free=2)
    job = build.queue(spec("basic"), submit=100 * HOUR, state=int(State.SUSPENDED), pinned_node=4)
    plan = Sla(headroom=0.05).plan(build.view())
    assert [move.job for move in plan.moves] == [job]


def test_the_limit_says_so() -> None:
    build = builder()
    job = build.queue(spec("basic"), submit=100 * HOUR)
    (blocked,) = Sla(headroom=0.05).plan(build.view()).blocked
    assert blocked.job == job and blocked.reason is Reason.RESERVED and blocked.free == 2
    assert blocked.why == Code.HEADROOM(2)


def burst(seed: int, hours: float):
    """Long basic jobs that fill the pool, and brief standard ones that come all the time."""
    jobs = round(7.5 * hours)
    dice = np.random.default_rng(seed)
    submit = np.sort(dice.uniform(0, hours * 3600, jobs))
    brief = dice.random(jobs) < 0.5
    duration = np.where(brief, dice.uniform(30, 140, jobs), dice.uniform(4, 30, jobs) * 3600)
    tier = np.where(brief, int(Tier.STANDARD), int(Tier.BASIC)).astype(np.int8)
    return make_trace("burst", submit, duration, np.ones(jobs, np.int64), tier=tier)


def simulated(trace, policy: str, save_us: int):
    options = Options(cluster="5x8", costs=Costs(save_us=save_us, restore_us=save_us))
    return simulate(trace, load_cluster("5x8"), make(policy), options)


def kept(trace, policy: str, save_us: int) -> float:
    return next(tier.attained for tier in simulated(trace, policy, save_us).tiers if tier.tier == "standard")


def test_brief_promises_are_kept_where_images_take_a_minute() -> None:
    trace = burst(1, hours=24)
    with_room, without = (kept(trace, f"sla:headroom={share}", MINUTE) for share in (0.05, 0))
    assert with_room > without + 0.2 and with_room > 0.9


@pytest.mark.parametrize(
    ("save_us", "nodes", "kept"), [(MINUTE, 20, 4), (SECOND, 20, 1), (SECOND, 5, 0), (SECOND // 5, 20, 0)]
)
def test_fewer_are_kept_where_saves_are_quick(save_us: int, nodes: int, kept: int) -> None:
    build = ViewBuilder(pool(nodes))
    build.tolerances = {"gpu": {2: 100 * HOUR}}
    for _ in range(8 * nodes - 5):
        build.run(spec(), save_us=save_us, restore_us=save_us)
    for _ in range(9):
        build.queue(spec(), submit=100 * HOUR)
    assert sum(isinstance(move, Start) for move in Sla().plan(build.view()).moves) == 5 - kept


def test_brief_premium_promises_are_kept_where_images_take_a_second() -> None:
    dice, long, brief = np.random.default_rng(1), 200, 100
    submit = np.concatenate([np.zeros(long), np.sort(dice.uniform(60, 3600, brief))])
    duration = np.concatenate([dice.uniform(4, 8, long) * 3600, dice.uniform(60, 75, brief)])
    tier = np.array([int(Tier.BASIC)] * long + [int(Tier.PREMIUM)] * brief, np.int8)
    options = Options(cluster="20x8", costs=Costs(save_us=SECOND, restore_us=SECOND // 2))
    trace = make_trace("brief", submit, duration, np.ones(long + brief, np.int64), tier=tier)
    shares = []
    for share in (0.03, 0):
        result = simulate(trace, load_cluster("20x8"), make(f"sla:headroom={share}"), options)
        shares.append(next(one.attained for one in result.tiers if one.tier == "premium"))
    assert shares[0] > shares[1] + 0.3, shares


def test_in_a_small_pool_where_images_take_a_second_it_makes_no_difference() -> None:
    trace = burst(2, hours=12)
    with_room, without = (simulated(trace, f"sla:headroom={share}", SECOND) for share in (0.05, 0))
    assert with_room.tiers == without.tiers and with_room.preemptions == without.preemptions > 0


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 20), st.integers(1, 12), st.floats(0, 0.6))
def test_never_more_than_the_share_idles_while_a_job_that_fits_waits(
    seed: int, free: int, jobs: int, share: float
) -> None:
    build = builder(free=free)
    dice = np.random.default_rng(seed)
    for _ in range(jobs):
        build.queue(spec(dice.choice(["basic", "standard", "premium"]), hours=float(dice.choice([1 / 60, 1, 20]))))
    view = build.view()
    plan = Sla(headroom=share).plan(view)
    begun = len([move for move in plan.moves if isinstance(move, Start)])
    idle = free - begun + len([move for move in plan.moves if isinstance(move, Suspend)])
    assert idle <= int(share * 40) or begun == jobs


# -- brief jobs -----------------------------------------------------------------------------------------------------------


def test_a_brief_standard_job_is_served_before_premium_ones_and_a_longer_one_after() -> None:
    for hours, first in ((0.02, "standard"), (2.0, "premium")):
        build = builder(free=1, save={})
        jobs = {"premium": build.queue(spec("premium"), submit=100 * HOUR)}
        jobs["standard"] = build.queue(spec(hours=hours), submit=100 * HOUR)
        plan = Sla(brief_us=8 * SECOND).plan(build.view())
        moved = [move.job for move in plan.moves if isinstance(move, Start)]
        assert moved[0] == jobs[first], "8 s of 40 devices are 5 minutes of one"


def test_what_is_brief_grows_with_the_pool() -> None:
    for nodes, brief in ((5, True), (1, False)):
        build = ViewBuilder(pool(nodes))
        for _ in range(8 * nodes - 1):
            build.run(spec("basic"))
        premium = build.queue(spec("premium"), submit=100 * HOUR - MINUTE)
        standard = build.queue(spec(hours=0.25), submit=100 * HOUR - MINUTE)
        first = next(move.job for move in Sla().plan(build.view()).moves if isinstance(move, Start))
        assert first == (standard if brief else premium)


def test_a_premium_job_lets_no_brief_job_go_first_once_half_of_its_idle_time_is_gone() -> None:
    for waited, first in ((10, "standard"), (20, "premium")):  # of 31.6 minutes that ten hours at 0.95 leave
        build = ViewBuilder(pool(5))
        for _ in range(39):
            build.run(spec("premium"), run_since=100 * HOUR - SECOND)
        jobs = {
            "premium": build.queue(spec("premium"), submit=100 * HOUR - waited * MINUTE),
            "standard": build.queue(spec(hours=0.25), submit=100 * HOUR - MINUTE),
        }
        starts = [move.job for move in Sla(headroom=0.0).plan(build.view()).moves if isinstance(move, Start)]
        assert starts == [jobs[first]]


def test_a_flood_of_brief_standard_jobs_breaks_no_premium_promise() -> None:
    """Half of the pool's devices are asked for by premium jobs, and more than all by standard ones of some minutes."""
    dice = np.random.default_rng(5)
    hours, premium, each = 1.0, 2, 4
    brief = round(hours * 3600 / 200 * 16 * 1.3)
    submit = np.concatenate([dice.uniform(0, 300, premium), np.sort(dice.uniform(0, hours * 3600, brief))])
    duration = np.concatenate([np.full(premium, hours * 3600), dice.uniform(100, 300, brief)])
    devices = np.concatenate([np.full(premium, each), np.ones(brief)]).astype(np.int64)
    tier = np.array([int(Tier.PREMIUM)] * premium + [int(Tier.STANDARD)] * brief, np.int8)
    order = np.argsort(submit)
    trace = make_trace("flood", submit[order], duration[order], devices[order], tier=tier[order])
    result = simulate(trace, load_cluster("2x8"), make("sla"), Options(cluster="2x8"))
    assert next(one.attained for one in result.tiers if one.tier == "premium") == 1.0


def test_a_brief_basic_job_goes_before_a_standard_one_with_slack_and_not_before_one_that_presses() -> None:
    """The standard jobs of ten hours have 257 minutes of idle time, and press when 103 of them are left."""
    for lost, preempted in ((100, True), (200, False)):
        build = ViewBuilder(pool(5))
        for _ in range(40):
            ran = {"run_since": 99 * HOUR, "submit": 99 * HOUR - lost * MINUTE, "ideal": HOUR}
            build.run(spec(), **ran)
        job = build.queue(spec("basic", hours=0.25), submit=100 * HOUR)
        presses = build.queue(spec(), submit=100 * HOUR - lost * MINUTE)  # as long as the running ones
        plan = Sla(headroom=0.0).plan(build.view())
        assert any(isinstance(move, Suspend) for move in plan.moves) is preempted
        assert {blocked.job for blocked in plan.blocked} <= {job, presses}


def test_a_brief_standard_job_presses_at_once_nearly_and_a_long_one_when_it_has_to() -> None:
    """Of 257 and 6.4 minutes of idle time."""
    for hours, waited, preempts in ((10.0, 120, False), (10.0, 160, True), (0.25, 1, True)):
        build = ViewBuilder(pool(5))
        for _ in range(40):
            build.run(spec("basic"), run_since=99 * HOUR)
        build.queue(spec(hours=hours), submit=100 * HOUR - waited * MINUTE)
        plan = Sla(headroom=0.0).plan(build.view())
        assert any(isinstance(move, Suspend) for move in plan.moves) is preempts, (hours, waited)


def test_a_premium_job_is_not_preempted_until_it_has_run_for_twenty_pauses() -> None:
    for minutes, preempted in ((30, False), (50, True)):
        build = ViewBuilder(pool(5))
        for _ in range(40):
            ran = {"run_since": 100 * HOUR - minutes * MINUTE, "submit": 100 * HOUR - minutes * MINUTE}
            build.run(spec("premium", hours=50), **SLOW, **ran)
        build.queue(spec(hours=0.02), submit=100 * HOUR)
        plan = Sla(headroom=0.0).plan(build.view())
        assert any(isinstance(move, Suspend) for move in plan.moves) == preempted


def test_settings_out_of_bounds_are_errors() -> None:
    for text in ("sla:headroom=1.1", "sla:headroom=nan", "sla:overdue_share=-1", "sla:aging=0s", "sla:quantum=0s"):
        with pytest.raises(UsageError, match="setting"):
            make(text)
    with pytest.raises(UsageError, match="all 0"):
        make("static:premium=0,standard=0,basic=0")


def test_of_ended_jobs_the_idle_time_that_they_were_allowed_is_noted() -> None:
    known = noted({}, ["a", "b"], int(Tier.STANDARD), 70 * SECOND, 5)
    assert known == {"a": {5: 5}, "b": {5: 5}}, "30 s"
    assert noted(known, ["a"], int(Tier.BASIC), 70 * SECOND, 9) is known
    assert noted(known, ["a"], int(Tier.PREMIUM), HOUR, 9) == {"a": {5: 5, 8: 9}, "b": {5: 5}}, "189 s"
