"""When ``sla`` asks for another plan: no sooner than one could change something, and always when one could."""

from collections.abc import Callable

import numpy as np
import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine.book import Book
from tidewright.engine.commands import Launch, PlanRequest, ResumeRanks
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Simulation
from tidewright.sim.trace import Trace, make_trace
from tidewright.sim.traces import load_trace

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


def starts(trace: Trace, cluster: str) -> dict[int, list[int]]:
    """When each job was launched or resumed, µs."""
    found: dict[int, list[int]] = {}

    def look(book: Book) -> None:
        for command in book.out:
            if isinstance(command, (Launch, ResumeRanks)):
                found.setdefault(command.job, []).append(book.now)

    run(Simulation(trace, load_cluster(cluster), make("sla")), look)
    return found


@pytest.mark.parametrize("tier", [0, 1])
def test_in_a_pool_where_nothing_else_happens_a_preempted_job_has_its_turn(tier: int) -> None:
    """Its device goes to a premium job of 30 hours. It becomes overdue after 4 hours, is patient for a quantum more, and the
    premium one is back after a quantum."""
    hours = np.array([5.0, 30.0])
    trace = make_trace("two", np.array([0.0, 600.0]), hours * 3600, np.array([1, 1]), tier=np.array([tier, 2], np.int8))
    first, second = starts(trace, "1x1").values()
    patience = 4 * HOUR + 15 * MINUTE
    assert 0 <= first[1] - 10 * MINUTE - patience < 10 * SECOND
    assert 0 <= second[1] - first[1] - 15 * MINUTE < 10 * SECOND


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
        if not (asked or book.planning or book.wake.at == book.now + 1):
            moving.append(bool(planner.plan(book.view()).moves))

    run(simulation, look)
    assert len(moving) > jobs and sum(moving) <= len(moving) / 50


def test_a_small_pool_that_is_overloaded_is_planned_three_times_for_each_job() -> None:
    """Before rounds were left out that can change nothing, it was six times."""
    jobs = 600
    simulation = Simulation(load_trace(f"philly:{jobs}", 480), load_cluster("20x8"), make("sla"))
    simulation.run()
    assert jobs < simulation.planning_rounds < 3.5 * jobs
