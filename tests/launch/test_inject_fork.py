"""Forked children of real ranks: they have no connection of the rank's, everything of the program's own, and no page."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.ports import free_port

from .gang import Gang, harass

pytestmark = pytest.mark.processes

STEPS = 150


@pytest.mark.full
def test_children_have_what_is_the_programs_and_nothing_else(tmp_path: Path) -> None:
    """Forks at every step, so some while the rank stands still, or is connecting again."""
    left: dict[str, dict] = {}
    for name in ("plain", "cut"):
        gang = Gang(tmp_path / name, 2, ["forks.py", str(STEPS)], wrapped=name == "cut")
        try:
            gang.start(free_port())
            if gang.wrapped:
                await_first_child(gang)
                reports = harass(gang, 1, 10, 0.1, check=lambda _: None)
            left[name] = gang.wait()
        finally:
            gang.end()
        found = {rank: children(gang, rank) for rank in range(2)}
        if gang.wrapped:
            assert {report.ranks for report in reports} <= {1, 2} and any(report.worlds for report in reports)
            assert not any(int(line.split()[0]) for lines in found.values() for line in lines), found
        else:
            assert all(any(int(line.split()[0]) for line in lines) for lines in found.values()), (
                "torch leaves children nothing"
            )
    assert left["cut"] == left["plain"]


def await_first_child(gang: Gang) -> None:
    """Importing torch takes longer than all that follows."""
    while gang.running() and not Path(f"{gang.out}.children.0").exists():
        time.sleep(0.01)


def children(gang: Gang, rank: int) -> set[str]:
    """How many sockets beyond the program's own the children of ``rank`` had, and which."""
    return set(Path(f"{gang.out}.children.{rank}").read_text().splitlines())
