"""State directories with faults in them, for ``tide doctor``."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tidewright.app.health.finding import Finding
from tidewright.drive.record import StepRecord, encode
from tidewright.engine.commands import Ended
from tidewright.live.journal.archive import row_of
from tidewright.live.journal.store import Journal
from tidewright.model.job import JobSpec


def journal_of_ended(state: Path, *jobs: int) -> None:
    """A journal in which these jobs have ended."""
    journal = Journal(state)
    for turn, job in enumerate(jobs, 1):
        ended = Ended(job, 8, JobSpec(name=f"job-{job}", command=("x",)), 0, 1, 2, 1, 10**9, 10**9, 1, 1, 0, "finished")
        journal.append(encode(StepRecord(turn, turn, [], [ended])))
        journal.end(row_of(turn, ended))
    journal.commit()
    journal.close()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """As if a daemon held this lock."""
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(file)


def mended(finding: Finding) -> str:
    """What its repair did."""
    assert finding.mend is not None, finding
    return finding.mend()


def quiet(text: str) -> None:
    """Progress that is not shown."""
