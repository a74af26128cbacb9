"""Shares of a device: of compute and memory alike, real-time and best-effort."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import SECOND
from tidewright.engine import events as ev
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, State, problems, share_of
from tidewright.model.node import Part, PartResources
from tidewright.plan.reasons import Reason
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples

GIB = 2**30
BEST_EFFORT = {"share_class": "be", "tier": "basic"}


def world(policy: str = "fifo", devices: int = 1, memory: int = 40 * GIB, **more: Any) -> Worldlet:
    return Worldlet(1, devices, make(policy), live_settings(check_every=1), kind="h100", device_memory=memory, **more)


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({"gpu_share": 1001}, "share"),
        ({"gpu_share": -1}, "share"),
        ({"gpu_share": 500, "gpu_memory": GIB}, "share"),
        ({"gpu_share": 500, "gpu_milli": 5}, "share"),
        ({"gpu_share": 500, "devices": 2, "ranks": 2}, "share"),
        ({"share_class": "be", "tier": "basic"}, "class"),
        ({"share_class": "be", "tier": "basic", "gpu_milli": 5}, "class"),
        ({"share_class": "be", "gpu_share": 500}, "class"),
        ({"gpu_share": 5, "runtime": "r", "devices": 0}, "device_types, gpu_memory, share"),
    ],
)
def test_shares_that_make_no_sense_are_problems_of_the_spec(fields: dict[str, Any], key: str) -> None:
    assert [text.partition(":")[0] for text in problems(JobSpec(command=("true",), **fields))] == [key]


@pytest.mark.parametrize(
    "fields", [{"gpu_share": 1}, {"gpu_share": 500, **BEST_EFFORT}, {"gpu_memory": 1, **BEST_EFFORT}]
)
def test_shares_that_are_sound(fields: dict[str, Any]) -> None:
    assert not problems(JobSpec(command=("true",), **fields))


def test_a_fraction_takes_compute_and_memory_alike() -> None:
    pool = world()
    half = pool.submit(1, gpu_share=500)
    third = pool.submit(1, gpu_share=300)
    more = pool.submit(1, gpu_share=201)
    pool.later(SECOND)
    assert [pool.state(job) for job in (half, third, more)] == [State.RUNNING, State.RUNNING, State.QUEUED]
    assert pool.engine.book.allocations[half] == (Part(0, 1, 500),)
    assert pool.engine.book.blocked[more].reason is Reason.NO_CAPACITY
    assert pool.engine.book.blocked[more].why == Code.FRACTION_SHORT(201, "h100")
    assert share_of(pool.engine.book.specs[half], 40 * GIB) == (500, 20 * GIB)
    assert share_of(JobSpec(gpu_memory=10 * GIB), 40 * GIB) == (250, 10 * GIB)
    assert share_of(JobSpec(gpu_memory=10 * GIB, gpu_milli=7), 40 * GIB) == (7, 10 * GIB)
    assert share_of(JobSpec(gpu_memory=10 * GIB), 0) == (0, 10 * GIB)
    pool.tell(ev.Exited(third, 1, 0))
    pool.later(SECOND)
    assert pool.state(more) is State.RUNNING


def test_best_effort_shares_fill_what_real_time_shares_leave_and_keep_to_the_memory() -> None:
    pool = world()
    served = pool.submit(1, gpu_milli=1000 - 10, gpu_memory=20 * GIB)
    filler = pool.submit(1, gpu_share=400, **BEST_EFFORT)
    crowd = pool.submit(1, gpu_share=101, **BEST_EFFORT)
    pool.later(SECOND)
    assert [pool.state(job) for job in (served, filler, crowd)] == [State.RUNNING, State.RUNNING, State.QUEUED]
    assert pool.engine.book.allocations[filler] == (Part(0, 1, 1, PartResources(0, 0, 16 * GIB)),)
    pool.tell(ev.Exited(served, 1, 0))
    pool.later(SECOND)
    assert pool.state(crowd) is State.RUNNING
    # Two best-effort shares hold next to no compute: a real-time one of nearly the whole device is placed beside them.
    again = pool.submit(1, gpu_milli=900, gpu_memory=10 * GIB)
    pool.later(SECOND)
    assert pool.state(again) is State.RUNNING


def test_where_the_memory_of_a_device_is_not_known_best_effort_shares_count_by_compute() -> None:
    pool = world(memory=0)
    first = pool.submit(1, gpu_share=600, **BEST_EFFORT)
    second = pool.submit(1, gpu_share=500, **BEST_EFFORT)
    pool.later(SECOND)
    assert (pool.state(first), pool.state(second)) == (State.RUNNING, State.QUEUED)
    assert pool.engine.book.allocations[first] == (Part(0, 1, 600),)


@pytest.mark.parametrize("policy", ["sla", "srtf"])
def test_a_job_of_whole_devices_preempts_best_effort_shares(policy: str) -> None:
    pool = world(policy, full=True)
    fillers = [pool.submit(1, gpu_share=400, expected_us=3600 * SECOND, **BEST_EFFORT) for _ in range(2)]
    pool.later(120 * SECOND)
    assert {pool.state(job) for job in fillers} == {State.RUNNING}
    whole = pool.submit(1, tier="premium", expected_us=60 * SECOND)
    pool.later(300 * SECOND)
    assert pool.engine.book.outcomes.get(whole) is not None or pool.state(whole) is State.RUNNING


shares = st.lists(
    st.tuples(st.integers(1, 1000), st.sampled_from(["rt", "be"]), st.integers(0, 40)), min_size=1, max_size=12
)


@given(asked=shares, policy=st.sampled_from(["fifo", "sla", "srtf"]))
@settings(max_examples=examples(40), deadline=None)
def test_no_device_is_over_committed_and_what_fits_alone_runs(asked: list[tuple[int, str, int]], policy: str) -> None:
    pool = world(policy, devices=2)
    for milli, share_class, gib in asked:
        fields: dict[str, Any] = {"gpu_memory": gib * GIB} if gib else {"gpu_share": milli}
        if gib and share_class == "rt":
            fields["gpu_milli"] = milli
        pool.submit(1, share_class=share_class, tier="basic", **fields)
    pool.later(SECOND)
    book = pool.engine.book
    for device in (1, 2):
        held = [book.specs[job] for job, parts in book.allocations.items() if parts[0].mask == device]
        assert sum(share_of(spec, 40 * GIB).milli for spec in held if not spec.best_effort) <= 1000
        assert sum(share_of(spec, 40 * GIB).memory for spec in held) <= 40 * GIB
    assert book.allocations
