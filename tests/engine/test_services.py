"""Services: as many replicas as are wanted, through ends, failures, updates and a restart of the controller."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.check import check_all
from tidewright.engine.engine import Engine
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, State
from tidewright.model.service import ServiceSpec, problems
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples


def world(devices: int = 8, policy: str = "sla") -> Worldlet:
    return Worldlet(1, devices, make(policy), live_settings(check_every=1), full=True)


def service(least: int = 1, most: int = 4, name: str = "vision", **fields: Any) -> ServiceSpec:
    replica = JobSpec(command=("serve",), tier="premium", **fields)
    return ServiceSpec(name=name, replica=replica, min_replicas=least, max_replicas=most)


def test_a_delay_that_is_out_of_bounds_is_named() -> None:
    assert not problems(structs.replace(service(), scale_down_us=SECOND))
    for wrong in (-1, 0, SECOND - 1, 10**18):
        assert "scale_down_delay" in problems(structs.replace(service(), scale_down_us=wrong))[0]


def deploy(pool: Worldlet, spec: ServiceSpec, op_id: str = "") -> co.Reply:
    op_id = op_id or f"d{pool.engine.revision}"
    reply = pool.reply(ev.DeployService(spec, op_id), op_id)
    pool.later(SECOND)
    return reply


def scale(pool: Worldlet, replicas: int, name: str = "vision") -> co.Reply:
    op_id = f"s{pool.engine.revision}"
    reply = pool.reply(ev.ScaleService(name, replicas, op_id), op_id)
    pool.later(SECOND)
    return reply


def replicas(pool: Worldlet, name: str = "vision") -> list[int]:
    return [job for job, spec in pool.engine.book.specs.items() if spec.service == name]


def running(pool: Worldlet) -> list[int]:
    return [job for job in replicas(pool) if pool.state(job) is State.RUNNING]


def wait(pool: Worldlet, us: int, step_us: int = SECOND) -> None:
    """So long, with the ends of what is being stopped."""
    until = pool.now + us
    while pool.now < until:
        stopping = [job for job in replicas(pool) if pool.state(job) is State.STOPPING]
        ends = [ev.Exited(job, pool.engine.book.jobs[job].attempt, 0) for job in stopping]
        pool.later(min(step_us, until - pool.now), *ends)


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        (service(name="12"), "name"), (service(name="a b"), "name"), (service(name="x" * 101), "name"),
        (service(3, 2), "replicas"),
        (service(-1, 2), "replicas"), (service(0, 0), "replicas"), (service(1, 10**5), "replicas"),
        (service(kind="runtime"), "replica"), (service(max_duration_us=1), "max_duration"), (service(service="x"), "service"),
    ],
)  # fmt: skip
def test_services_that_make_no_sense(spec: ServiceSpec, key: str) -> None:
    assert [text.partition(":")[0] for text in problems(spec)] == [key]
    assert deploy(world(), spec).kind == "usage"


def test_a_service_has_the_replicas_it_is_scaled_to() -> None:
    pool = world()
    assert deploy(pool, service(2, 4)).error is None
    first = running(pool)
    assert len(first) == 2 and [pool.engine.book.specs[job].name for job in first] == ["vision-1", "vision-2"]
    assert {pool.engine.book.specs[job].kind for job in first} == {"service"}
    assert scale(pool, 4).error is None
    assert len(running(pool)) == 4
    assert scale(pool, 2).error is None
    wait(pool, 3 * SECOND)
    assert running(pool) == first
    assert scale(pool, 5).error == Code.REPLICAS_OUT_OF_BOUNDS(5, 2, 4)
    assert scale(pool, 1, "other").error == Code.NO_SUCH_SERVICE("other")
    assert len(running(pool)) == 2


def test_what_never_fits_is_refused_and_names_no_service() -> None:
    pool = world(devices=4)
    assert deploy(pool, service(devices=8, ranks=8)).kind == "usage"
    assert not pool.engine.book.services.records


def test_one_call_answered_twice_deploys_once() -> None:
    pool = world()
    assert deploy(pool, service(), "a") == deploy(pool, service(), "a")
    assert len(replicas(pool)) == 1 and pool.engine.book.services.records["vision"].version == 1


def test_a_job_cannot_call_itself_a_replica() -> None:
    pool = world()
    reply = pool.reply(ev.Submit(JobSpec(command=("x",), service="vision"), "s"), "s")
    assert reply.error is not None and reply.kind == "usage"


def test_replicas_that_end_are_made_anew_after_growing_pauses() -> None:
    pool = world()
    deploy(pool, service(1, 1))
    pauses = []
    for _ in range(5):
        (job,) = running(pool)
        pool.tell(ev.Exited(job, 1, 1))
        ended = pool.now
        while not running(pool):
            pool.later(SECOND // 4)
        pauses.append(pool.now - ended)
    assert pauses == sorted(pauses) and pauses[-1] >= 8 * pauses[0] >= SECOND
    pool.later(11 * MINUTE)
    (job,) = running(pool)
    pool.tell(ev.Exited(job, 1, 0))
    pool.later(pauses[0])
    assert running(pool)


def test_restarts_of_a_version_are_counted_and_the_last_end_is_kept() -> None:
    pool = world()
    deploy(pool, service(2))
    record = pool.engine.book.services.records["vision"]
    assert (record.restarts, record.last_restart) == (0, None)
    first, second = running(pool)
    pool.later(SECOND, ev.Exited(first, 1, 137, why=Code.OUT_OF_MEMORY(0, 2**30)))
    assert record.last_restart is not None and record.last_restart.why == Code.OUT_OF_MEMORY(0, 2**30)
    pool.later(SECOND, ev.Exited(second, 1, 0))
    assert record.restarts == 2 and record.last_restart.job == second
    scale(pool, 1)
    wait(pool, MINUTE)
    assert record.restarts == 2  # what is stopped because it is not needed is no restart
    deploy(pool, service(2, devices=2))
    assert (record.restarts, record.last_restart) == (0, None)


def test_a_replica_that_its_user_cancels_is_made_anew() -> None:
    pool = world()
    deploy(pool, service(1, 1))
    (job,) = running(pool)
    pool.tell(ev.Cancel(job))
    wait(pool, 10 * SECOND)
    assert len(running(pool)) == 1 and running(pool) != [job]


def test_deleting_ends_all_and_frees_the_name() -> None:
    pool = world()
    deploy(pool, service(3, 3))
    out = pool.tell(ev.DeleteService("vision", "x"), ev.DeployService(service(3, 3), "again"))
    replies = {one.op_id: one.error for one in out if isinstance(one, co.Reply)}
    assert replies == {"x": None, "again": Code.BEING_DELETED("vision")}
    wait(pool, 3 * SECOND)
    assert not pool.engine.book.services.records and not replicas(pool)
    assert pool.reply(ev.DeleteService("vision", "y"), "y").error == Code.NO_SUCH_SERVICE("vision")
    assert deploy(pool, service(1, 1)).error is None and len(running(pool)) == 1


def test_an_update_replaces_one_after_the_other_with_never_fewer_running() -> None:
    pool = world()
    deploy(pool, service(3, 3))
    old = running(pool)
    deploy(pool, service(3, 3, workload="other"))
    for _ in range(30):
        assert len(running(pool)) >= 3 and len(replicas(pool)) <= 5
        wait(pool, SECOND)
    assert len(running(pool)) == 3 and not set(running(pool)) & set(old)
    assert pool.engine.book.services.records["vision"].version == 2


def test_an_update_on_a_full_pool_stops_one_that_it_replaces() -> None:
    pool = world(devices=2)
    deploy(pool, service(2, 2))
    old = running(pool)
    deploy(pool, service(2, 2, workload="other"))
    wait(pool, 5 * SECOND)
    assert running(pool) == old
    wait(pool, 3 * MINUTE)
    assert len(running(pool)) == 2 and not set(running(pool)) & set(old)


def test_other_bounds_alone_replace_nothing() -> None:
    pool = world()
    deploy(pool, service(1, 2))
    (job,) = running(pool)
    deploy(pool, service(2, 6))
    assert job in running(pool) and len(running(pool)) == 2
    deploy(pool, service(0, 1))
    wait(pool, 2 * SECOND)
    assert running(pool) == [job] and scale(pool, 0).error is None
    wait(pool, 2 * SECOND)
    assert not replicas(pool)
    assert scale(pool, 1).error is None and len(running(pool)) == 1


def test_a_snapshot_and_a_fork_keep_services() -> None:
    pool = world()
    deploy(pool, service(2, 3))
    again = Engine.restore(pool.engine.snapshot())
    assert again.book.services.records == pool.engine.book.services.records
    (job, *_) = running(pool)
    events = [ev.Exited(job, 1, 1)]
    assert again.step(pool.now + 1, events) == pool.engine.step(pool.now + 1, events)
    later = pool.now + 10 * MINUTE
    assert again.step(later, [ev.Tick()]) == pool.engine.step(later, [ev.Tick()])
    check_all(again.book)


acts = st.lists(
    st.tuples(st.sampled_from(["scale", "exit", "cancel", "update", "wait", "delete", "deploy"]), st.integers(0, 5)),
    max_size=25,
)


@given(todo=acts)
@settings(max_examples=examples(15), deadline=None)
def test_whatever_happens_it_comes_to_what_is_wanted(todo: list[tuple[str, int]]) -> None:
    pool = world(devices=6)
    deploy(pool, service(0, 5))
    for what, number in todo:
        live = running(pool)
        if what == "scale":
            scale(pool, number)
        elif what == "exit" and live:
            pool.tell(ev.Exited(live[number % len(live)], 1, number))
        elif what == "cancel" and live:
            pool.tell(ev.Cancel(live[number % len(live)]))
        elif what == "update":
            deploy(pool, service(0, 5, workload=f"v{number}"))
        elif what == "delete":
            pool.reply(ev.DeleteService("vision", f"x{pool.engine.revision}"), f"x{pool.engine.revision}")
        elif what == "deploy":
            deploy(pool, service(0, 5))
        wait(pool, number * SECOND)
    wait(pool, 90 * MINUTE, 20 * SECOND)
    record = pool.engine.book.services.records.get("vision")
    wanted = record.wanted if record else 0
    assert len(running(pool)) == len(replicas(pool)) == wanted
    assert record is None or set(record.replicas.values()) <= {record.version}


@pytest.mark.parametrize("asked", [10**30, 2**63, -(10**30)])
def test_a_number_beyond_all_bounds_is_refused_and_the_book_can_still_be_kept(asked: int) -> None:
    pool = world()
    deploy(pool, service(1, 1))
    assert scale(pool, asked).kind == "usage"
    assert deploy(pool, service(asked, asked, name="other")).kind == "usage"
    assert Engine.restore(pool.engine.snapshot()).book.answers == pool.engine.book.answers


def test_replicas_of_a_runtime_that_ends_are_made_when_there_is_one_again() -> None:
    pool = world()
    runtime = pool.submit(1, kind="runtime", name="shared", tier="premium")
    assert deploy(pool, service(2, 2, devices=0, runtime="shared")).error is None
    assert len(running(pool)) == 2
    pool.tell(ev.Cancel(runtime))
    wait(pool, 5 * SECOND)
    pool.later(SECOND, ev.Exited(runtime, 1, 143))
    wait(pool, 10 * MINUTE)
    assert not replicas(pool)
    pool.submit(1, kind="runtime", name="shared", tier="premium")
    wait(pool, 10 * MINUTE)
    assert len(running(pool)) == 2


def test_replicas_that_end_together_count_as_one_end() -> None:
    pool = world()
    deploy(pool, service(6, 6))
    pool.tell(*(ev.Exited(job, 1, 1) for job in running(pool)))
    wait(pool, 2 * SECOND)
    assert len(running(pool)) == 6
    (record,) = pool.engine.book.services.records.values()
    assert record.ends == 1


def test_a_replica_that_had_lasted_is_made_anew_at_once_however_often_others_end() -> None:
    pool = world()
    deploy(pool, service(4, 4))
    for _ in range(12):
        pool.later(4 * MINUTE)
        pool.tell(ev.Exited(min(running(pool)), 1, 1))
        wait(pool, 3 * SECOND)
        assert len(running(pool)) == 4


def test_an_update_to_what_ends_at_once_leaves_those_that_run() -> None:
    pool = world()
    deploy(pool, service(3, 3))
    old = set(running(pool))
    deploy(pool, service(3, 3, workload="broken"))
    for _ in range(600):
        broken = [job for job in running(pool) if job not in old]
        pool.tell(*(ev.Exited(job, 1, 1) for job in broken))
        wait(pool, SECOND)
    assert set(running(pool)) & old == old
    deploy(pool, service(3, 3, workload="mended"))
    wait(pool, 3 * MINUTE)
    assert len(running(pool)) == 3 and not set(running(pool)) & old


def test_where_readiness_is_reported_an_update_waits_for_it() -> None:
    pool = world()
    spec = structs.replace(service(2, 2), reports_ready=True)
    deploy(pool, spec)
    old = running(pool)
    deploy(pool, structs.replace(spec, replica=structs.replace(spec.replica, workload="other")))
    wait(pool, 2 * MINUTE)
    assert set(old) < set(running(pool))
    for _ in range(4):
        new = [job for job in running(pool) if job not in old]
        for job in new:
            pool.reply(ev.ReplicaReady("vision", job, 1, f"r{pool.engine.revision}"), f"r{pool.engine.revision}")
        wait(pool, 2 * SECOND)
    assert len(running(pool)) == 2 and not set(running(pool)) & set(old)
    error = pool.reply(ev.ReplicaReady("vision", old[0], 1, "gone"), "gone").error
    assert error == Code.NO_SUCH_JOB(old[0])


def test_a_service_is_scaled_in_while_updated_replicas_wait() -> None:
    pool = world(devices=3)
    deploy(pool, service(1, 4))
    scale(pool, 3)
    deploy(pool, service(1, 4, workload="other"))
    wait(pool, 40 * SECOND)
    deploy(pool, service(1, 4, workload="other", devices=3, ranks=3))
    deploy(pool, service(1, 4, workload="third", devices=3, ranks=3))
    assert scale(pool, 1).error is None
    wait(pool, 5 * MINUTE)
    assert len(running(pool)) == len(replicas(pool)) == 1


def test_a_full_pool_is_scaled_in_while_it_is_updated() -> None:
    pool = world(devices=2)
    pool.submit(1, tier="premium")
    deploy(pool, service(0, 9))
    scale(pool, 4)
    deploy(pool, service(0, 9, workload="other"))
    wait(pool, 45 * SECOND)
    assert scale(pool, 0).error is None
    wait(pool, 3 * SECOND)
    assert not replicas(pool)
