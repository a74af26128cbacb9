"""One promise of the engine per test."""

from __future__ import annotations

from typing import Any

import pytest

from tidewright.base.errors import Bug
from tidewright.base.units import MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.check import check_all
from tidewright.engine.engine import Engine
from tidewright.engine.lifecycle import TRANSITIONS, transition
from tidewright.engine.settings import live_settings
from tidewright.model.cause import Code, reported
from tidewright.model.job import FINAL, ArrayMember, Dependency, JobSpec, State
from tidewright.model.node import Part, rank_layout
from tidewright.plan.moves import Migrate, Resize, Resume, Start, Stop, Suspend
from tidewright.plan.plan import Wake
from tidewright.testing.causes import codes, history
from tidewright.testing.worldlet import Worldlet

FULL = (Part(0, 0xFF),)
OTHER = (Part(1, 0xFF),)
ONE = (Part(0, 1),)


def running(world: Worldlet, allocation=ONE, **fields) -> int:
    """A job that runs on ``allocation``."""
    devices = sum(part.mask.bit_count() for part in allocation)
    job = world.submit(devices, **fields)
    world.plan(Start(job, allocation, "test"))
    assert world.state(job) is State.RUNNING
    return job


def test_every_state_is_in_the_lifecycle_and_final_ones_lead_nowhere() -> None:
    after = {state: {to for before, to in TRANSITIONS if before is state} for state in State}
    assert all(not after[state] for state in FINAL)
    assert all(after[state] & FINAL for state in set(State) - FINAL), "any open job can be ended"


def test_an_illegal_step_raises_with_the_story() -> None:
    world = Worldlet()
    job = world.submit()
    with pytest.raises(Bug, match=r"queued -> resuming(?s:.*)submitted"):
        transition(world.engine.book, job, int(State.RESUMING), Code.FINISHED())


def test_time_never_goes_backwards() -> None:
    world = Worldlet()
    world.later(SECOND)
    with pytest.raises(Bug, match="backwards"):
        world.engine.step(world.now - 1, [])


def test_a_job_runs_to_completion_and_the_ledger_knows_its_fraction() -> None:
    world = Worldlet()
    world.later(10 * SECOND)
    job = world.submit()
    world.later(10 * SECOND)
    world.plan(Start(job, ONE, "test"))
    world.later(30 * SECOND, ev.Exited(job, 1, 0))
    ended = world.ended[job]
    assert (ended.state, ended.code, ended.ideal_us) == (State.COMPLETED, 0, 30 * SECOND)
    assert ended.ideal_us / (ended.end - ended.submit) == 0.75
    assert ended.held_milli_us == 30 * SECOND * 1000


def test_a_victim_and_its_successor_land_together_and_the_successor_waits_for_the_devices() -> None:
    world = Worldlet()
    basic, premium = running(world, FULL, tier="basic"), world.submit(8, tier="premium")
    world.obey = False
    given = world.plan(Suspend(basic, "for premium"), Start(premium, FULL, "premium"), gangs=((0, 2),))
    assert [type(command) for command in given] == [co.SuspendRanks]
    assert premium in world.engine.book.reservations
    given = world.tell(ev.Suspended(basic, 1, 700))
    assert any(isinstance(command, co.Launch) and command.job == premium for command in given)
    assert int(world.engine.book.table.save_us[world.engine.book.table.row[basic]]) == 700


def test_a_gang_of_moves_is_refused_whole_when_one_does_not_hold() -> None:
    world = Worldlet()
    victim, late = running(world, FULL), world.submit(8)
    world.plan(Suspend(victim, "x"), Start(late, ((Part(0, 0xFFF)),), "x"), gangs=((0, 2),))
    assert world.state(victim) is State.RUNNING
    assert world.state(late) is State.QUEUED


def test_a_failed_suspension_takes_back_what_was_promised_on_its_devices() -> None:
    world = Worldlet()
    victim, late = running(world, FULL), world.submit(8)
    world.obey = False
    world.plan(Suspend(victim, "x"), Start(late, FULL, "x"))
    world.tell(ev.SuspendFailed(victim, 1, "no memory"))
    assert world.state(victim) is State.RUNNING
    assert late not in world.engine.book.reservations
    assert Code.JOB_NOT_SUSPENDED(victim, reported("no memory")) in history(world, late)
    world.obey = True
    world.plan(Suspend(victim, "again"))
    assert world.state(victim) is State.RUNNING, "left alone for a while after a failure"
    world.later(MINUTE)
    world.plan(Suspend(victim, "again"))
    assert world.state(victim) is State.SUSPENDED


@pytest.mark.parametrize("move", [Migrate, Resize])
def test_migration_and_resize_go_through_suspension_to_the_promised_devices(move) -> None:
    world = Worldlet()
    job = running(world, FULL, min_devices=4)
    world.plan(move(job, (Part(1, 0x0F),), "x"))
    assert world.state(job) is State.RUNNING
    assert world.engine.book.allocations[job] == (Part(1, 0x0F, 1000),)
    world.later(10 * SECOND, ev.Exited(job, 1, 0))
    assert world.ended[job].ideal_us == 5 * SECOND, "half the devices, half the speed"


@pytest.mark.parametrize(
    ("allocation", "why"),
    [
        ((Part(1, 1),), Code.DEVICES_TAKEN()),
        ((Part(0, 0x1FF),), Code.NO_SUCH_DEVICES()),
        ((Part(0, 1), Part(0, 2)), Code.NO_SUCH_DEVICES()),
        ((Part(0, 3),), Code.WRONG_COUNT(2, 1, 1)),
        ((Part(0, 1, 500),), Code.WRONG_SHARE()),
        ((Part(7, 1),), Code.NO_SUCH_DEVICES()),
    ],
)
def test_a_start_that_does_not_hold_is_refused_with_its_reason(allocation, why) -> None:
    world = Worldlet()
    running(world, OTHER)
    job = world.submit()
    world.plan(Start(job, allocation, "x"))
    assert world.state(job) is State.QUEUED
    assert world.engine.book.jobs[job].history[-1][1:] == ("REFUSED", why)


@pytest.mark.parametrize(
    ("fields", "allocation", "unit"),
    [
        ({"ranks": 2}, (Part(0, 7), Part(1, 1)), 2),
        ({"ranks": 2}, (Part(0, 3), Part(1, 3)), 0),
        ({"ranks": 4}, (Part(0, 7), Part(1, 1)), 0),
        ({"ranks": 2, "min_devices": 2}, (Part(0, 1), Part(1, 1)), 0),
        ({"ranks": 2, "min_devices": 2}, (Part(0, 1), Part(1, 3)), 0),
    ],
)
def test_the_devices_that_one_rank_sees_are_on_one_node(fields, allocation, unit) -> None:
    """The unit follows from how many devices the plan gives it; a count that its ranks do not divide has none."""
    world = Worldlet()
    job = world.submit(4, **fields)
    world.plan(Start(job, allocation, "x"))
    refused = ("REFUSED", Code.RANK_SPLIT(unit))
    assert (world.state(job), refused in [line[1:] for line in world.engine.book.jobs[job].history]) == (
        (State.QUEUED, True) if unit else (State.RUNNING, False)
    )


@pytest.mark.parametrize("fields", [{}, {"min_devices": 2}])
def test_a_job_of_one_rank_is_on_one_node(fields: dict[str, Any]) -> None:
    world = Worldlet()
    job = world.submit(4, ranks=1, **fields)
    world.plan(Start(job, (Part(0, 7), Part(1, 1)), "x"))
    refused = ("REFUSED", Code.SEVERAL_NODES())
    assert world.state(job) == State.QUEUED and refused in [line[1:] for line in world.engine.book.jobs[job].history]


def test_a_move_and_a_resize_are_held_to_the_unit_of_what_they_give() -> None:
    world = Worldlet()
    job = running(world, FULL, ranks=2, min_devices=4)
    for move, unit in (
        (Migrate(job, (Part(0, 7), Part(1, 0x1F)), "x"), 4),
        (Resize(job, (Part(0, 0x1F), Part(1, 1)), "x"), 3),
    ):
        world.plan(move)
        assert world.engine.book.jobs[job].history[-1][1:] == ("REFUSED", Code.RANK_SPLIT(unit))
        assert world.engine.book.allocations[job] == FULL
    world.plan(Resize(job, (Part(0, 0xF),), "x"))
    assert world.engine.book.allocations[job] == (Part(0, 0xF),)


def test_shares_fill_a_device_and_no_more() -> None:
    world = Worldlet(1, 1, device_memory=40 * 2**30)
    jobs = [world.submit(gpu_memory=16 * 2**30) for _ in range(3)]
    world.plan(*(Start(job, (Part(0, 1, 400),), "x") for job in jobs))
    assert [world.state(job) for job in jobs] == [State.RUNNING, State.RUNNING, State.QUEUED]


def test_retries_back_off_and_run_out() -> None:
    world = Worldlet()
    job = running(world, retries=1)
    world.tell(ev.Exited(job, 1, 3))
    assert world.state(job) is State.HELD
    world.later(2 * SECOND)
    assert world.state(job) is State.QUEUED
    world.plan(Start(job, ONE, "again"))
    world.tell(ev.Exited(job, 2, 3))
    assert (world.ended[job].state, world.ended[job].code, world.ended[job].attempts) == (State.FAILED, 3, 2)


def test_only_listed_exit_codes_are_retried_and_lost_ranks_always_are() -> None:
    world = Worldlet()
    job = running(world, retries=5, retry_exit_codes=(33,))
    world.tell(ev.Exited(job, 1, 137, lost=True))
    assert world.state(job) is State.QUEUED
    world.plan(Start(job, ONE, "again"))
    world.tell(ev.Exited(job, 2, 1))
    assert world.ended[job].state == State.FAILED


def test_exit_75_means_requeue_me() -> None:
    world = Worldlet()
    job = running(world)
    world.later(SECOND, ev.Exited(job, 1, 75))
    assert world.state(job) is State.HELD
    world.later(5 * SECOND)
    assert world.state(job) is State.QUEUED


def test_a_cooperative_job_gives_way_by_exiting_and_keeps_its_work() -> None:
    world = Worldlet()
    job = running(world, preempt="cooperative")
    world.later(10 * SECOND)
    world.plan(Suspend(job, "x"))
    assert world.state(job) is State.QUEUED
    world.plan(Start(job, ONE, "again"))
    world.later(10 * SECOND, ev.Exited(job, 2, 0))
    assert world.ended[job].ideal_us == 20 * SECOND
    assert world.ended[job].preemptions == 1


def test_a_job_is_stopped_at_its_limit_of_run_time_which_suspension_does_not_use_up() -> None:
    world = Worldlet()
    job = running(world, max_duration_us=10 * SECOND)
    world.later(6 * SECOND)
    world.plan(Suspend(job, "x"))
    world.later(MINUTE)
    world.plan(Resume(job, ONE, "x"))
    world.later(3 * SECOND)
    assert world.state(job) is State.RUNNING
    world.later(2 * SECOND)
    assert world.ended[job].state == State.TIMEOUT


def test_dependencies_release_or_cancel() -> None:
    world = Worldlet()
    first = running(world)
    good = world.submit(after=(Dependency("afterok", first),))
    bad = world.submit(after=(Dependency("afternotok", first),))
    chained = world.submit(after=(Dependency("afterok", bad),))
    assert world.state(good) is State.HELD
    world.tell(ev.Exited(first, 1, 0))
    assert world.state(good) is State.QUEUED
    assert [world.state(job) for job in (bad, chained)] == [State.CANCELLED, State.CANCELLED]
    late = ev.Submit(JobSpec(command=("true",), after=(Dependency("afterok", bad),)), "late")
    reply = world.reply(late, "late")
    assert world.state(reply.job) is State.CANCELLED
    assert reply.warning == Code.CANCELLED_AT_ONCE(Code.DEPENDENCY_UNMET("afterok", bad))


def test_an_array_runs_as_many_members_as_it_may() -> None:
    world = Worldlet()
    members = [world.submit(array=ArrayMember("a", index, 3, limit=2)) for index in range(3)]
    assert [world.state(job) for job in members] == [State.QUEUED, State.QUEUED, State.HELD]
    world.tell(ev.Cancel(members[0]))
    assert world.state(members[2]) is State.QUEUED


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"devices": 17}, Code.NEVER_FITS(17, (), "consolidate", 16)),
        ({"devices": 9, "ranks": 9, "placement": "one-node"}, Code.NEVER_FITS(9, (), "one-node", 8)),
        ({"device_types": ("b200",)}, Code.NO_SUCH_TYPE(("b200",), ("h100",))),
        ({"gpu_memory": 2**40}, Code.SHARE_TOO_LARGE(2**40, 80 * 2**30)),
        ({"command": ()}, Code.SPEC_WRONG(("command: empty; say what to run",))),
        ({"after": (Dependency("afterok", 99),)}, Code.UNKNOWN_DEPENDENCY(99)),
    ],
)
def test_what_can_never_run_is_refused_with_what_would_fit(fields, why) -> None:
    world = Worldlet(device_memory=80 * 2**30)
    fields = {"command": ("true",), "ranks": fields.get("devices", 1), **fields}
    reply = world.reply(ev.Submit(JobSpec(**fields), "op"), "op")
    assert reply.error == why


def test_the_same_request_again_gets_the_same_answer_and_no_second_job() -> None:
    world = Worldlet()
    submit = ev.Submit(JobSpec(command=("true",)), "same")
    assert world.reply(submit, "same") == world.reply(submit, "same")
    assert len(world.engine.book.specs) == 1


def test_promises_beyond_the_pool_are_accepted_with_a_forecast() -> None:
    world = Worldlet(1, 2)
    assert not world.reply(ev.Submit(JobSpec(command=("true",), tier="premium", devices=2, ranks=2), "a"), "a").warning
    warned = world.reply(ev.Submit(JobSpec(command=("true",), tier="premium", devices=2, ranks=2), "b"), "b")
    assert not warned.error
    assert warned.warning == Code.OVERSUBSCRIBED("premium", 4000, 2, 500)


def test_a_user_hold_lasts_until_released_or_until_its_time() -> None:
    world = Worldlet()
    job = running(world)
    assert not world.reply(ev.Hold(job, "h", world.now + MINUTE), "h").error
    assert world.state(job) is State.HELD
    assert not world.engine.view().jobs.waiting.any()
    world.later(2 * MINUTE)
    assert world.state(job) is State.SUSPENDED
    assert world.reply(ev.Release(job, "r"), "r").kind == "conflict"


def test_a_gang_is_frozen_only_for_a_bounded_time_and_keeps_its_devices() -> None:
    world = Worldlet(settings=live_settings(check_every=1), kind="cpu")
    job = running(world, (Part(0, 3),))
    refused = world.reply(ev.Hold(job, "a"), "a")
    assert refused.kind == "conflict" and codes(refused.error) == [Code.NOT_SUSPENDABLE, Code.GANG_TIMEOUT]
    assert world.reply(ev.Hold(job, "b", world.now + 2 * MINUTE), "b").error
    assert not world.reply(ev.Hold(job, "c", world.now + 30 * SECOND), "c").error
    assert world.state(job) is State.HELD
    assert world.engine.book.allocations[job] == (Part(0, 3, 1000),)
    world.later(31 * SECOND)
    assert world.state(job) is State.RUNNING


def test_freezing_on_a_device_that_keeps_its_memory_is_refused() -> None:
    world = Worldlet(settings=live_settings(check_every=1))
    job = running(world)
    reply = world.reply(ev.Hold(job, "a"), "a")
    assert reply.error is not None and Code.KEEPS_MEMORY("h100") in reply.error.args


def test_a_frozen_job_comes_back_only_on_its_node() -> None:
    world = Worldlet(settings=live_settings(check_every=1), kind="cpu")
    job = running(world)
    world.plan(Suspend(job, "x"))
    world.plan(Resume(job, (Part(1, 1),), "elsewhere"))
    assert world.state(job) is State.SUSPENDED
    world.plan(Resume(job, (Part(0, 4),), "another slot of its node"))
    assert world.state(job) is State.RUNNING


def test_a_dead_node_sends_its_jobs_back_and_survivors_are_stopped_first() -> None:
    world = Worldlet()
    spread = running(world, (Part(0, 0xF0), Part(1, 0xF0)))
    alone = running(world)
    world.obey = False
    given = world.tell(ev.NodeDown("n0", "power"))
    assert [command.job for command in given if isinstance(command, co.StopRanks)] == [spread]
    assert world.state(alone) is State.QUEUED
    world.tell(ev.Exited(spread, 1, 137, lost=True))
    assert world.state(spread) is State.QUEUED


def test_a_silent_or_drained_node_keeps_its_jobs_and_takes_no_new_ones() -> None:
    world = Worldlet(1)
    job, late = running(world), world.submit()
    world.tell(ev.NodeSilent("n0", "no answer for 10s"))
    world.plan(Start(late, (Part(0, 2),), "x"))
    assert (world.state(job), world.state(late)) == (State.RUNNING, State.QUEUED)
    world.tell(ev.NodeUp(world.nodes[0], "1"), ev.NodeDrain("n0", True))
    world.plan(Start(late, (Part(0, 2),), "x"))
    assert world.state(late) is State.QUEUED
    world.tell(ev.NodeDrain("n0", False))
    world.plan(Start(late, (Part(0, 2),), "x"))
    assert world.state(late) is State.RUNNING


def test_cancel_works_in_every_state() -> None:
    world = Worldlet()
    queued, run, suspended = world.submit(), running(world), running(world, (Part(0, 2),))
    world.plan(Suspend(suspended, "x"))
    for job in (queued, run, suspended):
        assert not world.reply(ev.Cancel(job, f"c{job}"), f"c{job}").error
        assert world.state(job) is State.CANCELLED
    assert world.reply(ev.Cancel(run, "again"), "again").kind == "conflict"
    assert world.reply(ev.Cancel(99, "none"), "none").kind == "notfound"


def test_a_plan_may_stop_a_job_for_good() -> None:
    world = Worldlet()
    job = running(world)
    world.plan(Stop(job, "early stop"))
    assert world.ended[job].why == Code.TEXT("early stop")


def test_planning_rounds_that_cannot_change_anything_are_skipped() -> None:
    world = Worldlet(1, 8)
    world.obey = False
    job = world.submit()
    world.plan(Start(job, ONE, "x"), wake=Wake(on_arrival=False, min_free=8))
    assert not any(isinstance(command, co.PlanRequest) for command in world.tell(ev.Submit(JobSpec(command=("true",)))))
    assert any(isinstance(command, co.PlanRequest) for command in world.tell(ev.Exited(job, 1, 0)))


def asked(commands: list[co.Command]) -> bool:
    return any(isinstance(command, co.PlanRequest) for command in commands)


def test_arrivals_behind_all_that_a_planner_looks_at_wake_none_for_a_while() -> None:
    world = Worldlet(1, 8)
    world.obey = False
    job = world.submit()
    last = world.submit()
    hour = world.now + 3_600_000_000
    world.plan(Start(job, ONE, "x"), wake=Wake(behind=last, behind_until=hour))
    assert not asked(world.tell(ev.Submit(JobSpec(command=("true",)))))
    twin = Engine.restore(world.engine.snapshot())
    for engine in (world.engine, twin):
        assert not asked(engine.step(hour - 1, [ev.Submit(JobSpec(command=("true",)))]))
        assert asked(engine.step(hour, [ev.Submit(JobSpec(command=("true",)))]))


def test_a_job_that_leaves_the_front_of_the_queue_lets_the_planner_look_further() -> None:
    world = Worldlet(1, 8)
    world.obey = False
    world.submit()
    last = world.submit()
    world.plan(wake=Wake(behind=last, behind_until=world.now + 3_600_000_000))
    assert asked(world.tell(ev.Hold(last)))


def test_the_table_names_the_node_that_a_job_is_on() -> None:
    world = Worldlet(2, 8)
    job = running(world)
    book = world.engine.book
    row = book.table.row[job]
    assert book.table.lone_node[row] == book.allocations[job][0].node + 1
    assert (Engine.restore(world.engine.snapshot()).book.table.lone_node == book.table.lone_node).all()
    book.table.lone_node[row] = 2
    with pytest.raises(Bug, match="the table names node 1"):
        check_all(book)


def test_a_view_stays_as_it_was_while_the_book_moves_on() -> None:
    world = Worldlet()
    job = running(world)
    view = world.engine.view()
    before = view.jobs.state.copy()
    world.tell(ev.Exited(job, 1, 0))
    world.submit()
    assert (view.jobs.state == before).all()
    assert view.board().free[0] == 0xFE
    assert job in view.specs and job in view.allocations
    with pytest.raises(ValueError, match="read-only"):
        view.jobs.state[0] = 1


@pytest.mark.parametrize(("devices", "ranks"), [(8, 8), (4, 8), (8, 2), (3, 3), (16, 16), (1, 4)])
def test_every_rank_gets_a_seat_and_every_device_is_used(devices: int, ranks: int) -> None:
    allocation = tuple(Part(node, (1 << min(8, devices - 8 * node)) - 1) for node in range(-(-devices // 8)))
    seats = rank_layout(allocation, ranks)
    assert [seat.rank for seat in seats] == list(range(ranks))
    assert all(seat.devices for seat in seats)
    used = {(seat.node, device) for seat in seats for device in seat.devices}
    assert len(used) == devices
