"""Reading traces from CSV files with a header: ours, Tiresias', and most others by their column names.

Every mistake in the file is reported with its line. It refuses to know what the jobs are used for.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from ..base.errors import UsageError
from ..base.ids import valid_name
from ..base.units import SECOND, parse_bytes, parse_duration
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
from .trace import Trace, make_trace

NAMES = {
    "submit": ("submit", "submit_s", "submit_time", "submitted", "timestamp", "arrival", "arrival_time"),
    "duration": ("duration", "duration_s", "runtime", "run_time"),
    "devices": ("devices", "num_gpus", "num_gpu", "gpus", "gpu_num"),
    "min_devices": ("min_devices", "min_gpus"),
    "gpu_memory": ("gpu_memory", "gpu_mem"),
    "cpus": ("cpus",),
    "mem": ("mem",),
    "tier": ("tier", "sla"),
    "team": ("team", "vc", "virtual_cluster", "cluster", "user"),
    "name": ("name", "jobname", "job_name", "job_id"),
    "type": ("type", "gpu_type", "device_type"),
    "workload": ("workload", "job_type", "model"),
}
"""Our field to the column names it is known by (Tiresias, Sia, Helios, PAI and Philly among them), best first."""

ANY_TYPE = ("", "any", "misc")
SHOWN = 20
_REMEDY = (
    "a trace is a CSV file with a header naming at least submit, duration and devices (times in seconds or like 1h30m)"
)
_CENTURY_S = 36_525 * 86_400


def read_csv(path: Path) -> Trace:
    """The trace in a file. Raises UsageError naming every mistake as file:line (the first twenty of them)."""
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            return parse(lines, str(path), path.stem)
    except OSError as error:
        raise UsageError(f"cannot read trace {path}: {error.strerror}", _REMEDY) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"cannot read trace {path}: it is not text ({error.reason})", _REMEDY) from error


def parse(lines: Iterator[str] | Any, source: str, name: str) -> Trace:
    """The trace in an iterable of lines; ``source`` names it in errors."""
    rows = csv.reader(lines)
    try:
        columns = _columns([cell.strip().lower() for cell in next(rows, [])], source)
        table = _Table(source, columns)
        for row in rows:
            if any(cell.strip() for cell in row):
                table.add(row, rows.line_num)
    except csv.Error as error:
        raise UsageError(f"{source}:{rows.line_num}: {error}", _REMEDY) from error
    return table.trace(name)


def _columns(header: list[str], source: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for field, names in NAMES.items():
        at = next((header.index(name) for name in names if name in header), None)
        if at is not None:
            found[field] = at
    missing = [field for field in ("submit", "duration", "devices") if field not in found]
    if missing:
        known = "; ".join(f"{field}: {', '.join(NAMES[field])}" for field in missing)
        raise UsageError(f"{source}:1: no column for {', '.join(missing)}", f"{_REMEDY}. Known names are {known}")
    return found


def _seconds(cell: str) -> float:
    try:
        return _bounded(float(cell))
    except ValueError:
        return parse_duration(cell) / SECOND


def _submit(cell: str) -> float:
    """Seconds of a number, or of a date and time (naive ones are taken as UTC)."""
    if cell[:4].isdigit() and cell[4:5] == "-":
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
    if value != int(value) or not 1 <= value <= MAX_RANKS:
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
    "cpus": _cpus, "mem": _host_memory,
    "tier": _tier, "team": _named, "name": _named, "type": _kind,
    "workload": _phases,
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
}


class _Table:
    """Rows read so far, by field, and what was wrong with the others."""

    def __init__(self, source: str, columns: dict[str, int]) -> None:
        self.source = source
        self.columns = columns
        self.values: dict[str, list[Any]] = {field: [] for field in columns}
        self.mistakes: list[str] = []
        self.wrong = 0

    def add(self, row: list[str], line: int) -> None:
        """Read one row, or note everything wrong with it."""
        cells: dict[str, Any] = {}
        before = self.wrong
        for field, at in self.columns.items():
            cell = row[at].strip() if at < len(row) else ""
            try:
                cells[field] = _READERS[field](cell) if cell else _DEFAULTS[field]
            except KeyError:
                self._note(line, f"{field}: missing")
            except UsageError as error:
                self._note(line, f"{field}: {error.message}")
            except ValueError:
                self._note(line, f"{field}: {cell!r} cannot be read")
        if self.wrong == before:
            self._check(cells, line)
        if self.wrong == before:
            for field, value in cells.items():
                self.values[field].append(value)

    def _check(self, cells: dict[str, Any], line: int) -> None:
        if cells.get("min_devices", 0) > cells["devices"]:
            self._note(line, f"min_devices: {cells['min_devices']} is above devices ({cells['devices']})")
        if cells.get("gpu_memory") and cells["devices"] != 1:
            self._note(line, "gpu_memory: a share is of one device; devices must be 1")

    def _note(self, line: int, text: str) -> None:
        self.wrong += 1
        if len(self.mistakes) < SHOWN:
            self.mistakes.append(f"{self.source}:{line}: {text}")

    def trace(self, name: str) -> Trace:
        """The rows as a trace. Raises UsageError when any row was wrong."""
        if self.wrong:
            more = [f"and {self.wrong - SHOWN} more"] if self.wrong > SHOWN else []
            raise UsageError("\n".join([*self.mistakes, *more]), _REMEDY)
        values = self.values
        extra: dict[str, object] = {}
        for field, column, dtype in (
            ("tier", "tier", np.int8),
            ("min_devices", "floor", np.int32),
            ("gpu_memory", "gpu_memory", np.int64),
            ("cpus", "cpus_milli", np.int64),
            ("mem", "memory", np.int64),
        ):
            if field in values:
                extra[column] = np.array(values[field], dtype)
        for field, column, words in (
            ("team", "team", "teams"),
            ("type", "kinds", "kind_names"),
            ("workload", "workloads", "phases"),
        ):
            if field in values:
                extra[column], extra[words] = _numbered(values[field])
        submit = np.array(values["submit"], np.float64)
        if "name" in values:
            extra["names"] = _in_order(values["name"], submit)
        return make_trace(
            name, submit, np.array(values["duration"], np.float64), np.array(values["devices"], np.int64), **extra
        )


def _numbered(words: list[Any]) -> tuple[Any, tuple[Any, ...]]:
    """Indices into the distinct values, which are numbered in order of appearance."""
    index = {word: at for at, word in enumerate(dict.fromkeys(words))}
    return np.array([index[word] for word in words], np.int32), tuple(index)


def _in_order(names: list[str], submit: Any) -> tuple[str, ...]:
    """Names in order of submission; numbers, which would read as job ids, get a prefix."""
    return tuple(f"t{names[at]}" if names[at].isdigit() else names[at] for at in np.argsort(submit, kind="stable"))
