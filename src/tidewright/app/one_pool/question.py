"""One pool against a split, in the words of the command line: what is named there becomes curves, profiles and a trace."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import msgspec

from ...base.errors import UsageError
from ...base.units import HOUR, SECOND
from ...serve.arrivals import RateCurve
from ...serve.profile import packaged_profile, read_profile
from ...sim.clusters import load_cluster
from ...sim.stream import named_rows, open_lines
from ..simulate import Question, load_trace_of, options_of, policies, shaped
from .run import PoolComparison, Progress, ServedDay, compare_day

MADE_UP_DAY = RateCurve(
    (*[2.0] * 4, 1.5, 1.5, 2.0, 3.5, 6.0, 8.0, 9.0, 9.5, 8.5, 9.0, 10.0, 9.5, 8.5, 7.5, 7.0, 6.5, 6.0, 5.0, 4.0, 3.0),
    HOUR,
    "made up: a working day by the hour",
)

_SHOWN = 10


class PoolQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """Each field is the option of its name of ``tide colocate``; times are microseconds."""

    rates: Path | None = None
    served: str = "resnet50-v100-amp"
    objective: int
    peak: float
    load_time: int
    start_time: int
    hold: int
    training: Question


def compare(question: PoolQuestion, progress: Progress) -> PoolComparison:
    """Run all that is asked. Raises UsageError, and NotFound for a profile that there is not."""
    training = question.training
    names = policies(training.policy)
    if len(names) > 1:
        raise UsageError(f"{len(names)} policies", "give one --policy")
    served = question.served
    day = ServedDay(
        curve=MADE_UP_DAY if question.rates is None else read_curve(question.rates),
        profile=read_profile(Path(served)) if served.endswith(".json") else packaged_profile(served),
        objective_us=question.objective, peak_share=question.peak, load_us=question.load_time,
        start_us=question.start_time, hold_us=question.hold,
    )  # fmt: skip
    nodes = load_cluster(training.cluster)
    trace = shaped(load_trace_of(training, nodes), training, nodes)
    return compare_day(trace, nodes, names[0], options_of(training), day, progress)


def read_curve(path: Path) -> RateCurve:
    """The curve in a CSV file with the columns ``second`` and ``rate``: equal steps of time, each rate until the next one.

    Raises UsageError for a file that is none.
    """
    remedy = "give a CSV file with the columns second and rate, at equal steps of time"
    mistakes: list[str] = []
    rows: list[tuple[float, float]] = []

    def wrong(line: int, text: str) -> None:
        mistakes.append(f"{path}:{line}: {text}")

    with open_lines(path) as lines:
        for row, line in named_rows(lines, str(path), remedy, ("second", "rate"), wrong):
            try:
                rows.append((float(row["second"]), float(row["rate"])))
            except ValueError as error:
                wrong(line, str(error))
    if mistakes:
        raise UsageError("\n".join(mistakes[:_SHOWN]), remedy)
    steps = [later[0] - earlier[0] for earlier, later in pairwise(rows)]
    if not steps or min(steps) <= 0 or max(steps) - min(steps) > 1e-3 * max(steps):
        raise UsageError(f"cannot read rates from {path}: its steps of time are not equal and above 0", remedy)
    return RateCurve(tuple(rate for _, rate in rows), round(steps[0] * SECOND), str(path))
