"""``tide why``: the reason is the engine's own, and the change it offers really starts the job."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.units import MINUTE
from tidewright.engine import events as ev
from tidewright.engine.requests.amend import amend
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.explain.ahead import ahead_of
from tidewright.explain.requests import amended
from tidewright.explain.trial import settle, starts
from tidewright.model.cause import Code, reported
from tidewright.model.job import Dependency, JobSpec, State
from tidewright.model.node import NodeSpec, Part
from tidewright.plan.advice import CONSEQUENCE
from tidewright.plan.explain import Change
from tidewright.plan.moves import Start, Suspend
from tidewright.plan.reasons import Reason
from tidewright.policy.registry import make
from tidewright.testing.causes import codes, within
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples

GIB = 2**30


def world(policy: str = "sla", **pool) -> Worldlet:
    return Worldlet(planner=make(policy), **{"nodes": 2, "devices": 8, "device_memory": 80 * GIB, **pool})


def why(busy: Worldlet, job: int):
    return explain(busy.engine, busy.planner, job)


def busy_pool(seed: int, policy: str) -> tuple[Worldlet, list[int]]:
    """A pool in use, and jobs that wait for it."""
    dice = random.Random(seed)
    busy = world(
        policy, settings=EngineSettings(check_every=1000)
    )  # what is tried here is not the book, hundreds of forks of it
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
                min_devices=devices // 2 if dice.random() < 0.3 else 0,
            )
        )
        busy.later(dice.randrange(1, 5) * MINUTE)
    if dice.random() < 0.2:
        busy.tell(ev.NodeDrain("n1", True))
    book = busy.engine.book
    return busy, [job for job in jobs if busy.state(job) is State.QUEUED and job not in book.reservations][:3]


POLICIES = ["fifo", "fifo-backfill", "srtf", "las", "sla", "static", "sjf"]


def starts_with(busy: Worldlet, job: int, change: Change) -> bool:
    """Whether the job starts once a change is made, by a fork of its own."""
    fork, planner, book = busy.engine.fork(), busy.planner, busy.engine.book
    fork.replan()
    if change.kind == "request" and change.devices and not change.flag:
        return settle(fork, planner, [ev.Scale(job, change.devices, "s")], job)
    if change.kind in ("request", "tier"):
        spec = amended(book.specs[job], change)
        assert spec != book.specs[job]
        amend(fork.book, job, spec)
        return starts(fork, planner, job)
    if change.kind == "wait":
        return settle(fork, planner, [ev.Exited(one, book.jobs[one].attempt, 0) for one in change.jobs], job)
    if change.kind in ("cancel", "cancel-waiting"):
        assert all((one in book.allocations) is (change.kind == "cancel") for one in change.jobs)
        fork = busy.engine.fork()
        return settle(fork, planner, [ev.Cancel(one) for one in change.jobs], job) or starts(fork, planner, job)
    if change.kind == "scale":
        assert change.sizes == tuple(book.specs[one].floor for one in change.jobs)
        scales = [ev.Scale(one, size, f"s{one}") for one, size in zip(change.jobs, change.sizes, strict=True)]
        return settle(fork, planner, list(scales), job)
    if change.kind == "undrain":
        return settle(fork, planner, [ev.NodeDrain(node, False) for node in change.nodes], job)
    if change.kind == "nodes":
        more = [
            NodeSpec(name=f"more{at}", kind="h100", devices=8, device_memory=80 * GIB) for at in range(change.count)
        ]
        return settle(fork, planner, [ev.NodeUp(node, "1") for node in more], job)
    moves = [ev.Move(one, (node,), f"m{one}") for one, node in zip(change.jobs, change.nodes, strict=True)]
    return settle(fork, planner, list(moves), job) or starts(fork, planner, job)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(POLICIES))
def test_every_change_offered_starts_the_job(seed: int, policy: str) -> None:
    busy, waiting = busy_pool(seed, policy)
    for job in waiting:
        before = busy.engine.snapshot()
        said = why(busy, job)
        assert busy.engine.snapshot() == before, "asking changes nothing"
        assert said.waiting and said.why
        assert said.reason is not None and said.consequence == CONSEQUENCE[said.reason]
        if said.dead_end is not None:
            assert said.change is None and len(said.changes) == 1
            continue
        for change in said.changes:
            assert starts_with(busy, job, change), (change, said)


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), policy=st.sampled_from(POLICIES))
def test_no_smaller_change_of_a_kind_would_do(seed: int, policy: str) -> None:
    """By trying all of them: numbers of devices, nodes, and single jobs that end."""
    busy, waiting = busy_pool(seed, policy)
    for job in waiting:
        said, spec = why(busy, job), busy.engine.book.specs[job]
        if said.reason in (Reason.PLANNING, Reason.DEVICES_RESERVED):
            continue
        fewer = [
            c for c in range(1, spec.floor) if starts_with(busy, job, Change("request", Code.SPREAD(), "", devices=c))
        ]
        fewer = [] if spec.gpu_memory else fewer
        assert [one.devices for one in said.changes if one.devices] == fewer[-1:]
        for change in said.changes:
            if change.kind == "nodes" and change.count > 1:
                assert not starts_with(busy, job, msgspec.structs.replace(change, count=change.count - 1))
        alone = [
            one for one in busy.engine.book.allocations
            if one != job and starts_with(busy, job, Change("cancel", Code.SPREAD(), "", jobs=(one,)))
        ]  # fmt: skip
        ahead = [
            one for one in (*busy.engine.book.reservations, *ahead_of(busy.engine.view(), busy.planner, job).jobs)
            if one not in busy.engine.book.allocations
            and starts_with(busy, job, Change("cancel-waiting", Code.SPREAD(), "", jobs=(one,)))
        ]  # fmt: skip
        assert bool(ahead) == any(one.kind == "cancel-waiting" for one in said.changes)
        offered = [one.jobs for one in said.changes if one.kind == "cancel"]
        assert bool(offered) == bool(alone), (offered, alone, said)
        table = busy.engine.book.table
        if alone:
            cost = {one: (int(table.tier[table.row[one]]), int(table.attained[table.row[one]])) for one in alone}
            assert cost[offered[0][0]] == min(cost.values())
            soonest = next(one.jobs for one in said.changes if one.kind == "wait")
            assert len(soonest) == 1 and soonest[0] in alone


def test_fewer_devices_are_offered_and_the_holders_are_named() -> None:
    busy = world("fifo")
    holder = busy.submit(12, placement="any", name="big", tier="premium")
    asker = busy.submit(8, placement="any")
    said = why(busy, asker)
    assert (said.reason, said.need, said.free) == (Reason.NO_CAPACITY, 8, 4)
    assert [(one.job, one.name, one.tier, one.devices) for one in said.holders] == [(holder, "big", "premium", 12)]
    assert said.change is not None
    assert (said.change.flag, said.change.what) == ("", Code.FEWER_DEVICES(4, 8))


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
    busy.submit(16, placement="any")
    behind = busy.submit(1)
    assert why(busy, behind).ahead and [why(busy, job).ahead for job in (later, held)] == [0, 0], (
        "no queue is their limit"
    )
    assert why(busy, held).first_ahead is None and not why(busy, held).order
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
    drained = isinstance(event, ev.NodeDrain)
    assert {one.kind for one in said.changes} <= ({"nodes", "undrain"} if drained else {"nodes", "none"})
    assert any(one.kind == "undrain" for one in said.changes) is drained


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


def test_every_limit_says_whether_it_is_of_the_pool_and_keeps_its_code() -> None:
    assert all(type(reason.of_the_pool) is bool and Reason(reason.value) is reason for reason in Reason)
    assert {reason for reason in Reason if not reason.of_the_pool} == {
        Reason.DEVICES_RESERVED, Reason.DEPENDENCY, Reason.USER_HOLD, Reason.SERVICE_IMAGE, Reason.ARRAY_LIMIT, Reason.BACKOFF,
            Reason.RUNTIME, Reason.PLANNING,
        }  # fmt: skip
    assert msgspec.json.decode(b'"HomeBusy"', type=Reason) is Reason.PINNED_NODE_BUSY
    assert msgspec.json.encode(Reason.CPUS) == b'"Cpus"'


def test_changes_are_looked_for_where_they_may_lift_the_limit() -> None:
    busy = world(devices=4)
    for _ in range(2):
        busy.submit(4, tier="premium")
    waits = busy.submit(4)
    held = busy.submit(1)
    busy.tell(ev.Hold(held, "h"))
    assert why(busy, waits).liftable and why(busy, waits).changes
    assert not why(busy, held).liftable and not why(busy, held).changes
    assert not why(busy, 1).liftable
