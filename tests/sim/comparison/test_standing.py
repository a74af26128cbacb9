"""Which policy is best, level with the best, dominated, or not ranked at all."""

from __future__ import annotations

from tests.sim.comparison.made import LOAD_2, cell, comparison
from tidewright.sim.comparison.bar import missed
from tidewright.sim.comparison.cells import ANY
from tidewright.sim.comparison.figures import FIGURE
from tidewright.sim.comparison.standing import dominated, marks, pareto_statements


def test_level_is_by_pairs_of_replicates() -> None:
    """b is always a little worse than a; c is worse in one replicate and better in another."""
    times = {"a": (100, 200, 300), "b": (101, 201, 301), "c": (150, 190, 280)}
    cells = [
        cell(policy, f"seed {at}", jct_mean_s=float(seconds))
        for policy, row in times.items()
        for at, seconds in enumerate(row)
    ]
    (group,) = comparison(*cells).groups
    assert marks(FIGURE["jct_mean_s"], group) == {"a": "best", "b": "", "c": "level"}


def test_a_result_of_all_replicates_is_paired_with_each() -> None:
    cells = [cell("a", f"seed {at}", jct_mean_s=seconds) for at, seconds in enumerate((90.0, 100.0, 110.0))]
    (group,) = comparison(*cells, cell("b", ANY, jct_mean_s=101.0)).groups
    assert marks(FIGURE["jct_mean_s"], group) == {"a": "best", "b": "level"}


def test_dominated_needs_every_figure() -> None:
    good = {"jct_mean_s": 100.0, "jct_p99_s": 200.0, "rho_p99": 1.0}
    (group,) = comparison(
        cell("good", kept=0.9, **good), cell("equal", kept=0.9, **good),
        cell("worse", kept=0.9, **{**good, "rho_p99": 1.5}),
        cell("apart", kept=0.9, **{**good, "rho_p99": 1.5, "jct_mean_s": 50.0}),
    ).groups  # fmt: skip
    assert dominated(group) == {"worse": ["good", "equal", "apart"]}


def test_a_policy_that_completed_less_is_not_ranked() -> None:
    """Its mean is the shortest, for the long jobs are not in it."""
    (group,) = comparison(
        cell("fair", jct_mean_s=100.0, jobs=1000, completed=1000),
        cell("starving", jct_mean_s=10.0, jobs=1000, completed=900, unfinished=100),
    ).groups
    assert marks(FIGURE["jct_mean_s"], group) == {"fair": "best", "starving": ""}
    assert pareto_statements([group]) == [
        "dominated nowhere (1 group): fair",
        "not ranked, as others completed more jobs in every group: starving",
    ]


def test_no_completed_job_is_no_figure_rather_than_the_best() -> None:
    (group,) = comparison(cell("none", completed=0, jct_mean_s=0.0)).groups
    assert set(marks(FIGURE["jct_mean_s"], group).values()) == {""}
    assert dominated(group) == {}


def test_statements_count_groups() -> None:
    cells = [
        cell("a", kept=0.9, jct_mean_s=1.0), cell("b", kept=0.8, jct_mean_s=2.0),
        cell("a", kept=0.9, jct_mean_s=2.0, settings=LOAD_2), cell("b", kept=0.8, jct_mean_s=1.0, settings=LOAD_2),
    ]  # fmt: skip
    assert pareto_statements(comparison(*cells).groups) == [
        "dominated nowhere (2 groups): a",
        "b is dominated in 1 of 2 groups: by a in 1",
    ]


def test_the_bar() -> None:
    (group,) = comparison(
        cell("sla", kept=0.8, preemptions=90, run_hours=60.0, rho_p99=2.0),
        cell("las", kept=0.9, rho_p99=2.0),
        cell("fifo", kept=0.2, rho_p99=2.0),
    ).groups
    assert missed(group) == [
        "kept, count 10.0% below las", "kept, work 10.0% below las", "1.50 preemptions per hour of run", "dominated by las",
    ]  # fmt: skip
    assert missed(group, "las") == []
