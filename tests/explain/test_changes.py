"""Changes of waiting jobs, of sizes, of nodes and of amounts: each is the least of its kind, and the mildest kind is first."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest
from msgspec.structs import replace

from tidewright.base.units import HOUR, MINUTE
from tidewright.engine import events as ev
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.explain import search
from tidewright.explain.changes import smallest_changes
from tidewright.model.cause import Code
from tidewright.model.job import Dependency, JobSpec, State
from tidewright.model.service import ServiceSpec
from tidewright.plan.advice import KINDS_OF_CHANGE, REASON_REMEDY
from tidewright.plan.explain import Change
from tidewright.plan.reasons import Reason
from tidewright.plan.render import misused, remedy, render
from tidewright.policy.registry import make
from tidewright.testing.explainer import explain
from tidewright.testing.worldlet import Worldlet

from .test_why import starts_with, why, world

MIB, GIB = 2**20, 2**30


def offered(busy: Worldlet, job: int, kind: str) -> list[Change]:
    """What of a kind is offered; each is tried once more."""
    said = why(busy, job)
    for change in said.changes:
        assert change.kind == "none" or starts_with(busy, job, change), change
        assert not misused(change.what), change
    return [one for one in said.changes if one.kind == kind]


def test_a_waiting_job_that_blocks_the_queue_is_offered_for_cancelling() -> None:
    busy = world("fifo")
    busy.submit(12, placement="any", tier="premium")
    blocks = busy.submit(16, placement="any", tier="basic")
    (change,) = offered(busy, busy.submit(2), "cancel-waiting")
    assert change.jobs == (blocks,)
    assert render(change.what) == f"without job {blocks} (basic, 16 devices), which waits and is served before it"


def test_of_waiting_jobs_the_one_that_loses_least_is_offered() -> None:
    busy = Worldlet(1, 4, planner=make("fifo"))
    busy.submit(1, tier="premium")
    ahead = {tier: busy.submit(4, tier=tier) for tier in ("premium", "basic")}
    asker = busy.submit(3)
    assert offered(busy, asker, "cancel-waiting") == [], "one more blocks the queue either way"
    busy.tell(ev.Cancel(ahead["premium"]))
    assert [one.jobs for one in offered(busy, asker, "cancel-waiting")] == [(ahead["basic"],)]


@pytest.mark.parametrize(("kind", "offered"), [("afternotok", "wait"), ("afterok", "cancel"), ("afterany", "")])
def test_what_depends_on_the_end_of_a_job_decides_which_end_is_offered(kind: str, offered: str) -> None:
    """The dependent job was submitted first: where it may start, it takes the device."""
    busy = Worldlet(1, 1, planner=make("fifo"))
    first = busy.submit(1)
    busy.submit(1, after=(Dependency(kind, first),))
    asker = busy.submit(1, tier="premium")
    ends = [one for one in why(busy, asker).changes if one.kind in ("wait", "cancel")]
    assert [one.kind for one in ends] == ([offered] if offered else [])
    for one in ends:
        end = ev.Cancel(first) if one.kind == "cancel" else ev.Exited(first, 1, 0)
        busy.tell(end)
        assert busy.state(asker) is State.RUNNING


def test_a_runtime_is_not_waited_for_nor_its_clients_and_may_be_cancelled() -> None:
    busy = Worldlet(1, 2, planner=make("fifo"))
    host = busy.submit(1, name="vision", kind="runtime", preempt="requeue", user="ada", expected_us=MINUTE)
    busy.submit(0, ranks=1, runtime="vision", user="ada", expected_us=MINUTE)
    batch = busy.submit(1, expected_us=HOUR, tier="premium")
    busy.later(MINUTE // 2)
    both = busy.submit(2, tier="premium")
    kinds = [one.kind for one in why(busy, both).changes]
    assert "wait" not in kinds and "cancel" not in kinds, "neither device alone is enough"
    busy.tell(ev.Cancel(both))
    ends = {one.kind: one.jobs for one in why(busy, busy.submit(1)).changes}
    assert (ends["wait"], ends["cancel"]) == ((batch,), (host,))


def test_replicas_are_not_waited_for_and_cancelled_only_where_none_takes_their_place_first() -> None:
    busy = Worldlet(1, 4, make("fifo"), live_settings(check_every=1))
    replica = JobSpec(command=("serve",))
    spec = ServiceSpec(name="vision", replica=replica, min_replicas=4, max_replicas=4)
    assert busy.reply(ev.DeployService(spec, "d"), "d").error is None
    changes = offered(busy, asker := busy.submit(1), "cancel")
    assert len(changes) == 1 and not offered(busy, asker, "wait")
    busy.tell(ev.Cancel(changes[0].jobs[0]))
    assert busy.state(asker) is State.RUNNING, "it was submitted before the replica that is made anew"


def test_an_elastic_holder_is_offered_at_its_least_size() -> None:
    busy = world("fifo", nodes=1, full=True)
    elastic = busy.submit(8, min_devices=2, tier="basic", expected_us=600 * MINUTE)
    busy.later(5 * MINUTE)
    (change,) = offered(busy, busy.submit(4, tier="basic"), "scale")
    assert (change.jobs, change.sizes) == ((elastic,), (2,))
    assert render(change.what) == f"with job {elastic} scaled down to 2 devices"


def test_of_elastic_holders_that_lie_together_as_many_as_it_needs_are_offered() -> None:
    busy = world("fifo", nodes=1, devices=12, full=True)
    elastic = [busy.submit(4, min_devices=1, tier="basic") for _ in range(3)]
    busy.later(5 * MINUTE)
    (change,) = offered(busy, busy.submit(6, tier="basic"), "scale")
    assert len(change.jobs) == 2 and set(change.jobs) < set(elastic) and change.sizes == (1, 1)


@pytest.mark.parametrize(("devices", "nodes"), [(8, ("n1",)), (16, ("n1", "n2"))])
def test_nodes_that_would_start_it_are_offered_for_undraining(devices: int, nodes: tuple[str, ...]) -> None:
    busy = world("fifo", nodes=4)
    for node in ("n1", "n2", "n3"):
        busy.tell(ev.NodeDrain(node, True, "disk swap"))
    busy.tell(ev.NodeSilent("n3", "no answer"))
    busy.submit(8)
    (change,) = offered(busy, busy.submit(devices, placement="any"), "undrain")
    assert change.nodes == nodes
    assert render(change.what).endswith("(disk swap) schedulable again")


def test_a_cordoned_node_is_offered_too() -> None:
    busy = world("fifo")
    busy.submit(8)
    busy.obey = False
    for _ in range(busy.engine.settings.cordon_after):
        job = busy.submit(8)
        attempt = busy.engine.book.jobs[job].attempt
        busy.tell(ev.StartFailed(job, attempt, "no disk", node="n1", fault="node"))
        busy.tell(ev.Cancel(job))
    assert busy.engine.book.outages.cordoned
    (change,) = offered(busy, busy.submit(4), "undrain")
    assert change.nodes == ("n1",)


AMOUNTS: list[tuple[str, dict[str, Any], dict[str, Any], str, int]] = [
    ("gpu_memory", {"gpu_memory": 50 * GIB}, {"gpu_memory": 60 * GIB}, "gpu_memory", MIB),
    ("gpu_milli", {"gpu_milli": 437}, {"gpu_milli": 800}, "gpu_milli", 1),
    ("cpus_milli", {"cpus_milli": 24_700}, {"cpus_milli": 20_000}, "cpus_milli", 100),
    ("memory", {"memory": 37 * GIB + 5 * MIB}, {"memory": 90 * GIB}, "memory", MIB),
]


@pytest.mark.parametrize(("name", "held", "asked", "field", "step"), AMOUNTS, ids=lambda one: str(one)[:12])
def test_the_largest_amount_that_starts_is_offered(
    name: str, held: dict[str, Any], asked: dict[str, Any], field: str, step: int
) -> None:
    """One step more would not start it."""
    busy = Worldlet(
        1, 1 if "gpu" in name else 2, planner=make("fifo"), device_memory=80 * GIB, cpus=32, memory=120 * GIB
    )
    busy.submit(1, **held)
    job = busy.submit(1, **asked)
    (change,) = [one for one in offered(busy, job, "request") if getattr(one, field) > 0]
    value = getattr(change, field)
    assert value % step == 0 and value < asked[field]
    assert not starts_with(busy, job, replace(change, **{field: value + step}))
    assert change.flag.startswith("--")


def test_amounts_for_several_ranks_of_a_node_are_found_too() -> None:
    busy = Worldlet(1, 4, planner=make("fifo"), cpus=32, memory=120 * GIB)
    busy.submit(1, cpus_milli=5_000)
    job = busy.submit(3, cpus_milli=10_000)
    assert [one.cpus_milli for one in offered(busy, job, "request") if one.cpus_milli] == [9_000]


def test_the_mildest_kind_comes_first() -> None:
    busy = world("fifo", full=True)
    busy.tell(ev.NodeDrain("n1", True))
    busy.submit(4, min_devices=1, tier="basic", expected_us=MINUTE)
    busy.submit(2)
    busy.later(MINUTE)
    job = busy.submit(3)
    kinds = [one.kind for one in why(busy, job).changes]
    assert kinds == ["request", "scale", "undrain", "wait", "cancel", "nodes"]
    busy.tell(ev.Cancel(job))
    busy.submit(8, tier="basic")
    kinds = [one.kind for one in why(busy, busy.submit(2)).changes]
    assert kinds == ["undrain", "cancel-waiting", "nodes"]


@pytest.mark.parametrize("policy", ["fifo", "sla", "srtf"])
def test_where_many_jobs_wait_a_search_that_finds_nothing_makes_few_forks(
    policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each kind, whatever the number of candidates: restoring one is what takes time there."""
    monkeypatch.setattr(search, "_RESTORED", 0)
    busy = world(policy, nodes=4)
    for at in range(60):
        busy.submit(1, tier="premium", expected_us=MINUTE, preempt="none", min_devices=0 if at % 2 else 1)
    busy.submit(32, placement="any", tier="premium", expected_us=MINUTE)
    job = busy.submit(32, placement="any", tier="basic", expected_us=6000 * MINUTE)
    forks: list[int] = []
    restore = Engine.restore

    def counted(image: bytes) -> Engine:
        forks.append(1)
        return restore(image)

    monkeypatch.setattr(Engine, "restore", counted)
    smallest_changes(busy.engine.snapshot(), busy.planner, job)
    assert len(forks) <= 20, len(forks)


def test_time_that_is_up_ends_every_search() -> None:
    busy = world("fifo", full=True)
    busy.submit(12, placement="any", min_devices=2)
    busy.tell(ev.NodeDrain("n1", True))
    job = busy.submit(16, placement="any", gpu_memory=0)
    for calls in range(0, 40, 3):
        left = iter(range(calls))
        changes = smallest_changes(
            busy.engine.snapshot(), busy.planner, job, lambda left=left: next(left, None) is None
        )  # type: ignore[misc]
        for change in changes:
            assert change.kind == "none" or starts_with(busy, job, change), (calls, change)
        assert changes[0].kind != "none" or changes[0].what.code is Code.NO_CHANGE_IN_TIME
    assert explain(busy.engine, busy.planner, job).changes


def dead_end(busy: Worldlet, job: int) -> tuple[str, str]:
    """That nothing starts it, in words, and what to do next."""
    said = why(busy, job)
    assert said.dead_end is not None and said.change is None and not misused(said.dead_end)
    return render(said.dead_end), remedy(said.dead_end)


def test_where_nothing_starts_it_what_was_tried_is_said() -> None:
    busy = Worldlet(2, 4, planner=make("fifo"))
    for _ in range(2):
        busy.submit(4, preempt="none")
    for _ in range(300):
        busy.submit(8, placement="any")
    text, todo = dead_end(busy, job := busy.submit(1))
    assert text == (
        "not by itself; tried without success, each alone: a higher tier, the ends of running jobs, "
        "a running job cancelled, a waiting job cancelled, more nodes"
    )
    assert todo == f"see when it starts: tide eta {job}"


def test_where_there_is_nothing_to_change_that_is_said() -> None:
    busy = Worldlet(0, 2, planner=make("fifo"))
    busy.engine.step(0, [ev.Submit(JobSpec(command=("true",), tier="premium"), "a")])
    text, todo = dead_end(busy, 1)
    assert text.startswith("not by itself") and todo == "see which nodes there are: tide nodes"


def test_what_was_not_tried_for_want_of_time_is_not_said_to_fail() -> None:
    busy = world("fifo")
    for _ in range(3):
        busy.submit(16, placement="any")
    job = busy.submit(1)
    (change,) = smallest_changes(busy.engine.snapshot(), busy.planner, job, lambda: True)
    assert change.what.code is Code.NO_CHANGE_IN_TIME and change.what.args == ((), job)
    assert render(change.what) == "nothing found in the time allowed; tried: nothing yet"


def test_every_kind_of_change_has_words_and_every_other_limit_a_remedy() -> None:
    kinds = get_args(get_type_hints(Change)["kind"])
    assert {*KINDS_OF_CHANGE, "none"} == set(kinds)
    assert set(REASON_REMEDY) == {reason for reason in Reason if not reason.of_the_pool}
