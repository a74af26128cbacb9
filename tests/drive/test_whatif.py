"""``tide why``: the reason is the engine's own, and the change it offers really starts the job."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import MINUTE
from tidewright.drive.whatif import amended, explain, starts
from tidewright.engine import events as ev
from tidewright.engine.requests.amend import amend
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code, reported
from tidewright.model.job import Dependency, JobSpec, State
from tidewright.model.node import NodeSpec, Part
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.plan.sentences import CONSEQUENCE
from tidewright.policy.registry import make
from tidewright.testing.causes import codes, within
from tidewright.testing.worldlet import Worldlet

GIB = 2**30


def world(policy: str = "sla", **pool) -> Worldlet:
    return Worldlet(planner=make(policy), **{"nodes": 2, "devices": 8, "device_memory": 80 * GIB, **pool})


def why(busy: Worldlet, job: int):
    return explain(busy.engine, busy.planner, job)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(["fifo", "fifo-backfill", "srtf", "las", "sla", "static"]))
def test_the_change_offered_starts_the_job_in_simulation(seed: int, policy: str) -> None:
    """Applied to a fork by amending the waiting job, and by the world itself when the pool is asked again."""
    dice = random.Random(seed)
    busy = world(policy)
    jobs = []
    for _ in range(dice.randrange(4, 12)):
        devices = dice.choice((1, 2, 4, 8, 16))
        share = dice.random() < 0.3 and devices == 1
        jobs.append(
            busy.submit(
                devices,
                tier=dice.choice(("basic", "standard", "premium")),
                device_types=dice.choice(((), ("h100",))),
                gpu_memory=dice.choice((10, 50, 79)) * GIB if share else 0,
                placement=dice.choice(("consolidate", "one-node", "any")) if devices <= 8 else "any",
                expected_us=dice.randrange(1, 600) * MINUTE,
            )
        )
        busy.later(dice.randrange(1, 5) * MINUTE)
    waiting = [job for job in jobs if busy.state(job) is State.QUEUED and job not in busy.engine.book.reservations]
    for job in waiting[:3]:
        before = busy.engine.snapshot()
        said = why(busy, job)
        assert busy.engine.snapshot() == before, "asking changes nothing"
        assert said.waiting
        assert said.reason is not None and said.consequence == CONSEQUENCE[said.reason]
        assert said.why
        if said.change is None:
            continue
        fork = busy.engine.fork()
        spec = amended(busy.engine.book.specs[job], said.change)
        assert spec != busy.engine.book.specs[job]
        amend(fork.book, job, spec)
        assert starts(fork, make(policy), job)


def test_fewer_devices_are_offered_and_the_holders_are_named() -> None:
    busy = world("fifo")
    holder = busy.submit(12, placement="any", name="big", tier="premium")
    asker = busy.submit(8, placement="any")
    said = why(busy, asker)
    assert (said.reason, said.need, said.free) == (Reason.NO_CAPACITY, 8, 4)
    assert [(one.job, one.name, one.tier, one.devices) for one in said.holders] == [(holder, "big", "premium", 12)]
    assert said.change is not None
    assert (said.change.flag, said.change.what) == ("-g 4", Code.FEWER_DEVICES(4, 8))


def test_spreading_is_offered_before_shrinking() -> None:
    busy = world("fifo")
    for _ in range(2):
        busy.submit(5)
    asker = busy.submit(6)
    said = why(busy, asker)
    assert said.reason is Reason.FRAGMENTED
    assert said.change is not None and said.change.flag == "--placement any"


def test_another_device_type_is_offered() -> None:
    busy = world("fifo")
    busy.tell(ev.NodeUp(busy.nodes[0].__class__(name="old", kind="v100", devices=8), "1"))
    busy.submit(16, placement="any", device_types=("h100",))
    said = why(busy, busy.submit(2, device_types=("h100",)))
    assert said.change is not None and said.change.flag == "--type h100,v100"


def test_a_higher_tier_is_offered_where_it_would_send_others_away() -> None:
    busy = world()
    for _ in range(2):
        busy.submit(8, tier="basic", expected_us=600 * MINUTE)
    busy.later(5 * MINUTE)
    said = why(busy, busy.submit(8, tier="basic", expected_us=6000 * MINUTE))
    assert said.change is not None
    assert said.change.tier in ("standard", "premium")


def test_jobs_that_wait_for_people_or_jobs_say_so_and_offer_nothing() -> None:
    busy = world("fifo")
    first = busy.submit(1)
    later, held = busy.submit(1, after=(Dependency("afterok", first),)), busy.submit(1)
    busy.tell(ev.Hold(held, "h"))
    assert why(busy, later).reason is Reason.DEPENDENCY
    assert why(busy, later).why == Code.WAITS_FOR_JOBS((first,))
    assert why(busy, held).reason is Reason.USER_HOLD
    assert why(busy, later).change is None
    assert not why(busy, first).waiting


def test_devices_promised_and_not_yet_free_are_named_with_their_users() -> None:
    busy = world()
    basic = busy.submit(16, placement="any", tier="basic")
    busy.later(5 * MINUTE)
    busy.obey = False
    premium = busy.submit(16, placement="any", tier="premium")
    said = why(busy, premium)
    assert said.reason is Reason.DEVICES_RESERVED
    assert [one.job for one in said.holders] == [basic]


@pytest.mark.parametrize("event", [ev.NodeSilent("n0", "no answer"), ev.NodeDrain("n0", True, "service"), None])
def test_a_pool_without_a_working_node_is_the_reason(event) -> None:
    busy = Worldlet(0 if event is None else 1, 2, make("sla"), live_settings(check_every=1), kind="cpu")
    if event is not None:
        busy.tell(event)
    job = busy.reply(ev.Submit(JobSpec(command=("true",)), "a"), "a").job
    said = why(busy, job)
    assert said.reason is Reason.NODES_DOWN
    assert (Code.POOL_EMPTY() if event is None else reported(event.why)) in within(said.why)
    assert said.change is None


def test_nobody_waits_behind_zero_jobs() -> None:
    busy = world()
    for _ in range(2):
        busy.submit(8, tier="basic")
    said = why(busy, busy.submit(8, tier="basic"))
    assert said.reason is not Reason.BEHIND
    assert Code.BEHIND_JOBS not in codes(said.why)


def test_only_holders_on_nodes_that_could_take_the_job_are_named() -> None:
    """An image is restored on nodes that take full images: what jobs on other nodes hold would not help."""
    busy = Worldlet(1, 4, settings=live_settings(check_every=1), kind="cpu", full=True)
    busy.tell(ev.NodeUp(NodeSpec(name="bare", kind="cpu", devices=8), "1"))
    imaged = busy.submit(4)
    busy.plan(Start(imaged, (Part(0, 15),), "test"))
    busy.plan(Suspend(imaged, "room"))
    here, elsewhere = busy.submit(2), busy.submit(8)
    busy.plan(Start(here, (Part(0, 3),), "test"), Start(elsewhere, (Part(1, 255),), "test"))
    busy.planner = make("fifo")
    said = why(busy, imaged)
    assert said.waiting and [one.job for one in said.holders] == [here]
