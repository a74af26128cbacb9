"""Jobs under ``sla`` for which only the passing of time, or what happens while a plan is made, is a reason for another plan."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine import commands as co
from tidewright.engine import events as ev
from tidewright.engine.settings import EngineSettings, live_settings
from tidewright.model.cause import Code
from tidewright.model.job import JobSpec, State
from tidewright.model.service import ServiceSpec
from tidewright.plan.plan import Plan
from tidewright.policy.registry import make
from tidewright.testing.worldlet import Worldlet


def waits_us(world: Worldlet, over: Callable[[], bool], most_us: int, step_us: int = 10 * SECOND) -> int:
    """How long it takes until ``over``, to ``step_us``; ``most_us`` if it is not by then."""
    since = world.now
    while not over() and world.now < since + most_us:
        world.later(step_us)
    return world.now - since


def end(world: Worldlet, job: int) -> None:
    book = world.engine.book
    world.tell(ev.Exited(job, book.table.attempt.item(book.table.row[job]), 0))


def test_a_gang_whose_level_is_settled_by_its_launch_is_waited_for() -> None:
    """With live settings a gang can be imaged or not by the nodes that it is launched on: until then its level is NONE."""
    settings = replace(live_settings(), check_every=1)
    world = Worldlet(nodes=2, devices=4, planner=make("sla"), full=True, settings=settings)
    world.submit(4, tier="premium", expected_us=500 * HOUR, preempt="none", placement="one-node")
    short = world.submit(2, tier="premium", expected_us=HOUR, preempt="none")
    world.later(MINUTE)
    world.obey = False
    wanting = world.submit(4, tier="premium", expected_us=10 * HOUR, placement="one-node")
    basic = world.submit(2, tier="basic", expected_us=100 * HOUR, placement="one-node")
    world.obey = True
    world.later(3 * SECOND, ev.Started(basic, 1))
    world.later(10 * MINUTE)
    end(world, short)
    assert waits_us(world, lambda: world.state(wanting) is State.RUNNING, HOUR) <= MINUTE


class SlowPlanner(Worldlet):
    """Whose plans are made in no time and land when the test says so."""

    made: Plan | None = None
    slow = False

    def _answers(self, command: co.Command) -> list[ev.Event]:
        if isinstance(command, co.PlanRequest) and self.slow:
            self.made = self.planner.plan(self.engine.view())
            return []
        return super()._answers(command)


def test_a_job_that_begins_to_run_while_a_plan_is_made_is_seen_by_the_next() -> None:
    world = SlowPlanner(nodes=1, devices=4, planner=make("sla"), full=True)
    world.obey = False
    basic = world.submit(4, tier="basic", expected_us=100 * HOUR)
    assert world.engine.book.wake.after_run < 0
    world.obey = world.slow = True
    premium = world.submit(4, tier="premium", expected_us=HOUR)
    world.later(SECOND, ev.Started(basic, 1))
    world.slow = False
    assert world.made is not None
    world.later(SECOND, ev.PlanReady(world.made))
    assert waits_us(world, lambda: world.state(premium) is State.RUNNING, HOUR) <= 2 * MINUTE


def test_a_job_that_waits_and_is_late_protects_those_of_its_tier_no_longer() -> None:
    """While it presses, the one that runs counts as pressing, too; then the one with a deadline preempts it."""
    world = Worldlet(nodes=1, devices=8, planner=make("sla"), full=True)
    ending = world.submit(4, expected_us=65 * MINUTE, preempt="none")
    world.submit(4, expected_us=3 * HOUR)
    world.later(5 * MINUTE)
    dated = world.submit(8, expected_us=10 * HOUR, deadline_us=world.now + 14 * HOUR)
    late = world.submit(8, expected_us=HOUR)
    world.later(HOUR)
    end(world, ending)
    assert waits_us(world, lambda: State.RUNNING in (world.state(dated), world.state(late)), 3 * HOUR) <= MINUTE


def test_a_gang_waits_for_the_migrations_that_make_room_for_it() -> None:
    world = Worldlet(nodes=2, devices=4, planner=make("sla"), full=True)
    running = [world.submit(2, expected_us=30 * HOUR, placement="any") for _ in range(4)]
    allocations = world.engine.book.allocations
    leavers = [next(job for job in running if allocations[job][0].node == node) for node in (0, 1)]
    world.later(SECOND)
    for job in leavers:
        end(world, job)
    gang = world.submit(4, expected_us=10 * HOUR, placement="one-node")
    assert waits_us(world, lambda: world.state(gang) in (State.STARTING, State.RUNNING), HOUR) <= 2 * MINUTE


def test_an_elastic_job_grows_onto_devices_that_came_free_while_it_started() -> None:
    world = Worldlet(nodes=1, devices=4, planner=make("sla"), full=True)
    short = world.submit(2, tier="premium", expected_us=MINUTE, preempt="none")
    world.obey = False
    elastic = world.submit(4, expected_us=100 * HOUR, min_devices=2)
    world.obey = True
    end(world, short)
    world.later(3 * SECOND, ev.Started(elastic, 1))
    held = world.engine.book.allocations
    assert sum(part.mask.bit_count() for part in held[elastic]) == 2
    whole = lambda: sum(part.mask.bit_count() for part in held.get(elastic, ())) == 4  # noqa: E731
    assert waits_us(world, whole, HOUR) <= 6 * MINUTE


def test_jobs_are_overdue_in_a_pool_without_nodes() -> None:
    world = Worldlet(nodes=1, devices=4, planner=make("sla"), full=True)
    world.submit(4, tier="premium", expected_us=500 * HOUR, preempt="none")
    world.submit(4, tier="basic", expected_us=HOUR)
    world.later(5 * HOUR)
    world.tell(ev.NodeDown("n0", "gone"))
    world.later(HOUR)
    assert world.engine.view().capacity == 0


@pytest.mark.parametrize("event", [ev.Cancel, ev.Hold])
def test_the_head_of_the_queue_leaves_and_the_next_job_starts(event: type[ev.Event]) -> None:
    """Devices are kept free for it; any that come free could be of use to the elastic job, so no number of them is waited for."""
    world = Worldlet(nodes=2, devices=8, planner=make("sla"), full=True)
    standing = {"tier": "premium", "expected_us": 500 * HOUR, "preempt": "none"}
    world.submit(2, min_devices=1, **standing)
    world.submit(2, **standing)
    short = world.submit(4, tier="premium", expected_us=MINUTE, preempt="none")
    world.submit(4, **standing)
    world.submit(4, tier="basic", expected_us=400 * HOUR)
    world.later(MINUTE)
    end(world, short)
    world.later(MINUTE)
    head = world.submit(8, tier="premium", expected_us=30 * HOUR, placement="one-node")
    world.later(9 * MINUTE)
    small = world.submit(1, tier="basic", expected_us=1000 * HOUR)
    assert world.state(small) is State.QUEUED
    world.tell(event(head, "x"))
    assert world.state(small) is State.RUNNING


@pytest.mark.parametrize(("devices", "refused"), [(8, False), (9, True), (12, True)])
def test_a_job_that_needs_more_devices_than_there_are_of_one_kind_is_refused(devices: int, refused: bool) -> None:
    world = Worldlet(nodes=1, devices=8)
    world.tell(ev.NodeUp(replace(world.nodes[0], name="other", kind="a100", devices=4), "1"))
    spec = {"command": ("true",), "devices": devices, "ranks": devices}
    said = world.reply(ev.Submit(JobSpec(**spec), "s"), "s")
    assert (said.error == Code.NEVER_FITS(devices, (), "consolidate", 8)) is refused


def test_a_journal_of_an_earlier_version_is_replayed_by_its_rules() -> None:
    world = Worldlet(nodes=1, devices=8, settings=EngineSettings(check_every=1))
    world.tell(ev.NodeUp(replace(world.nodes[0], name="other", kind="a100", devices=4), "1"))
    assert world.submit(12)
    assert live_settings().rules > EngineSettings().rules == 0


def test_a_replica_takes_back_what_it_has_lent_as_soon_as_the_borrower_runs() -> None:
    world = Worldlet(nodes=1, devices=4, planner=make("sla"), full=True)
    replica = JobSpec(command=("serve",), devices=2, ranks=2, tier="premium")
    service = ServiceSpec(name="web", replica=replica, min_replicas=0, max_replicas=1, reclaim_us=30 * SECOND)
    world.tell(ev.DeployService(service, "deploy"), ev.ScaleService("web", 0, "none"))
    world.later(3 * MINUTE)
    world.submit(2, tier="premium", expected_us=500 * HOUR, preempt="none")
    answer, world.answers[co.Launch] = world.answers[co.Launch], lambda command: None
    borrower = world.submit(2, tier="basic", expected_us=100 * HOUR)
    world.tell(ev.ScaleService("web", 1, op_id="one"))
    claiming = max(world.engine.book.jobs)
    assert world.state(borrower) is State.STARTING and world.state(claiming) is State.QUEUED
    world.answers[co.Launch] = answer
    world.later(2 * SECOND, ev.Started(borrower, 1))
    assert world.state(claiming) is State.RUNNING


def test_a_job_without_a_promise_is_looked_at_when_its_age_counts_in_full() -> None:
    """60 hours of work count as 40 after half an hour; the job that runs for 100 counts as 50, for half of its work."""
    world = Worldlet(nodes=1, devices=4, planner=make("sla"), full=True)
    world.submit(4, tier="basic", expected_us=100 * HOUR)
    world.later(5 * MINUTE)
    waiting = world.submit(4, tier="basic", expected_us=60 * HOUR)
    longer = world.submit(4, tier="basic", expected_us=90 * HOUR)
    assert waits_us(world, lambda: world.state(waiting) is State.RUNNING, 4 * HOUR) <= 31 * MINUTE
    assert world.engine.book.wake.at > world.now + HOUR, "the other one cannot pass any more"
    assert world.state(longer) is State.QUEUED


def test_a_job_that_presses_and_starts_protects_those_of_its_tier_no_longer() -> None:
    """It takes two of the four devices that come free; the late premium job needs four, with those of the protected job."""
    world = Worldlet(nodes=1, devices=6, planner=make("sla"), full=True)
    short = world.submit(4, tier="premium", expected_us=HOUR, preempt="none")
    protected = world.submit(2, expected_us=3 * HOUR)
    late = world.submit(4, tier="premium", expected_us=HOUR)
    pressing = world.submit(2, expected_us=2 * HOUR)
    world.later(40 * MINUTE)
    end(world, short)
    assert world.state(pressing) is State.RUNNING
    world.later(SECOND)
    assert world.state(late) is State.RUNNING and world.state(protected) is State.SUSPENDED


@pytest.mark.parametrize("ends", [10 * MINUTE, 40 * MINUTE])
def test_a_job_that_ages_waits_for_devices_that_suffice_once_it_is_aged(ends: int) -> None:
    """60 hours of 4 devices count as 160 hours of one then, and what runs on two as 200: only two must come free."""
    world = Worldlet(nodes=1, devices=4, planner=make("sla"), full=True)
    world.submit(2, tier="basic", expected_us=200 * HOUR)
    short = world.submit(2, tier="premium", expected_us=HOUR, preempt="none")
    world.later(5 * MINUTE)
    aging = world.submit(4, tier="basic", expected_us=60 * HOUR)
    world.later(ends)
    end(world, short)
    assert waits_us(world, lambda: world.state(aging) is State.RUNNING, 4 * HOUR) <= max(30 * MINUTE - ends, 0) + MINUTE


def test_a_brief_job_is_protected_from_premium_ones_no_longer_than_another_of_its_tier_presses() -> None:
    world = Worldlet(nodes=16, devices=8, planner=make("sla:headroom=0"), full=True)
    long = {"tier": "premium", "expected_us": 1000 * HOUR, "preempt": "none"}
    for devices in (*[8] * 15, 2):
        world.submit(devices, **long)
    short = world.submit(4, tier="premium", expected_us=10 * MINUTE, preempt="none")
    protected = world.submit(2, expected_us=64 * MINUTE)
    premium = world.submit(4, tier="premium", expected_us=10 * HOUR)
    pressing = world.submit(2, expected_us=60 * MINUTE)
    world.later(10 * MINUTE)
    end(world, short)
    assert world.state(pressing) is State.RUNNING and world.state(protected) is State.RUNNING
    world.later(SECOND)
    assert world.state(premium) is State.RUNNING and world.state(protected) is State.SUSPENDED
