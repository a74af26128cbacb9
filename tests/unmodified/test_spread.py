"""A job spread over hosts and brought together again: what its ranks have left for each other is always where they meet."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tests.unmodified.harness import LIMIT_S, differences, read, run_plain
from tests.unmodified.pool import FINAL, Pool, places
from tests.unmodified.programs import PROGRAMS, Program, script
from tests.unmodified.test_programs import LONGER, MANY, prove
from tidewright.checkpoint.criu.program import Criu

CRIU = criu_here()
pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(not isinstance(CRIU, Criu), reason=f"no full images here: {CRIU}"),
]
PAIRS = [program for program in PROGRAMS if 2 in program.ranks]
PROGRAM = script("store_population", needs=("torch",))
STEPS = 300
"""Twice as many steps where some have passed before the first move."""


@pytest.fixture
def pool() -> Iterator[Pool]:
    """Two hosts with one slot each: two ranks are either on one slot or on both hosts."""
    with tempfile.TemporaryDirectory(prefix="tide-um-") as root:
        made = Pool(Path(root), slots=1)
        try:
            made.up()
            yield made
        finally:
            made.clean()


@pytest.mark.parametrize(
    ("first", "sizes"),
    [
        (0, (1, 2)),
        pytest.param(0, (1, 2, 1, 2), marks=pytest.mark.full),
        pytest.param(100, (1, 2, 1, 2), marks=pytest.mark.full),
    ],
    ids=["at-its-start", "at-its-start-twice", "later-twice"],
)
def test_what_ranks_leave_for_each_other_survives_every_move(
    pool: Pool, tmp_path: Path, first: int, sizes: tuple[int, ...]
) -> None:
    """With ``first`` 0 some ranks have not met yet when the first event comes."""
    steps = 2 * STEPS if first else STEPS
    plain, dice = run_plain(PROGRAM, 2, tmp_path / "plain", steps), random.Random(first)
    job = pool.submit(PROGRAM, 2, "spread", steps)
    pool.reach(job, "running")
    pool.until(lambda: pool.steps(job) >= first or pool.view(job).state in FINAL)
    seen = set()
    for size in sizes:
        since = pool.view(job).since
        pool.client().scale(job, size)
        pool.settle(job, lambda view, size=size: view.state == "running" and view.held == size, since)  # type: ignore[misc]
        seen.add(len(places(pool.view(job))))
        time.sleep(dice.uniform(0, 0.2))
    assert seen == {1, 2}
    pool.until(lambda: pool.view(job).state in FINAL, LIMIT_S)
    logs = [pool.log(job, rank) for rank in range(2)]
    assert pool.view(job).state == "completed", pool.view(job).why + "\n" + "\n".join(log[-2000:] for log in logs)
    assert differences(plain, read(logs)) == []


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("program", PAIRS, ids=lambda program: program.name)
def test_many_events_over_hosts_leave_no_trace(pool: Pool, program: Program, tmp_path: Path) -> None:
    prove(pool, program, 2, tmp_path, MANY, LONGER)
