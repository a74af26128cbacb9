"""``tide whatif`` as it is typed: what the table says of jobs that no longer fit, and of times too short to print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidewright.engine.events import Exited

from ..app.test_recorded import record, spec
from .stub import Terminal


@pytest.mark.parametrize("count", [1, 2, 12])
def test_jobs_that_no_longer_fit_are_counted_and_named(tide: Terminal, tmp_path: Path, count: int) -> None:
    jobs = [(spec(devices=2, ranks=2, name=f"wide{at}"), 5) for at in range(count)] + [(spec(name="small"), 5)]
    journal = record(jobs, end=500).write(tmp_path / "journal.ndjson")
    said = tide("whatif", "--cluster", "1x1:cpu", str(journal))
    assert said.code == 0, said.err
    assert ("1 job no longer fits and is" if count == 1 else f"{count} jobs no longer fit and are") in said.out
    assert "  1 wide0 (NeverFits)" in said.out and said.out.count("(NeverFits)") == min(count, 10)
    assert ("and 2 more" in said.out) is (count == 12)
    row = next(line for line in said.out.splitlines() if "no longer fit " in line and "│" in line)
    assert row.split("│")[4].strip() == str(count)


def test_jobs_that_failed_are_counted_among_those_that_ended(tide: Terminal, tmp_path: Path) -> None:
    """Simulated, they run for as long as they had."""
    journal = record([(spec(), 5), (spec(), 50)], end=40, last=Exited(2, 1, 1)).write(tmp_path / "journal.ndjson")
    said = tide("whatif", "--add", "2xcpu", str(journal)).out
    row = next(line for line in said.splitlines() if "jobs ended" in line)
    assert [cell.strip() for cell in row.split("│")[2:4]] == ["2", "2"] and "completed" not in said


@pytest.mark.parametrize("job", ["12", "sweep[3]"])
def test_a_job_is_no_journal(tide: Terminal, job: str) -> None:
    said = tide("whatif", "--add", "2xcpu", job)
    assert said.code == 2 and f"tide why {job}, tide eta {job}" in said.err


def test_times_are_never_0ms(tide: Terminal, tmp_path: Path) -> None:
    journal = record([(spec(), 5), (spec(), 5)], end=50).write(tmp_path / "journal.ndjson")
    said = tide("whatif", "--add", "2xcpu", str(journal)).out
    assert "0ms" not in said and "no longer fit" not in said
    assert [cell.strip() for cell in next(line for line in said.splitlines() if "wait, mean" in line).split("│")][
        3
    ] == "-"
