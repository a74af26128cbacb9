"""What became of each job, as rows of a CSV file. It refuses to know how the figures of a whole run are made of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from typing import Any

from ..base.units import SECOND
from ..model.job import State, Tier
from .metrics import REFUSED, UNFINISHED
from .run import Simulation
from .stream import packed

COLUMNS = (
    "policy", "id", "name", "submit_s", "start_s", "end_s", "jct_s", "wait_s", "preemptions", "attempts", "devices", "tier",
    "state", "reason", "delivered", "duration_s",
)  # fmt: skip
"""``wait_s``: first start minus submission. ``preemptions``, ``attempts``: so far, where a job has not ended. ``state``:
completed, failed, timeout, cancelled, refused or unfinished. ``reason``: the code of why it was refused, or in which state and
behind which limit it was at the end. ``duration_s``: what its work takes on its full allotment of the kind on which it is
fastest, without costs. ``delivered``: that over the time since submission, of completed jobs, to the last digit of a float.
Times count from the trace's first submission."""


def job_rows(simulation: Simulation, policy: str) -> Iterator[tuple[Any, ...]]:
    """One row per job of the trace in its order, of COLUMNS; cells without a value are empty."""
    trace, outcomes, why = simulation.trace, simulation.outcomes, simulation.why_unfinished()
    columns = (
        trace.submit, trace.duration, trace.devices, trace.tier, outcomes.state, outcomes.start, outcomes.end,
        outcomes.preemptions, outcomes.attempts,
    )  # fmt: skip
    begun = _begun(simulation)
    names = trace.names or ("",) * len(trace)
    ids = trace.ids or tuple(map(str, range(len(trace))))
    for row, (submit, duration, devices, tier, state, start, end, preemptions, attempts) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        ended, completed = end >= 0, state == int(State.COMPLETED)
        start, preemptions, attempts = begun.get(row, (start, preemptions, attempts))
        yield (
            policy, ids[row], names[row], _seconds(submit), _seconds(start) if start >= 0 else "",
            _seconds(end) if ended else "", _seconds(end - submit) if ended else "",
            _seconds(start - submit) if start >= 0 else "", preemptions, attempts, devices, Tier(tier).name.lower(),
            _state(state), outcomes.refusals.get(row, why.get(row, "")),
            repr(duration / max(end - submit, 1)) if completed else "", _seconds(duration),
        )  # fmt: skip


def _begun(simulation: Simulation) -> dict[int, tuple[int, int, int]]:
    """Row to (first start, preemptions, attempts) of jobs that have not ended."""
    book = simulation.engine.book
    table, at = book.table, book.table.row
    return {
        truth.row: (
            int(table.first_start[at[job]]), int(table.preemptions[at[job]]), int(table.attempt[at[job]])
        )
        for job, truth in simulation.world.jobs.items()
    }  # fmt: skip


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

    def content(self, ending: str = "") -> bytes:
        """The file's bytes, packed as a name of this ``ending`` (``.gz``, ``.zst``, ``.xz``) says; plain text for others.

        The same rows give the same bytes: a packed file has no time of day in its head.
        """
        return packed(self._text.getvalue().encode(), ending)
