"""Units: whole microseconds, bytes and milli-devices, with parsing and printing.

Inside the house time is an ``int`` of microseconds, memory an ``int`` of bytes and a share of a device an ``int`` of
thousandths. Strings with units exist only at the edges (command line, YAML, tables).
"""

from __future__ import annotations

import re
from typing import Any

from .errors import UsageError

US = 1
MS = 1_000
SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
WHOLE_DEVICE = 1_000
"""Milli-devices in one device."""

_TIME_UNITS = {
    "us": US, "ms": MS, "s": SECOND, "sec": SECOND, "m": MINUTE, "min": MINUTE, "h": HOUR, "hr": HOUR, "d": DAY, "w": 7 * DAY,
}  # fmt: skip
_BYTE_UNITS = {
    "": 1, "b": 1, "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9, "t": 10**12, "tb": 10**12,
    "ki": 2**10, "kib": 2**10, "mi": 2**20, "mib": 2**20, "gi": 2**30, "gib": 2**30, "ti": 2**40, "tib": 2**40,
}  # fmt: skip
_TIME_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)")
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)")
_CENTURY = 36_525 * DAY


def parse_duration(text: str | int | float) -> int:
    """Microseconds of ``"90s"``, ``"1h30m"``, ``"2d"``, ``"1-02:03:04"`` or ``"1:30:00"`` (Slurm); a bare number is seconds.

    Raises UsageError for anything else, for negative times and for times beyond a century.
    """
    raw = str(text).strip().lower()
    value = _duration_or_none(raw)
    if value is None or value > _CENTURY:
        raise UsageError(f"not a duration: {text!r}", "write it like 90s, 30m, 1h30m, 2d or 1-12:00:00")
    return value


def _duration_or_none(raw: str) -> int | None:
    if re.fullmatch(r"\d+(\.\d+)?", raw):
        return round(float(raw) * SECOND)
    if ":" in raw or re.fullmatch(r"\d+-\d+", raw):
        return _slurm_clock(raw)
    parts = _TIME_PART.findall(raw)
    if not parts or "".join(n + u for n, u in parts) != raw.replace(" ", ""):
        return None
    if any(unit not in _TIME_UNITS for _, unit in parts):
        return None
    return round(sum(float(number) * _TIME_UNITS[unit] for number, unit in parts))


def _slurm_clock(raw: str) -> int | None:
    """sbatch(1) --time: "minutes:seconds", "hours:minutes:seconds", "days-hours[:minutes[:seconds]]"."""
    days, dash, clock = raw.rpartition("-")
    fields = clock.split(":")
    if not all(field.isdecimal() for field in fields) or len(fields) > 3 or (dash and not days.isdecimal()):
        return None
    numbers = [int(field) for field in fields]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return int(days) * DAY + hours * HOUR + minutes * MINUTE + seconds * SECOND
    if len(numbers) == 2:
        numbers = [0, *numbers]
    return numbers[0] * HOUR + numbers[1] * MINUTE + numbers[2] * SECOND


def format_duration(us: int) -> str:
    """Two significant parts: ``"1h05m"``, ``"3d04h"``, ``"12s"``, ``"250ms"``; negative times keep their sign."""
    if us < 0:
        return "-" + format_duration(-us)
    if us < SECOND:
        return f"{us // MS}ms"
    if us < 10 * SECOND:
        return f"{us / SECOND:.1f}s"
    for big, small, big_name, small_name in (
        (DAY, HOUR, "d", "h"),
        (HOUR, MINUTE, "h", "m"),
        (MINUTE, SECOND, "m", "s"),
    ):
        if us >= big:
            return f"{us // big}{big_name}{us % big // small:02d}{small_name}"
    return f"{us // SECOND}s"


def parse_bytes(text: str | int) -> int:
    """Bytes of ``"12GiB"``, ``"12Gi"``, ``"500MB"`` or a bare number. Raises UsageError otherwise."""
    match = _BYTES.fullmatch(str(text).strip().lower())
    if match is None or match[2] not in _BYTE_UNITS:
        raise UsageError(f"not an amount of memory: {text!r}", "write it like 12GiB, 500MiB or 16GB")
    value = round(float(match[1]) * _BYTE_UNITS[match[2]])
    if value >= 2**63:
        raise UsageError(f"amount of memory beyond 8 EiB: {text!r}", "write it like 12GiB")
    return value


def format_bytes(count: int) -> str:
    """Binary units with one digit: ``"12.0GiB"``."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{int(value)}B" if unit == "B" else f"{value:.1f}{unit}"
        value /= 1024
    return f"{value:.1f}TiB"


def counted(number: int, noun: str) -> str:
    """``"1 job"``, ``"1,200 jobs"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def agreeing(number: int, one: str, several: str) -> str:
    """The verb that agrees with so many: ``one`` for 1, else ``several``."""
    return one if number == 1 else several


def whole_number(given: Any) -> int | None:
    """The number that a value of a YAML or CSV file is, or that its text says; None where it is none, or has a fraction."""
    try:
        value = int(given)
    except (TypeError, ValueError, OverflowError):
        return None
    return None if isinstance(given, bool) or (isinstance(given, float) and value != given) else value
