"""What became of each job, as rows of a CSV file. It refuses to know how the figures of a whole run are made of them."""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Iterator
from typing import Any

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
    return {UNFINISHED: "unfinished", REFUSED: "refused"}.get(state) or State(state).word


def _seconds(us: int) -> str:
    return f"{us / SECOND:.6f}".rstrip("0").rstrip(".")


class JobsTable:
    """A CSV file of ``COLUMNS`` in memory, until it is whole."""

    def __init__(self) -> None:
        self._text = io.StringIO(newline="")
        self.add([COLUMNS])

    def add(self, rows: Iterable[tuple[Any, ...]]) -> None:
        """Append rows."""
        csv.writer(self._text, lineterminator="\n").writerows(rows)

    def content(self, packed: bool) -> bytes:
        """The file's bytes. The same rows give the same bytes: a packed file has no time of day in its head."""
        plain = self._text.getvalue().encode()
        return gzip.compress(plain, mtime=0) if packed else plain
