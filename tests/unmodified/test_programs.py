"""Unmodified programs, suspended, migrated and resized at random: every digest and every line as without us."""

from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from tests.criu_here import criu_here
from tests.unmodified.harness import differences, run_plain
from tests.unmodified.pool import Pool
from tests.unmodified.programs import PROGRAMS, Program
from tidewright.checkpoint.criu.program import Criu

pytestmark = pytest.mark.processes
CRIU = criu_here()
full_images = pytest.mark.skipif(not isinstance(CRIU, Criu), reason=f"no full images here: {CRIU}")

CASES = [(program, world) for program in PROGRAMS for world in program.ranks]
QUICK = {("tcp_pairs", 1): 3}
"""What make test has time for, and how many events: TCP of a program's own. Files: tests/agent, tests/checkpoint; ranks of
PyTorch that are moved: tests/unmodified/test_spread.py; those that are cut as they train: tests/launch/test_inject_cut.py."""
MANY = 20
LONGER = 4
"""So many times a program's usual steps leave room for several events."""
RIDES = 8


def named(cases: list[tuple[Program, int]]) -> list[object]:
    return [pytest.param(program, world, id=f"{program.name}-{world}") for program, world in cases]


def prove(pool: Pool, program: Program, world: int, tmp_path: Path, events: int, longer: int) -> None:
    """A plain run, and rides without a difference until ``events`` have taken place."""
    if lacking := program.missing():
        pytest.skip(f"{program.name} needs {lacking}")
    steps = program.steps * longer
    plain = run_plain(program, world, tmp_path / "plain", steps)
    done: list[str] = []
    for number in range(RIDES):
        seed = zlib.crc32(f"{program.name} {world} {number}".encode())
        name = f"{program.name}-{world}-{events}-{number}"
        ride = pool.ride(program, world, name, events=events - len(done), seed=seed, steps=steps)
        told = f"seed {seed}, events {ride.events}, refused {ride.refused}, {ride.view.why}"
        assert ride.view.state == "completed", f"{told}\n{ride.last}"
        assert differences(plain, ride.outcome) == [], told
        assert not [each for each in ride.refused if "debugger" in each], told
        done += ride.events
        if len(done) >= events:
            return
    raise AssertionError(f"only {len(done)} of {events} events took place: {told}")


@full_images
@pytest.mark.parametrize(("program", "world"), named([case for case in CASES if (case[0].name, case[1]) in QUICK]))
def test_a_few_events_leave_no_trace(pool: Pool, program: Program, world: int, tmp_path: Path) -> None:
    prove(pool, program, world, tmp_path, QUICK[program.name, world], longer=1)


@full_images
@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("program", "world"), named(CASES))
def test_many_events_leave_no_trace(pool: Pool, program: Program, world: int, tmp_path: Path) -> None:
    prove(pool, program, world, tmp_path, MANY, longer=LONGER)


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("program", "world"), named(CASES))
def test_plain_runs_are_equal(program: Program, world: int, tmp_path: Path) -> None:
    """Otherwise the digests prove nothing."""
    if lacking := program.missing():
        pytest.skip(f"{program.name} needs {lacking}")
    first, second = (run_plain(program, world, tmp_path / name) for name in ("first", "second"))
    assert differences(first, second) == []
