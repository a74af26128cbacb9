"""Traces in the formats of published simulators: Tiresias, Helios, Alibaba PAI and Gavel; and those made of packaged tables.

Formats are factories as in ``sim.traces``. ``argument`` is a file, or the name of a trace that comes with the package, and
``,key=value`` settings. They refuse to know how the jobs are scheduled; that is a profile's and a policy's part.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from ..base.errors import UsageError
from ..base.key_values import key_values
from ..base.units import DAY, SECOND
from ..model.job import Phase
from .philly import philly
from .rate_files import load_rates
from .stream import Reading, open_lines, stem
from .trace import Trace, changed, make_trace, picked
from .trace_csv import TraceFormat, TraceTable, parse, read_csv

TIRESIAS = TraceFormat(
    names={"id": ("job_id",), "devices": ("num_gpu",), "submit": ("submit_time",), "duration": ("duration",)},
    published=True,
)
HELIOS = TraceFormat(
    names={
        "id": ("job_id",), "team": ("vc",), "devices": ("gpu_num",), "submit": ("submit_time",), "duration": ("duration",),
    },
    published=True,
)  # fmt: skip
PAI = TraceFormat(
    names={
        "id": ("job_id",), "team": ("user",), "devices": ("num_gpu",), "instances": ("num_inst",), "submit": ("submit_time",),
        "duration": ("duration",), "type": ("gpu_type",),
    },
    published=True,
)  # fmt: skip
_GAVEL = TraceFormat(
    names={},
    published=True,
    remedy="a trace of Gavel has ten columns between tabs and no header; its jobs need a throughput on one of the kinds "
    "(kind=v100+p100+k80), in the packaged table or in throughputs=FILE",
)
_GAVEL_COLUMNS = 10
_OCTOBER_S = 2_294_959
"""Seconds from Philly's first submission to 2017-10-01, where the evaluations of Helios (SC'21) and others begin."""
_HELIOS_DAYS = 61


def settings(name: str, argument: str, known: tuple[str, ...]) -> tuple[str, dict[str, str]]:
    """The file or trace that ``argument`` names, and its settings. Raises UsageError for unknown ones."""
    source, _, rest = argument.partition(",")
    more = "".join(f",{key}=…" for key in known)
    remedy = f"write {name}:FILE{f' or {name}:FILE{more}' if more else ''}"
    given = key_values(rest, f"{name}:{argument}", remedy)
    unknown = [key for key in given if key not in known]
    if unknown or not source:
        wrong = f"no setting {unknown[0]!r}" if unknown else "no file named"
        raise UsageError(f"{name}:{argument}: {wrong}", remedy)
    return source, given


def _whole(name: str, given: dict[str, str], key: str, default: int) -> int:
    text = given.get(key, str(default))
    if not text.isdecimal():
        raise UsageError(f"{name}: {key}={text}: not a whole number", f"write {key}={default or 1}")
    return int(text)


def tiresias(argument: str, devices: int, reading: Reading | None = None) -> Trace:
    """Tiresias (NSDI'19): a file, ``60`` for the trace that its simulator comes with, or ``480``, ``2000``, ``5000`` for so many
    jobs of Philly at 90 % of 60 GPUs, as made for reruns of the simulator (see docs/simulate.md)."""
    source, _ = settings("tiresias", argument, ())
    if source == "60":
        text = files("tidewright.sim").joinpath("data/tiresias_60_job.csv").read_text("ascii")
        return parse(text.splitlines(True), "tiresias:60", "tiresias:60", TIRESIAS)
    if source.isdecimal():
        return _tiresias_of_philly(int(source))
    return read_csv(Path(source), TIRESIAS, reading)


def _october(days: int = 0) -> Trace:
    """Philly from 2017-10-01 on, for so many days (0: to its end)."""
    trace = philly("", 0)
    after = trace.submit - _OCTOBER_S * SECOND
    return picked(trace, np.flatnonzero((after >= 0) & (after < (days * DAY or 2**62))))


def _tiresias_of_philly(jobs: int) -> Trace:
    """From October on: the first ``jobs`` of 60 s to 10 h and at most 16 GPUs, their arrivals stretched to a load of 0.9."""
    october = _october()
    fit = (october.duration >= 60 * SECOND) & (october.duration <= 36_000 * SECOND) & (october.devices <= 16)
    rows = np.flatnonzero(fit)[:jobs]
    if len(rows) < 2:
        raise UsageError(f"tiresias:{jobs}: at least two jobs", "write tiresias:480")
    submit, duration, wanted = october.submit[rows], october.duration[rows], october.devices[rows].astype(np.int64)
    stretch = float((duration * wanted).sum()) / (0.9 * 60) / float(submit[-1] - submit[0])
    arrivals = np.floor((submit - submit[0]) * stretch / SECOND)
    ids = tuple(str(at) for at in range(len(rows)))
    return make_trace(
        f"tiresias:{jobs}", arrivals, duration / SECOND, wanted, ids=ids, names=tuple(f"t{at}" for at in ids)
    )


def helios(argument: str, devices: int, reading: Reading | None = None) -> Trace:
    """Helios (SC'21): a file (``,vc=NAME``: of one virtual cluster), or the name of a virtual cluster of Philly for its jobs of
    October and November 2017."""
    source, given = settings("helios", argument, ("vc",))
    file = "/" in source or "." in source or Path(source).exists()
    trace = read_csv(Path(source), HELIOS, reading) if file else _october(_HELIOS_DAYS)
    vc = given.get("vc", "" if file else source)
    if vc and vc not in trace.teams:
        raise UsageError(f"helios: no virtual cluster {vc!r}", f"one of {', '.join(trace.teams)}")
    if vc:
        trace = picked(trace, np.flatnonzero(trace.team == trace.teams.index(vc)))
    return changed(trace, name=f"helios:{argument}")


def pai(argument: str, devices: int, reading: Reading | None = None) -> Trace:
    """Alibaba PAI (NSDI'22): a file, or ``philly`` for its first 20,000 jobs from October 2017 on.

    As that simulator does it: ``jobs=N`` of the shuffled rows (``seed=42``) are kept, and ``rate=N`` of them arrive at once every
    minute, in order of their own submission.
    """
    source, given = settings("pai", argument, ("jobs", "seed", "rate"))
    if source == "philly":
        october = _october()
        trace = picked(october, np.arange(min(20_000, len(october))))
        trace = changed(trace, ids=tuple(str(at) for at in range(len(trace))))
    else:
        trace = read_csv(Path(source), PAI, reading)
    jobs, rate = _whole("pai", given, "jobs", 0), _whole("pai", given, "rate", 0)
    rows = list(range(min(len(trace), 10 * jobs + 1) if jobs else len(trace)))  # so many rows its simulator reads
    if jobs:
        Random(_whole("pai", given, "seed", 42)).shuffle(rows)
    kept = picked(trace, np.array(sorted(rows[:jobs] if jobs else rows)))
    if rate:
        kept = changed(kept, submit=np.arange(len(kept), dtype=np.int64) // rate * 60 * SECOND)
    return changed(kept, name=f"pai:{argument}")


def gavel(argument: str, devices: int, reading: Reading | None = None) -> Trace:
    """Gavel (OSDI'20): a file of ten columns between tabs, whose jobs are so many steps of a model.

    ``,kind=v100`` or ``,kind=v100+p100+k80``: run times are those on the fastest of these kinds, V100 by default.
    ``,throughputs=FILE``: steps a second, as ``--rates`` reads them; the packaged table by default.
    """
    source, given = settings("gavel", argument, ("throughputs", "kind"))
    rates, kinds = given.get("throughputs", "gavel"), given.get("kind", "v100").lower()
    speeds = fastest(rates, tuple(kinds.split("+")))
    table = TraceTable(source, {}, _GAVEL)
    with open_lines(Path(source), reading) as lines:
        for line, text in enumerate(lines, 1):
            if text.strip("\r\n"):
                _gavel_row(table, text.strip("\r\n").split("\t"), line, speeds, kinds)
    found = table.trace(stem(Path(source)))
    said = f"run times are those on {'the fastest of ' * ('+' in kinds)}{kinds.replace('+', ', ')}"
    said = f"{said}; with --rates {rates} jobs run faster or slower by the kind of device"
    return changed(found, remarks=(*found.remarks, said))


def fastest(rates: str, kinds: tuple[str, ...]) -> dict[tuple[str, int], float]:
    """Steps a second of each workload on each number of devices, on the fastest of ``kinds``. Raises UsageError for kinds that
    the table does not have."""
    rows = [row for row in load_rates(rates).throughputs if not row.nodes]
    unknown = [kind for kind in kinds if all(row.kind != kind for row in rows)]
    if unknown:
        known = ", ".join(sorted({row.kind for row in rows})) or "none"
        raise UsageError(f"{rates} holds no throughputs of {unknown[0]!r}", f"its kinds: {known}; join several by +")
    found: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.kind in kinds:
            key = row.workload, row.devices
            found[key] = max(found.get(key, 0.0), row.per_s)
    return found


def _gavel_row(table: TraceTable, row: list[str], line: int, speeds: dict[tuple[str, int], float], kinds: str) -> None:
    if len(row) != _GAVEL_COLUMNS:
        old = (
            "; seven are the layout of before 2020, which Gavel's own parser cannot read either"
            if len(row) == 7
            else ""
        )
        table.note(line, f"{len(row)} columns between tabs, not {_GAVEL_COLUMNS}{old}")
        return
    cells: dict[str, Any] = {}
    for name, text in (("total_steps", row[5]), ("scale_factor", row[6]), ("arrival_time", row[9])):
        try:
            cells[name] = float(text) if name == "arrival_time" else int(text)
        except ValueError:
            table.note(line, f"{name}: {text!r} cannot be read")
            return
        if not 0 <= cells[name] < 2**53:
            table.note(line, f"{name}: {text} is below 0, or not finite")
            return
    speed = speeds.get((row[0], cells["scale_factor"]), 0.0)
    if not speed:
        table.note(
            line,
            f"job_type: no throughput of {row[0]} on {cells['scale_factor']} devices of kind {' or '.join(kinds.split('+'))}",
        )
        return
    table.take({
        "submit": cells["arrival_time"], "duration": cells["total_steps"] / speed, "devices": cells["scale_factor"],
        "step_us": SECOND / speed, "workload": (Phase(row[0]),),
    }, line)  # fmt: skip
