"""When ``sla`` asks for another plan: no sooner than one could change something, and always when one could."""

from collections.abc import Callable

import numpy as np
import pytest

from tidewright.base.units import SECOND
from tidewright.engine.book import Book
from tidewright.engine.commands import PlanRequest
from tidewright.model.node import Part
from tidewright.plan.moves import Migrate, Start
from tidewright.policy.compose import Composer
from tidewright.policy.preferences import Preferences
from tidewright.policy.registry import make
from tidewright.policy.wakes import Reach
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Simulation
from tidewright.sim.traces import load_trace
from tidewright.testing.worldlet import Worldlet

from ..sizes import examples


def run(simulation: Simulation, look: Callable[[Book], None]) -> None:
    """Let the simulation run to its end; ``look`` sees the book after each step, with its commands in ``out``."""
    engine = simulation.engine
    steps = engine.step_in_parts

    def step(now, events):
        yield from steps(now, events)
        look(engine.book)

    engine.step_in_parts = step
    simulation.run()


@pytest.mark.parametrize(
    ("trace", "cluster"),
    [
        ("synthetic:jobs={},load=1.4,sizes=1:0.7/2:0.1/4:0.1/8:0.1", "6x8"),
        ("synthetic:jobs={},load=1.1,elastic=0.3", "4x8:v100,4x4:a100"),
        ("synthetic:jobs={},load=1.2,tiers=premium:0.2/standard:0.5/basic:0.3", "6x8"),
        ("philly:{}", "20x8"),
    ],
)
def test_where_no_plan_is_asked_for_one_would_move_nothing(trace: str, cluster: str) -> None:
    """Nearly: one that looks again may see a second change, which the next event or minute brings."""
    jobs = examples(250)
    nodes = load_cluster(cluster)
    simulation = Simulation(load_trace(trace.format(jobs), sum(node.devices for node in nodes)), nodes, make("sla"))
    planner, moving = make("sla"), []

    def look(book: Book) -> None:
        asked = any(isinstance(command, PlanRequest) for command in book.out)
        # The job that an end of a quantum waits for may be found with a plan for something else, seconds before.
        if not (asked or book.planning or 0 < book.wake.at - book.now <= 5 * SECOND):
            moving.append(bool(planner.plan(book.view()).moves))

    run(simulation, look)
    assert len(moving) > jobs and sum(moving) <= len(moving) / 500


def test_a_busy_pool_is_planned_less_than_twice_for_each_job() -> None:
    """Before rounds were left out that can change nothing, it was three times."""
    jobs = 1500
    simulation = Simulation(load_trace(f"philly:{jobs}", 480), load_cluster("philly-480"), make("sla"))
    simulation.run()
    assert jobs < simulation.planning_rounds < 2 * jobs


KEY, WAITING = np.array([5, 1]), np.array([False, True])


def reach(world: Worldlet, **fields: object) -> Reach:
    """Of a policy that wants the second row most."""
    view = world.engine.view()
    preferences = Preferences(key=KEY[: view.jobs.n], waiting=view.jobs.waiting, why=lambda row: "x")
    return Reach(Composer(view, preferences), **{"kept": (), "never": np.zeros(view.jobs.n, bool), **fields})


def test_a_job_that_migrates_could_be_preempted_where_it_goes() -> None:
    """A gang of both nodes waits: one is free, and the other one will be held by the job that is on its way there."""
    world = Worldlet(2, 8)
    moving = world.submit(8)
    world.plan(Start(moving, (Part(0, 255),), "x"))
    world.obey = False
    world.plan(Migrate(moving, (Part(1, 255),), "x"))
    world.submit(16)
    assert reach(world).least_key(WAITING, ~WAITING) == 1


def test_a_job_waits_for_one_that_starts_only_if_its_devices_lie_where_they_are_wanted() -> None:
    """On each of two nodes two devices are free, and two held: by a job that is starting, and by one that stays or does not."""
    world = Worldlet(2, 4)
    starting, other = world.submit(2), world.submit(2)
    world.obey = False
    world.plan(Start(starting, (Part(0, 3),), "x"), Start(other, (Part(1, 3),), "x"))
    world.submit(4, placement="one-node")
    view = world.engine.view()
    composer = Composer(view, Preferences(key=np.array([5, 5, 1]), waiting=view.jobs.waiting, why=lambda row: "x"))
    first, last = np.array([True, False, False]), np.array([False, False, True])
    assert Reach(composer, (), ~first & ~last).least_key(last, first) == 1
    assert Reach(composer, (), first).least_key(last, first) == 1
    assert Reach(composer, (), ~last).least_key(last, first) is None


@pytest.mark.parametrize(("overdue", "least"), [(False, 7), (True, 4)])
def test_devices_that_are_kept_free_are_kept_from_jobs_that_are_not_overdue(overdue: bool, least: int) -> None:
    world = Worldlet(1, 8)
    first = world.submit(5)
    world.plan(Start(first, (Part(0, 31),), "x"))
    world.submit(4)
    none, first_served = np.zeros(2, bool), WAITING & overdue
    assert reach(world, kept=(Part(0, 224),)).least_free(WAITING, none, 3, first_served, KEY) == least


@pytest.mark.parametrize(("key", "aged", "least"), [(1, 1, 4), (9, 9, 8), (9, 4, 4)])
def test_a_job_that_may_preempt_lacks_what_the_others_do_not_have(key: int, aged: int, least: int) -> None:
    """Five devices are held by the other job, and none is free: with these it lacks three, or eight of its own."""
    world = Worldlet(1, 8)
    first = world.submit(4)
    world.plan(Start(first, (Part(0, 15),), "x"))
    world.submit(8)
    view = world.engine.view()
    preferences = Preferences(key=np.array([5, key]), waiting=view.jobs.waiting, why=lambda row: "x")
    what = Reach(Composer(view, preferences), (), np.zeros(2, bool))
    found = what.least_free(WAITING, WAITING, 0, ~WAITING & False, np.array([5, aged]))
    assert found == least
