"""Every built-in policy passes the kit that third parties run, settings included."""

import pytest
from hypothesis import given, settings

from tidewright.policy.registry import make, policies
from tidewright.testing.policies import check_plan, check_policy
from tidewright.testing.views import random_view, views

from ..sizes import examples

NAMES = ["fifo", "fifo-backfill", "srtf", "las", "static", "sla"]
WITH_SETTINGS = [
    "las:round=6m",
    "las:thresholds=10m+1h+1d",
    "srtf:min_run=1m",
    "sla:min_run=0s,max_wait=1h,pressing=0.2",
]


@pytest.mark.parametrize("name", NAMES)
def test_built_in_policies_pass_the_kit(name):
    check_policy(policies.get(name))


@pytest.mark.parametrize("name", NAMES + WITH_SETTINGS)
@given(view=views())
@settings(max_examples=examples(25), deadline=None)
def test_plans_of_random_views_could_land(name, view):
    check_plan(view, make(name).plan(view))


def test_a_job_on_a_node_that_takes_no_work_is_sent_away_whole_or_not_at_all():
    view = random_view(3492, 4, 7, 28, mixed=True, elastic=True)
    check_plan(view, make("sla:min_run=0s,max_wait=1h,pressing=0.2").plan(view))
