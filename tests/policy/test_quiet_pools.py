"""Turns of overdue jobs under ``sla`` where nothing else happens that would have a plan made."""

import numpy as np
import pytest

from tidewright.base.units import HOUR, MINUTE, SECOND
from tidewright.engine.book import Book
from tidewright.engine.commands import Launch, ResumeRanks
from tidewright.model.job import JobSpec, Level, State
from tidewright.policy.overdue import OverdueQueue, WaitBound, patience_us, spacing_us
from tidewright.policy.registry import make
from tidewright.sim.clusters import load_cluster
from tidewright.sim.run import Simulation
from tidewright.sim.trace import make_trace
from tidewright.testing.views import NOW, ViewBuilder, pool

from .test_wakes import run

LIMIT = WaitBound()
SOON = 10 * SECOND


def starts(cluster: str, jobs: list[tuple[float, float, int, int]]) -> dict[int, list[int]]:
    """When each job was launched or resumed, µs; ``jobs``: submission in seconds, run time in hours, devices and tier."""
    submit, hours, devices, tier = (np.array(column) for column in zip(*jobs, strict=True))
    trace = make_trace("quiet", submit.astype(float), hours * 3600.0, devices, tier=tier.astype(np.int8))
    found: dict[int, list[int]] = {}

    def look(book: Book) -> None:
        for command in book.out:
            if isinstance(command, (Launch, ResumeRanks)):
                found.setdefault(command.job, []).append(book.now)

    run(Simulation(trace, load_cluster(cluster), make("sla")), look)
    return found


@pytest.mark.parametrize("tier", [0, 1])
def test_a_preempted_job_has_its_turn(tier: int) -> None:
    """Its device goes to a premium job of 30 hours. It becomes overdue after 4 hours, is patient for a quantum more, and the
    premium one is back after a quantum."""
    first, second = starts("1x1", [(0, 5, 1, tier), (600, 30, 1, 2)]).values()
    patience = LIMIT.max_wait_us + LIMIT.quantum_us
    assert 0 <= first[1] - 10 * MINUTE - patience < SOON
    assert 0 <= second[1] - first[1] - LIMIT.quantum_us < SOON


@pytest.mark.parametrize(("cluster", "devices"), [("3x8", 3), ("3x8", 5), ("3x8", 6), ("2x8", 4), ("5x8", 7)])
def test_patience_that_is_no_whole_number_of_microseconds_ends(cluster: str, devices: int) -> None:
    nodes = load_cluster(cluster)
    capacity = sum(node.devices for node in nodes)
    premium = [(600, 300, 1, 2)] * capacity
    large = starts(cluster, [(0, 50, devices, 0), *premium])[1]
    patience = int(patience_us(LIMIT, np.array([devices]), capacity).item())
    spacing = int(spacing_us(LIMIT, np.array([devices], np.int32), capacity).item())
    assert patience <= large[1] - 10 * MINUTE <= patience + spacing + SOON


@pytest.mark.parametrize("later", [0, 1])
def test_the_share_is_one_jobs_until_its_quantum_ends_and_then_the_next_ones(later: int) -> None:
    """Eight of 80 devices are the share. A job of eight takes it, while it is just starting, too; one of a single device, whose
    patience ends at the same time or 5 minutes ``later``, has its turn when the quantum of the first is over."""
    premium = [(600, 300, 1, 2)] * (80 - later) + [(900, 300, 1, 2)] * later
    found = starts("10x8", [(0, 100, 8, 0), (1, 1, 1, 0), *premium])
    turn = found[1][1]
    assert turn < 5 * HOUR
    assert 0 <= found[2][1] - turn - LIMIT.quantum_us < SOON


def test_a_start_that_outlasts_a_quantum_hides_no_other_time() -> None:
    builder = ViewBuilder(pool(1), NOW)
    spec = JobSpec(command=("true",), devices=8, ranks=8, expected_us=100 * HOUR)
    long_ago = {"submit": NOW - 10 * HOUR, "wait_since": NOW - 6 * HOUR, "since": NOW - 16 * MINUTE, "run_since": -1}
    builder.run(spec, 8, level=int(Level.FULL), state=int(State.RESUMING), **long_ago)
    builder.queue(spec, submit=NOW - 5 * HOUR, wait_since=NOW - 5 * HOUR)
    view = builder.view()
    queue = OverdueQueue(view, LIMIT, view.jobs.expected)
    assert queue.served.tolist() == [True, False]
    still, leaving = view.jobs.waiting, np.zeros(view.jobs.n, bool)
    assert queue.next_at(still, leaving) == NOW + LIMIT.quantum_us
