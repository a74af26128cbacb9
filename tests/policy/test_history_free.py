"""What planners keep for speed changes no plan: a planner with a history, a fresh one, and one that keeps nothing agree."""

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.estimate.cost import pause_us
from tidewright.placement.could_hold import devices_on
from tidewright.policy.baselines import backfill
from tidewright.policy.baselines.profile import Profile
from tidewright.policy.compose import Composer
from tidewright.policy.preferences import median
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Simulation
from tidewright.sim.traces import load_trace
from tidewright.testing.views import random_view

from ..sizes import examples

NAMES = ["sla", "sla:max_wait=20m,overdue_share=1.0", "srtf", "las", "fifo", "fifo-backfill", "static"]


class Compared:
    """A planner that plans on through a run, and beside it at each round one that has just been made."""

    def __init__(self, policy: str) -> None:
        self.policy, self.name = policy, policy
        self.veteran = make(policy)
        self.rounds = 0

    def plan(self, view):
        plan = self.veteran.plan(view)
        view.jobs.memo.clear()
        assert msgspec.json.encode(make(self.policy).plan(view)) == msgspec.json.encode(plan), view.now
        self.rounds += 1
        return plan


@pytest.mark.parametrize("policy", NAMES)
@pytest.mark.parametrize("cluster", ["6x8", "4x8:v100,4x4:a100"])
def test_a_fresh_planner_gives_the_plan_of_one_that_has_planned_all_along(policy, cluster):
    nodes = load_cluster(cluster)
    jobs = examples(150)
    trace = load_trace(f"synthetic:jobs={jobs},load=1.4,elastic=0.3,sizes=1:0.7/2:0.1/4:0.1/8:0.1", 48)
    planner = Compared(policy)
    assert Simulation(trace, nodes, planner).run().completed == jobs
    assert planner.rounds > jobs


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_one_index_for_all_overdue_jobs_finds_what_an_index_for_each_finds(seed, mixed):
    def encoded():
        view = random_view(seed, 8, 60, 60, mixed=mixed)
        return msgspec.json.encode(make("sla:max_wait=1m,overdue_share=1.0").plan(view))

    kept = encoded()
    force = Composer.force

    def forgetful(self, row, victims, cost):
        self._forcer = None
        return force(self, row, victims, cost)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Composer, "force", forgetful)
        assert encoded() == kept


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_a_backfill_walk_that_ends_early_plans_what_the_whole_walk_plans(seed, mixed):
    def encoded():
        return msgspec.json.encode(make("fifo-backfill").plan(random_view(seed, 5, 20 + seed % 30, 60, mixed=mixed)))

    ended = encoded()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backfill, "_STRIDE", 10**9)  # the question is then never asked
        assert encoded() == ended


@given(
    st.integers(0, 6),
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 30)), max_size=8),
    st.lists(st.tuples(st.integers(1, 8), st.integers(1, 20), st.integers(0, 40)), min_size=1, max_size=12),
)
@settings(max_examples=examples(200), deadline=None)
def test_the_profile_finds_the_first_time_at_which_enough_stay_free(free, running, queue):
    ends, held = np.array([end for _, end in running], dtype=int), np.array([more for more, _ in running], dtype=int)
    profile = Profile(0, free, ends, held)
    there = [free + int(held[ends <= at].sum()) for at in range(1000)]
    for need, lasting, after in queue:
        fits = (at for at in range(after, 900) if min(there[at : at + lasting]) >= need)
        at = profile.earliest(need, lasting, after)
        assert at == next(fits, -1)
        if at >= 0:
            profile.reserve(at, lasting, need)
            there[at : at + lasting] = [left - need for left in there[at : at + lasting]]


@given(st.integers(0, 10_000), st.booleans())
@settings(max_examples=examples(60), deadline=None)
def test_devices_by_node_are_those_of_the_allocations(seed, mixed):
    view = random_view(seed, 6, 40, 5, mixed=mixed)
    expected = [0] * len(view.layout.nodes)
    for parts in view.allocations.values():
        for node, mask, _, _ in parts:
            expected[node] += mask.bit_count()
    assert devices_on(view, view.jobs.held > 0) == expected


@given(st.lists(st.floats(0, 1e15), min_size=1, max_size=9))
def test_the_median_is_that_of_numpy(values):
    assert median(np.array(values)) == np.median(values)


def test_an_estimate_is_worked_out_once_for_a_view_and_again_for_the_next():
    first, second = random_view(3).jobs, random_view(4).jobs
    assert pause_us(first) is pause_us(first)
    assert pause_us(first) is not pause_us(second)
    assert first.waiting is first.waiting
