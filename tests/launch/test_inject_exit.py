"""Ranks that end, one of them long before the other, while cuts are requested all the time: no rank waits for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ports import free_port

from .gang import Gang, harass
from .warm import Warm

pytestmark = pytest.mark.processes


@pytest.mark.parametrize(
    "cuts", [pytest.param(0, marks=pytest.mark.full), 40, pytest.param(1000, marks=pytest.mark.full)]
)
def test_what_is_done_at_exit_is_done(cuts: int, tmp_path: Path, warm: Warm) -> None:
    """The groups are there until all that the program has registered at exit has run; then the other goes on without."""
    gang = Gang(tmp_path / "gang", 2, ["last.py", "30", "1"], warm=warm if cuts == 40 else None)
    try:
        gang.start(free_port())
        if cuts:
            reports = harass(gang, 3, cuts, 0.02)
            assert reports
        found = gang.wait()
    finally:
        gang.end()
    sums = [4.0 * (2 * step + 1) for step in range(30)]
    assert found == {rank: {"sums": sums, "last": 2.0} for rank in range(2)}
