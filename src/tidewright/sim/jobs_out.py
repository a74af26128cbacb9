"""What became of each job, as rows of a CSV file. It refuses to know how the figures of a whole run are made of them."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from ..base.output_file import OutputFile
from ..base.units import SECOND
from ..model.job import State, Tier
from .metrics import REFUSED, UNFINISHED
from .run import Simulation

COLUMNS = (
    "policy", "id", "name", "submit_s", "start_s", "end_s", "jct_s", "wait_s", "preemptions", "attempts", "devices", "tier",
    "state", "reason", "delivered",
)  # fmt: skip
"""``wait_s``: first start minus submission. ``state``: completed, failed, timeout, cancelled, refused or unfinished. ``reason``:
the code of why it was refused, or in which state and behind which limit it was at the end. ``delivered``: run time on the full
allotment over the time since submission, of completed jobs. Times count from the trace's first submission."""


def job_rows(simulation: Simulation, policy: str) -> Iterator[tuple[Any, ...]]:
    """One row per job of the trace in its order, of COLUMNS; cells without a value are empty."""
    trace, outcomes, why = simulation.trace, simulation.outcomes, simulation.why_unfinished()
    columns = (
        trace.submit, trace.duration, trace.devices, trace.tier, outcomes.state, outcomes.start, outcomes.end,
        outcomes.preemptions, outcomes.attempts,
    )  # fmt: skip
    names = trace.names or ("",) * len(trace)
    ids = trace.ids or tuple(map(str, range(len(trace))))
    for row, (submit, duration, devices, tier, state, start, end, preemptions, attempts) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        ended, completed = end >= 0, state == int(State.COMPLETED)
        yield (
            policy, ids[row], names[row], _seconds(submit), _seconds(start) if start >= 0 else "",
            _seconds(end) if ended else "", _seconds(end - submit) if ended else "",
            _seconds(start - submit) if start >= 0 else "", preemptions, attempts, devices, Tier(tier).name.lower(),
            _state(state), outcomes.refusals.get(row, why.get(row, "")),
            f"{duration / max(end - submit, 1):.6f}" if completed else "",
        )  # fmt: skip


def _state(state: int) -> str:
    return {UNFINISHED: "unfinished", REFUSED: "refused"}.get(state) or State(state).name.lower()


def _seconds(us: int) -> str:
    return f"{us / SECOND:.6f}".rstrip("0").rstrip(".")


class JobsFile:
    """A CSV file of ``COLUMNS``, packed when its name ends in .gz. A context manager."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._text: TextIO | None = None

    def __enter__(self) -> JobsFile:
        self._file = OutputFile(self.path, "--jobs-out")
        raw: Any = self._file.stream
        # Without a time of day in its head, so that the same run gives the same bytes.
        packed = gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) if self.path.suffix == ".gz" else None
        self._text = io.TextIOWrapper(packed or raw, encoding="utf-8", newline="")
        try:
            self.add([COLUMNS])
        except BaseException:
            self._file.discard()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *failure: object) -> None:
        assert self._text is not None
        try:
            self._text.close()
        except OSError as error:
            self._file.discard()
            raise self._file.unwritable(error) from error
        if kind is None:
            self._file.finish()
        else:
            self._file.discard()

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Write rows. Raises UsageError when the disk refuses them."""
        assert self._text is not None
        try:
            csv.writer(self._text, lineterminator="\n").writerows(rows)
        except OSError as error:
            raise self._file.unwritable(error) from error
