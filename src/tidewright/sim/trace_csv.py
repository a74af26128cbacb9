"""Reading traces from CSV files with a header: ours, and most others by their column names.

Every mistake in the file is reported with its line. It refuses to know what the jobs are used for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from ..base.errors import UsageError
from ..base.ids import valid_name
from ..base.units import SECOND, counted, parse_bytes, parse_duration
from ..model.job import (
    MAX_CPUS_MILLI,
    MAX_HOST_MEMORY,
    MAX_RANKS,
    MIN_HOST_MEMORY,
    JobSpec,
    Phase,
    Tier,
    problems,
)
from .stream import Reading, check_header, numbered_rows, open_lines, stem, wrong_width
from .trace import Trace, make_trace

NAMES = {
    "submit": ("submit", "submit_s", "submit_time", "submitted", "timestamp", "arrival", "arrival_time"),
    "duration": ("duration", "duration_s", "runtime", "run_time"),
    "devices": ("devices", "num_gpus", "num_gpu", "gpus", "gpu_num"),
    "min_devices": ("min_devices", "min_gpus"),
    "gpu_memory": ("gpu_memory", "gpu_mem"),
    "cpus": ("cpus",),
    "mem": ("mem",),
    "image_bytes": ("image_bytes", "image_size", "checkpoint_bytes"),
    "tier": ("tier", "sla"),
    "team": ("team", "vc", "virtual_cluster", "cluster", "user"),
    "name": ("name", "jobname", "job_name"),
    "id": ("id", "job_id", "jobid"),
    "type": ("type", "gpu_type", "device_type"),
    "workload": ("workload", "job_type", "model"),
}
"""Our field to the column names it is known by (Tiresias, Sia, Helios, PAI and Philly among them), best first."""


_REMEDY = (
    "a trace is a CSV file with a header naming at least submit, duration and devices (times in seconds or like 1h30m)"
)


class TraceFormat(Struct, frozen=True, kw_only=True):
    """How a file's columns are named and what is done with rows that hold no job.

    ``published``: rows without run time or devices are left out and counted, since the tables that others have published do
    hold such rows; in files of our own they are mistakes. ``remedy``: what a file of this form looks like.
    """

    names: dict[str, tuple[str, ...]]
    published: bool = False
    remedy: str = _REMEDY


OURS = TraceFormat(names=NAMES)
ANY_TYPE = ("", "any", "misc")
SHOWN = 20
_CENTURY_S = 36_525 * 86_400


def read_csv(path: Path, form: TraceFormat = OURS, reading: Reading | None = None) -> Trace:
    """The trace in a file, which may be packed. Raises UsageError naming every mistake as file:line (the first twenty)."""
    with open_lines(path, reading) as lines:
        return parse(lines, str(path), stem(path), form)


def parse(lines: Iterable[str], source: str, name: str, form: TraceFormat = OURS) -> Trace:
    """The trace in an iterable of lines; ``source`` names it in errors."""
    return read_table(lines, source, form).trace(name)


def read_table(lines: Iterable[str], source: str, form: TraceFormat) -> TraceTable:
    """The rows in an iterable of lines, for those who choose among them. Raises UsageError without the columns needed."""
    rows = numbered_rows(lines, source, _REMEDY)
    header, _ = next(rows, ([], 0))
    columns = _columns([cell.strip().lower() for cell in header], source, form)
    table = TraceTable(source, columns, form, len(header))
    for row, line in rows:
        if any(cell.strip() for cell in row):
            table.add(row, line)
    return table


def _columns(header: list[str], source: str, form: TraceFormat) -> dict[str, int]:
    if not header:
        raise UsageError(f"{source} is empty", _REMEDY)
    found: dict[str, int] = {}
    for field, names in form.names.items():
        at = next((header.index(name) for name in names if name in header), None)
        if at is not None:
            found[field] = at
    read = [header[at] for at in found.values()]
    check_header([name for name in header if name in read], f"{source}:1")
    missing = [field for field in ("submit", "duration", "devices") if field not in found]
    if missing:
        known = "; ".join(f"{field}: {', '.join(form.names[field])}" for field in missing)
        raise UsageError(f"{source}:1: no column for {', '.join(missing)}", f"{_REMEDY}. Known names are {known}")
    return found


def _seconds(cell: str) -> float:
    try:
        return _bounded(float(cell))
    except ValueError:
        return parse_duration(cell) / SECOND


def _submit(cell: str) -> float:
    """Seconds of a number, or of a date and time (naive ones are taken as UTC)."""
    if cell[:4].isdecimal() and cell[4:5] == "-":
        at = datetime.fromisoformat(cell)
        return (at.replace(tzinfo=None) - datetime(1970, 1, 1)).total_seconds() - (
            at.utcoffset() or _NO_OFFSET
        ).total_seconds()
    return _bounded(float(cell))


_NO_OFFSET = datetime(1970, 1, 1) - datetime(1970, 1, 1)


def _bounded(seconds: float) -> float:
    if not 0 <= seconds <= _CENTURY_S:
        raise UsageError(f"{seconds:g} s is not between 0 and a century")
    return seconds


def _count(cell: str) -> int:
    value = float(cell)
    if not 1 <= value <= MAX_RANKS or value != int(value):
        raise UsageError(f"{cell} is not a whole number of devices between 1 and {MAX_RANKS}")
    return int(value)


def _cpus(cell: str) -> int:
    """Thousandths of host CPUs of each rank; a job has a rank for each device."""
    value = float(cell) * 1000
    if not 0 <= value <= MAX_CPUS_MILLI:
        raise UsageError(f"{cell} is not between 0 and {MAX_CPUS_MILLI // 1000} CPUs")
    return round(value)


def _host_memory(cell: str) -> int:
    """Bytes of host memory of each rank."""
    value = parse_bytes(cell)
    if value and not MIN_HOST_MEMORY <= value <= MAX_HOST_MEMORY:
        raise UsageError(f"{cell} is not between {MIN_HOST_MEMORY} and {MAX_HOST_MEMORY} bytes")
    return value


def _count_or_none(cell: str) -> int:
    return 0 if float(cell) == 0 else _count(cell)


def _tier(cell: str) -> int:
    names = [tier.name.lower() for tier in Tier]
    if cell.lower() not in names:
        raise UsageError(f"{cell!r} is not one of {', '.join(reversed(names))}")
    return names.index(cell.lower())


def _named(cell: str) -> str:
    if not valid_name(cell):
        raise UsageError(f"{cell!r} may hold letters, digits and . _ - [ ] only, up to 128")
    return cell


def _kind(cell: str) -> tuple[str, ...]:
    return () if cell.lower() in ANY_TYPE else tuple(part.strip() for part in cell.lower().split("|"))


def _phases(cell: str) -> tuple[Phase, ...]:
    """``NAME``, or ``NAME@1h|NAME@2h|NAME``: how much run time on the full allotment each phase has."""
    parts = [part.rpartition("@") if "@" in part else (part, "", "") for part in cell.split("|")]
    found = tuple(Phase(name.strip(), parse_duration(work) if work else 0) for name, _, work in parts)
    wrong = problems(JobSpec(command=("x",), phases=found))
    if wrong:
        raise UsageError(wrong[0])
    return found


_READERS: dict[str, Callable[[str], Any]] = {
    "submit": _submit, "duration": _seconds, "devices": _count, "min_devices": _count, "gpu_memory": parse_bytes,
    "cpus": _cpus, "mem": _host_memory, "workload": _phases,
    "tier": _tier, "team": _named, "name": _named, "id": _named, "type": _kind, "image_bytes": parse_bytes,
    "instances": _count,
}  # fmt: skip
_DEFAULTS: dict[str, Any] = {
    "min_devices": 0,
    "gpu_memory": 0,
    "cpus": 0,
    "mem": 0,
    "tier": int(Tier.STANDARD),
    "team": "default",
    "type": (),
    "workload": (Phase(""),),
    "image_bytes": 0,
}
_TYPECODES = {
    "submit": "d", "duration": "d", "step_us": "d", "devices": "q", "min_devices": "q", "gpu_memory": "q", "image_bytes": "q",
    "tier": "b", "team": "l", "type": "l", "workload": "l",
}  # fmt: skip
"""Numbers are kept as such, eight bytes each: a Python object for each would be five times as much."""
_CODED = ("team", "type", "workload")


class TraceTable:
    """Rows read so far, by field, and what was wrong with the others. ``width`` is the number of names in the header."""

    def __init__(self, source: str, columns: dict[str, int], form: TraceFormat, width: int = 0) -> None:
        self.source = source
        self.width = width
        self.form = form
        self.columns = columns
        self.values: dict[str, Any] = {}
        self.mistakes: list[str] = []
        self.wrong = 0
        self.idle = 0
        """Rows left out because they have no run time or no devices."""
        self.late = 0
        """Rows that come before the row above them."""
        self._codes: dict[str, dict[Any, int]] = {field: {} for field in _CODED}
        self._lines: dict[str, int] = {}
        self._readers = {**_READERS, "devices": _count_or_none} if form.published else _READERS

    def add(self, row: list[str], line: int) -> None:
        """Read one row, or note everything wrong with it."""
        cells: dict[str, Any] = {}
        before = self.wrong
        if any(cell.strip() for cell in row[self.width :]):
            self.note(line, wrong_width(len(row), self.width))
            return
        for field, at in self.columns.items():
            cell = row[at].strip() if at < len(row) else ""
            try:
                cells[field] = self._readers[field](cell) if cell else _DEFAULTS[field]
            except KeyError:
                self.note(line, f"{field}: missing")
            except UsageError as error:
                self.note(line, f"{field}: {error.message}")
            except (ValueError, OverflowError):
                self.note(line, f"{field}: {cell!r} cannot be read")
        if self.wrong == before:
            self.take(cells, line)

    def take(self, cells: dict[str, Any], line: int) -> None:
        """Keep one row that could be read, unless what it says cannot be."""
        cells["devices"] *= cells.pop("instances", 1)
        if self.form.published and not (cells["duration"] and cells["devices"]):
            self.idle += 1
            return
        before = self.wrong
        self._check(cells, line)
        if self.wrong > before:
            return
        submits: Any = self.values.get("submit")
        if submits is not None and cells["submit"] < submits[-1]:
            self.late += 1
        for field, value in cells.items():
            kept = self.values.get(field)
            if kept is None:
                kept = self.values[field] = array(_TYPECODES[field]) if field in _TYPECODES else []
            kept.append(self._code(field, value) if field in _CODED else value)

    def _code(self, field: str, value: Any) -> int:
        codes = self._codes[field]
        return codes.setdefault(value, len(codes))

    def _check(self, cells: dict[str, Any], line: int) -> None:
        if not cells["duration"] > 0:
            self.note(line, f"duration: {cells['duration']:g} s is not above 0")
        if cells["devices"] > MAX_RANKS:
            self.note(line, f"devices: {cells['devices']}, those of all instances together, are more than {MAX_RANKS}")
        if cells.get("min_devices", 0) > cells["devices"]:
            self.note(line, f"min_devices: {cells['min_devices']} is above devices ({cells['devices']})")
        if cells.get("gpu_memory") and cells["devices"] != 1:
            self.note(line, "gpu_memory: a share is of one device; devices must be 1")
        if "id" in cells:
            first = self._lines.setdefault(cells["id"], line)
            if first != line:
                self.note(line, f"id: {cells['id']} is the id of line {first}, too")

    def note(self, line: int, text: str) -> None:
        """Something is wrong with this line."""
        self.wrong += 1
        if len(self.mistakes) < SHOWN:
            self.mistakes.append(f"{self.source}:{line}: {text}")

    def trace(self, name: str) -> Trace:
        """The rows as a trace. Raises UsageError when any row was wrong, or none is left."""
        if self.wrong:
            more = [f"and {self.wrong - SHOWN} more"] if self.wrong > SHOWN else []
            raise UsageError("\n".join([*self.mistakes, *more]), self.form.remedy)
        values = self.values
        if not values:
            left_out = f" ({counted(self.idle, 'row')} without run time or devices)" if self.idle else ""
            raise UsageError(f"{self.source} holds no jobs{left_out}", self.form.remedy)
        extra: dict[str, object] = {"remarks": self._remarks(name)}
        for field, column, dtype in (
            ("tier", "tier", np.int8),
            ("min_devices", "floor", np.int32),
            ("gpu_memory", "gpu_memory", np.int64),
            ("cpus", "cpus_milli", np.int64),
            ("mem", "memory", np.int64),
            ("image_bytes", "image_bytes", np.int64),
            ("step_us", "step_us", np.float64),
        ):
            if field in values:
                extra[column] = np.array(values[field], dtype)
        for field, column, words in (
            ("team", "team", "teams"),
            ("type", "kinds", "kind_names"),
            ("workload", "workloads", "phases"),
        ):
            if field in values:
                extra[column], extra[words] = np.array(values[field], np.int32), tuple(self._codes[field])
        submit = np.array(values["submit"], np.float64)
        if "id" in values:
            extra["ids"] = _in_order(values["id"], submit)
        if "name" in values or "id" in values:
            extra["names"] = tuple(map(_not_a_number, _in_order(values.get("name") or values["id"], submit)))
        return make_trace(
            name, submit, np.array(values["duration"], np.float64), np.array(values["devices"], np.int64), **extra
        )

    def _remarks(self, name: str) -> tuple[str, ...]:
        counted = (
            (self.late, "rows were not in order of submission; all rows were sorted"),
            (self.idle, "rows have no run time or no devices and are left out"),
        )
        return tuple(f"{name}: {count:,} {text}" for count, text in counted if count)


def _in_order(words: list[str], submit: Any) -> tuple[str, ...]:
    """Names in order of submission."""
    return tuple(words[at] for at in np.argsort(submit, kind="stable"))


def _not_a_number(name: str) -> str:
    """Numbers would read as job ids and get a prefix."""
    return f"t{name}" if name.isdecimal() else name
