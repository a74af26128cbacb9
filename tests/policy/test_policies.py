"""What each policy is for, on small pools; and that no backfilled job delays a reservation."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, Level
from tidewright.plan.moves import Resize, Start, Suspend
from tidewright.policy.baselines.profile import Profile
from tidewright.policy.registry import make
from tidewright.testing.policies import check_plan
from tidewright.testing.views import NOW, ViewBuilder, pool

from ..sizes import examples


def job(devices: int = 1, minutes: int = 60, tier: str = "standard", **fields) -> JobSpec:
    return JobSpec(command=("x",), ranks=devices, devices=devices, expected_us=minutes * MINUTE, tier=tier, **fields)


def fresh(builder: ViewBuilder, spec: JobSpec, **columns: int) -> int:
    return builder.queue(spec, submit=NOW - SECOND, since=NOW - SECOND, wait_since=NOW - SECOND, **columns)


def planned(name: str, builder: ViewBuilder):
    plan = make(name).plan(builder.view())
    starts = [move.job for move in plan.moves if isinstance(move, Start)]
    return plan, starts, [move.job for move in plan.moves if isinstance(move, Suspend)]


def test_fifo_lets_nobody_pass_and_sleeps_until_the_head_could_start():
    builder = ViewBuilder(pool(1, 4))
    builder.run(job(3))
    big, _small = builder.queue(job(2)), builder.queue(job(1))
    plan, starts, _ = planned("fifo", builder)
    assert starts == [] and plan.blocked[0].job == big
    assert (plan.wake.behind, plan.wake.min_free) == (big, 2) and plan.wake.behind_until > builder.now


def test_backfill_passes_a_job_that_ends_in_time_only():
    builder = ViewBuilder(pool(1, 4))
    builder.run(job(3, minutes=60), ideal=0)
    builder.queue(job(4))
    long, short = builder.queue(job(1, minutes=90)), builder.queue(job(1, minutes=30))
    _, starts, _ = planned("fifo-backfill", builder)
    assert starts == [short] and long not in starts


def test_backfill_sleeps_through_arrivals_behind_its_depth_until_an_estimate_ends():
    builder = ViewBuilder(pool(1, 4))
    builder.run(job(3, minutes=60), ideal=10 * MINUTE)
    queued = [builder.queue(job(4)) for _ in range(3)]
    view = builder.view()
    for depth, behind in ((2, queued[1]), (3, queued[2]), (4, 0)):
        wake = make(f"fifo-backfill:depth={depth}").plan(view).wake
        assert wake.behind_until == (NOW + 50 * MINUTE if behind else 0) and wake.behind == (behind or 1 << 62)


@pytest.mark.parametrize("columns", [{"ideal": 60 * MINUTE}, {"rate": 500_000}, {"rate": 0}])
def test_backfill_looks_at_every_arrival_while_an_end_moves(columns):
    builder = ViewBuilder(pool(1, 4))
    builder.run(job(3, minutes=60), **columns)
    builder.queue(job(4))
    assert make("fifo-backfill:depth=1").plan(builder.view()).wake.behind_until == 0


def test_srtf_sends_the_longest_away_for_a_shorter_one():
    builder = ViewBuilder(pool(1, 2))
    long, short = builder.run(job(1, 600)), builder.run(job(1, 5))
    arrived = builder.queue(job(1, 50))
    plan, starts, gone = planned("srtf", builder)
    assert starts == [arrived] and gone == [long] and plan.gangs == ((0, 2),) and short not in gone


def test_srtf_leaves_jobs_alone_that_cannot_be_suspended():
    builder = ViewBuilder(pool(1, 1))
    builder.run(job(1, 600), level=int(Level.NONE))
    builder.queue(job(1, 5))
    assert planned("srtf", builder)[0].moves == ()


def test_las_prefers_little_service_and_keeps_equals_in_place():
    builder = ViewBuilder(pool(1, 2))
    old = builder.run(job(1), attained=10_000 * SECOND * 1000)
    builder.run(job(1), attained=10 * SECOND * 1000)
    first, second = builder.queue(job(1)), builder.queue(job(1))
    plan, starts, gone = planned("las", builder)
    assert starts == [first] and gone == [old] and second not in starts
    assert plan.wake.at > NOW


def test_las_in_rounds_wakes_at_round_ends():
    builder = ViewBuilder(pool(1, 1), now=NOW + SECOND)
    builder.run(job(1))
    builder.queue(job(1), attained=10**15)
    plan, *_ = planned("las:round=6m", builder)
    assert plan.wake.at == NOW + 6 * MINUTE and not plan.wake.on_arrival and not plan.wake.on_free


def test_static_keeps_tiers_apart():
    builder = ViewBuilder(pool(4, 1))
    jobs = [builder.queue(job(1, tier=tier)) for tier in ("premium", "premium", "basic", "basic", "basic")]
    _, starts, _ = planned("static:premium=1,standard=1,basic=2", builder)
    assert sorted(starts) == [jobs[0], jobs[2], jobs[3]]


def test_sla_sends_basic_jobs_away_for_premium_but_not_for_a_standard_job_with_slack():
    for tier, gone_count in (("premium", 1), ("standard", 0)):
        builder = ViewBuilder(pool(1, 2))
        for _ in range(2):
            builder.run(job(1, 600, "basic"))
        fresh(builder, job(1, 60, tier))
        plan, starts, gone = planned("sla", builder)
        assert (len(starts), len(gone)) == (gone_count, gone_count)
        if not starts:
            # 60 min at 0.70 leave 25.7 min of idle time; it presses when six tenths of that are gone.
            assert 15 * MINUTE < plan.wake.at - NOW < 16 * MINUTE


def premium_behind(ran: int, **columns):
    """The plan for a premium job that comes when a basic one has run for ``ran`` seconds."""
    builder = ViewBuilder(pool(1, 1))
    builder.run(job(1, 600, "basic"), run_since=NOW - ran * SECOND, **columns)
    arrived = fresh(builder, job(1, 60, "premium"))
    plan, starts, _ = planned("sla", builder)
    return plan, starts == [arrived]


def test_sla_lets_a_job_run_for_five_times_its_pause_before_it_is_preempted():
    half = {"save_us": SECOND // 2, "restore_us": SECOND // 2}
    plan, started = premium_behind(2, **half)
    assert not started and plan.wake.at == NOW + 3 * SECOND
    assert premium_behind(5, **half)[1]


@pytest.mark.parametrize(
    "columns", [{"save_us": 0, "restore_us": 0}, {"save_us": 30 * SECOND}, {"level": int(Level.REQUEUE), "ideal": HOUR}]
)
def test_sla_lets_a_job_run_its_minimum_where_its_pause_is_dear_or_unknown(columns):
    plan, started = premium_behind(10, **columns)
    assert not started and plan.wake.at == NOW + 50 * SECOND


def test_sla_says_from_when_on_room_may_be_made():
    plan, _ = premium_behind(2, save_us=SECOND // 2)
    assert plan.blocked[0].at == NOW + 3 * SECOND
    limit = plan.blocked[0].why
    assert plan.blocked[0].limit(NOW) == Code.PREEMPTS_LATER(limit, 3 * SECOND)
    assert plan.blocked[0].limit(NOW + HOUR) == limit
    builder = ViewBuilder(pool(1, 1))
    builder.run(job(1, 600, "basic"))
    fresh(builder, job(1, 60, "standard"))
    assert 15 * MINUTE < planned("sla", builder)[0].blocked[0].at - NOW < 16 * MINUTE


def test_sla_preempts_for_a_deadline_when_it_has_to_and_not_before():
    """A basic job of an hour: it presses when half an hour is left to spare."""
    for due, moved in ((3 * HOUR, False), (89 * MINUTE, True), (50 * MINUTE, False)):
        builder = ViewBuilder(pool(1, 1))
        builder.run(job(1, 6000, "standard"))
        urgent = fresh(builder, job(1, 60, "basic"), deadline=NOW + due)
        plan, starts, gone = planned("sla", builder)
        assert (starts == [urgent]) is moved and bool(gone) is moved, due
        if due == 3 * HOUR:
            assert plan.wake.at - NOW == 90 * MINUTE + 1 and plan.blocked[0].at == plan.wake.at
        if moved:
            assert "DeadlineNear" in str(plan.moves[-1].why)


def test_a_deadline_is_kept_from_further_off_where_estimates_are_wrong():
    builder = ViewBuilder(pool(1, 1))
    builder.run(job(1, 6000, "standard"))
    urgent = fresh(builder, job(1, 60, "basic"), deadline=NOW + 3 * HOUR)
    view = builder.view()
    view.estimate_sigma = 1.0
    assert [move.job for move in make("sla").plan(view).moves][-1:] == [urgent]


def test_no_weight_puts_a_basic_job_before_a_premium_one():
    for weight in (1e-302, 1e6):
        builder = ViewBuilder(pool(1, 1))
        basic, premium = builder.run(job(1, 60, "basic"), weight=weight), fresh(builder, job(1, 60, "premium"))
        _, starts, gone = planned("sla", builder)
        assert (starts, gone) == ([premium], [basic])


def test_of_equal_jobs_the_one_of_more_weight_goes_first():
    for policy, weights, first in (("sla", (1.0, 4.0), 1), ("sla", (4.0, 1.0), 0), ("sla", (1.0, 1.0), 0)):
        builder = ViewBuilder(pool(1, 1))
        jobs = [builder.queue(job(1, 60, "standard"), weight=weight) for weight in weights]
        _, starts, _ = planned(policy, builder)
        assert starts == [jobs[first]]


def test_sla_takes_the_victim_that_loses_least():
    builder = ViewBuilder(pool(1, 2))
    cheap = builder.run(job(1, 600, "basic"))
    builder.run(job(1, 600, "basic"), level=int(Level.REQUEUE), ideal=HOUR)
    fresh(builder, job(1, 60, "premium"))
    assert planned("sla", builder)[2] == [cheap]


def test_sla_shrinks_before_it_suspends_and_grows_when_nobody_waits():
    builder = ViewBuilder(pool(1, 4))
    elastic = builder.run(job(4, 600, "basic", min_devices=1))
    fresh(builder, job(1, 60, "premium"))
    plan, starts, gone = planned("sla", builder)
    assert len(starts) == 1 and not gone and isinstance(plan.moves[0], Resize) and plan.moves[0].job == elastic
    builder = ViewBuilder(pool(1, 4))
    elastic = builder.run(job(4, 600, "basic", min_devices=1), 1)
    moves = planned("sla", builder)[0].moves
    assert [type(move) for move in moves] == [Resize] and moves[0].allocation[0].mask == 15


def test_sla_shrinks_no_job_so_that_a_rank_has_devices_of_two_nodes():
    for nodes, shrinks in ((2, False), (1, True)):  # on one node, ranks stay there whatever is taken
        builder = ViewBuilder(pool(nodes, 8 // nodes))
        pairs = JobSpec(command=("x",), ranks=2, devices=8, min_devices=4, expected_us=600 * MINUTE, tier="basic")
        elastic = builder.run(pairs, level=int(Level.COOPERATIVE))
        fresh(builder, job(2, 60, "premium"))
        plan, starts, gone = planned("sla", builder)
        check_plan(builder.view(), plan)
        assert len(starts) == 1 and gone == ([] if shrinks else [elastic])
        assert [move.job for move in plan.moves if isinstance(move, Resize)] == ([elastic] if shrinks else [])


def test_sla_sleeps_when_nothing_waits():
    builder = ViewBuilder(pool(2, 4))
    builder.run(job(2))
    assert planned("sla", builder)[0].wake.at == 0


@given(
    st.integers(1, 16),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 50)), max_size=8),
    st.lists(st.tuples(st.integers(1, 16), st.integers(1, 60)), min_size=1, max_size=20),
)
@settings(max_examples=examples(200), deadline=None)
def test_reservations_never_overlap_beyond_what_is_free(free, running, queue):
    ends, held = np.array([e for _, e in running], dtype=int), np.array([h for h, _ in running], dtype=int)
    profile = Profile(0, free, ends, held)
    total = free + int(held.sum())
    booked = []
    for need, lasting in queue:
        at = profile.earliest(need, lasting)
        assert (at < 0) == (need > total)
        if at >= 0:
            profile.reserve(at, lasting, need)
            booked.append((at, lasting, need))
    for now in range(200):
        there = free + int(held[ends <= now].sum())
        assert sum(need for at, lasting, need in booked if at <= now < at + lasting) <= there


@given(st.lists(st.tuples(st.integers(1, 8), st.integers(1, 90)), min_size=2, max_size=12), st.integers(0, 8))
@settings(max_examples=examples(100), deadline=None)
def test_the_head_is_never_delayed_by_those_who_pass_it(queue, busy):
    builder = ViewBuilder(pool(8, 1))
    for index in range(busy):
        builder.run(job(1, minutes=10 * (index + 1)))
    jobs = [builder.queue(job(devices, minutes, placement="any")) for devices, minutes in queue]
    _, starts, _ = planned("fifo-backfill", builder)
    head = next((number for number in jobs if number not in starts), None)
    if head is None:
        return
    need = builder.specs[head].devices
    ends = sorted(10 * (index + 1) for index in range(busy))
    due = next((0, *ends)[count] for count in range(busy + 1) if 8 - busy + count >= need)
    before = [number for number in starts if number < head]
    later = [number for number in starts if number > head]
    clash = [builder.specs[number] for number in later if builder.specs[number].expected_us > due * MINUTE]
    ahead = [builder.specs[number] for number in before if builder.specs[number].expected_us > due * MINUTE]
    there = 8 - busy + sum(end <= due for end in ends) - sum(spec.devices for spec in ahead)
    if there >= need:
        assert sum(spec.devices for spec in clash) <= there - need
