"""The default policy under more work than the pool can do: it keeps its promises, and does not exchange equals."""

import numpy as np
import pytest

from tidewright.base.units import HOUR
from tidewright.policy.preferences import first_rows
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Options, simulate
from tidewright.sim.trace import make_trace
from tidewright.sim.traces import load_trace

from ..sizes import examples

SIZES = "sizes=1:0.6/2:0.1/4:0.15/8:0.13"


def run(policy: str, trace, cluster: str):
    return simulate(trace, load_cluster(cluster), make(policy), Options(cluster=cluster))


def kept(result) -> tuple[float, float]:
    """Shares of promises kept, by count and by work, of a trace of one tier."""
    (tier,) = (tier for tier in result.tiers if tier.jobs)
    return tier.attained, tier.attained_by_work


def per_run_hour(result, trace) -> float:
    return result.preemptions / (trace.duration.sum() / HOUR)


def identical(tier: int, hours: float, gap_s: float = 0.0, jobs: int = examples(400)):
    columns = np.arange(jobs) * gap_s, np.full(jobs, hours * 3600.0), np.ones(jobs, dtype=np.int64)
    return make_trace("identical", *columns, tier=np.full(jobs, tier, np.int8))


@pytest.mark.parametrize("hours", [1 / 3, 10.0])
@pytest.mark.parametrize("tier", [0, 1, 2])
def test_identical_jobs_run_one_after_the_other(tier, hours):
    assert run("sla", identical(tier, hours), "2x8").preemptions == 0


def test_identical_jobs_that_keep_coming_are_seldom_preempted():
    trace = identical(1, 2.0, gap_s=300.0, jobs=examples(300))
    assert per_run_hour(run("sla", trace, "2x8"), trace) < 0.1


@pytest.mark.parametrize("tier", ["standard", "premium"])
def test_more_promises_than_the_pool_can_keep_are_kept_as_well_as_by_any_other_policy(tier):
    trace = load_trace(f"synthetic:jobs=150,load=1.5,seed=1,max=4h,tiers={tier}:1,{SIZES}", 32)
    results = {policy: run(policy, trace, "4x8") for policy in ("sla", "srtf", "las")}
    count, work = kept(results["sla"])
    assert count >= max(kept(results[name])[0] for name in ("srtf", "las")) - 0.01
    assert work >= max(kept(results[name])[1] for name in ("srtf", "las")) - 0.01
    assert per_run_hour(results["sla"], trace) <= 1.0


def test_a_backlog_without_end_is_not_rotated():
    trace = load_trace(f"synthetic:jobs=120,load=20,median=3h,sigma=1,tiers=standard:1,{SIZES}", 16)
    assert per_run_hour(run("sla", trace, "2x8"), trace) <= 1.0


def test_equal_keys_go_by_id_however_many_there_are():
    ids = np.random.default_rng(1).permutation(1000)
    key = np.where(ids < 10, 0, 7)
    first = first_rows(np.arange(1000), key, ids, 50)
    assert ids[first].tolist() == list(range(50))


@pytest.mark.full
def test_promises_on_philly_are_kept_as_well_as_by_any_other_policy():
    trace = load_trace("philly:10000", 480)
    results = {policy: run(policy, trace, "philly-480") for policy in ("sla", "srtf", "las")}
    count, work = kept(results["sla"])
    assert count >= max(kept(results[name])[0] for name in ("srtf", "las")) - 0.01
    assert work >= max(kept(results[name])[1] for name in ("srtf", "las")) - 0.01
    assert per_run_hour(results["sla"], trace) <= 1.0
