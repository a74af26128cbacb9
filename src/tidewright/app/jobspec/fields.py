"""Readers of single values of a job: text as a user writes it in, the JobSpec's own units out.

Shared by YAML specs, ``#SBATCH`` lines and the options of ``tide run``. Every reader raises UsageError.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable

from ...agent.processes.log_cap import LEAST_BYTES
from ...base.errors import UsageError
from ...base.units import WHOLE_DEVICE, format_bytes, parse_bytes, parse_duration
from ...model.job import MAX_CPUS_MILLI
from ...wire.array_refs import indices as indices
from ...wire.dependencies import JobDependency, parse_dependencies

LEAST_WEIGHT, MOST_WEIGHT = 1e-6, 1e6
"""Weights beyond are taken for mistakes: they leave a job nothing, or all."""
_DEVICES = re.compile(r"(?:(?P<types>[A-Za-z][\w.,-]*):)?(?:(?P<least>\d+):)?(?P<most>\d+)")
_TYPE = re.compile(r"[a-z0-9][a-z0-9._-]*")
_CPUS_MILLI = re.compile(r"(\d{1,9})m")
_BIG = 10**9
NO_LIMIT = frozenset({"none", "unlimited", "infinite", "0"})
_BOOLEANS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def whole(text: str) -> int:
    """A whole number from 0 to 10^9."""
    if not re.fullmatch(r"\+?\d{1,18}", text) or int(text) > _BIG:
        raise UsageError(f"not a whole number: {text!r}", "write it like 4")
    return int(text)


def real(text: str) -> float:
    """A finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise UsageError(f"not a number: {text!r}", "write it like 1.5")
    return value


def weight(text: str) -> float:
    """A share among equals."""
    value = real(text)
    if not LEAST_WEIGHT <= value <= MOST_WEIGHT:
        raise UsageError(
            f"not a weight: {text!r} is not between {LEAST_WEIGHT:g} and {MOST_WEIGHT:,.0f}", "write it like 2"
        )
    return value


def deadline(text: str) -> int:
    """Microseconds from now, more than none."""
    value = parse_duration(text)
    if not value:
        raise UsageError(f"a deadline of {text} has passed", "write it like 4h, or leave it out")
    return value


def deadline_or_none(text: str) -> int:
    """The same; ``none`` is 0."""
    return 0 if text.strip().lower() in NO_LIMIT else deadline(text)


def job_name(text: str) -> str:
    """What a job is called that is no member of an array."""
    if "[" in text or "]" in text:
        raise UsageError(
            f"{text!r} has brackets, as members of arrays have", "write it like train-3, or ask for an array"
        )
    return text


def one_of(*words: str) -> Callable[[str], str]:
    """A reader that takes one of ``words``, in any case."""

    def read(text: str) -> str:
        if text.lower() not in words:
            raise UsageError(f"{text!r} is not one of {', '.join(words)}")
        return text.lower()

    return read


def devices(text: str) -> tuple[tuple[str, ...], int, int]:
    """(types, fewest, most) of ``4``, ``1:4``, ``h100:8``, ``h100,a100:2:8``; fewest is 0 when not given."""
    match = _DEVICES.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"not a number of devices: {text!r}", "write it like 4, 1:4 (least:most), h100:8")
    least, most = whole(match["least"] or "0"), whole(match["most"])
    if match["least"] and not 1 <= least <= most:
        raise UsageError(f"{text!r}: the range must go up from at least 1", "write it like 1:4")
    return (types(match["types"]) if match["types"] else ()), (least if least < most else 0), most


def types(text: str) -> tuple[str, ...]:
    """Device type names separated by commas, lower-cased, without repeats."""
    names = [name.strip().lower() for name in text.split(",")]
    for name in names:
        if not _TYPE.fullmatch(name):
            raise UsageError(f"not a device type: {name!r}", "write it like h100 or h100,a100")
    return tuple(dict.fromkeys(names))


def duration(text: str) -> int:
    """Microseconds, see ``base.units.parse_duration``."""
    return parse_duration(text)


def duration_or_none(text: str) -> int:
    """Microseconds; ``none`` is 0."""
    return 0 if text.strip().lower() in NO_LIMIT else parse_duration(text)


def limit_change(text: str) -> tuple[int | None, int]:
    """(the limit, 0) of ``2h`` or ``none``, in microseconds; (None, change) of ``+1h`` or ``-30m``."""
    word = text.strip()
    if not word.startswith(("+", "-")):
        return duration_or_none(word), 0
    change = parse_duration(word[1:])
    if not change:
        raise UsageError(f"{text!r} changes nothing", "write it like +1h or -30m")
    return None, -change if word.startswith("-") else change


def yes_or_no(text: str) -> bool:
    """``true`` or ``false``, and what else YAML 1.1 takes for them."""
    word = text.strip().lower()
    if word not in _BOOLEANS:
        raise UsageError(f"{text!r} is neither true nor false", "write true or false")
    return _BOOLEANS[word]


def runtime(text: str) -> str:
    """The name of a device runtime, or the id of its job."""
    if not text.strip():
        raise UsageError(f"{text!r} names no runtime", "list them: tide runtime ls")
    return text.strip()


def every(text: str) -> int:
    """Run time between images in microseconds; ``auto`` is 0, ``never`` is -1."""
    word = text.strip().lower()
    if word in ("auto", "never"):
        return 0 if word == "auto" else -1
    value = parse_duration(text)
    if not value:
        raise UsageError(f"not a time between images: {text!r}", "write it like 10m, auto or never")
    return value


def memory(text: str) -> int:
    """Bytes of one device, at least 1."""
    value = parse_bytes(text)
    if not value:
        raise UsageError(f"not an amount of memory: {text!r}", "write it like 12GiB, or leave it out for whole devices")
    return value


def host_memory(text: str) -> int:
    """Bytes of host memory of one rank, at least 1."""
    value = parse_bytes(text)
    if not value:
        raise UsageError(f"not an amount of memory: {text!r}", "write it like 4GiB, or leave it out for no limit")
    return value


def cpus(text: str) -> int:
    """Thousandths of host CPUs of ``2``, ``0.5`` or ``500m``, at least one thousandth."""
    milli = _CPUS_MILLI.fullmatch(text.strip())
    value = float(milli[1]) if milli else real(text) * 1000
    if not 1 <= value <= MAX_CPUS_MILLI:
        most = MAX_CPUS_MILLI // 1000
        raise UsageError(
            f"{text!r} is not between 0.001 and {most} CPUs", "write it like 2 or 0.5; leave it out for no limit"
        )
    return math.floor(value + 1e-6)


def gpu_milli(text: str) -> int:
    """Thousandths of the compute of one device, 1 to 1000."""
    value = whole(text)
    if not 1 <= value <= WHOLE_DEVICE:
        raise UsageError(f"{value} is not between 1 and {WHOLE_DEVICE} thousandths of a device", "write it like 300")
    return value


def gpu_share(text: str) -> int:
    """Thousandths of one device of ``0.5`` or ``50%``, at least one thousandth."""
    percent = text.strip().removesuffix("%")
    value = real(percent) / (1 if percent == text.strip() else 100)
    milli = math.floor(value * WHOLE_DEVICE + 1e-6)
    if not 1 <= milli <= WHOLE_DEVICE:
        raise UsageError(f"{text!r} is not between 0.001 and 1 of a device", "write it like 0.5; whole devices: -g")
    return milli


def words(text: str) -> tuple[str, ...]:
    """A command line split as a shell would, without running one."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(
            f"cannot split the command: {str(error).lower()}", "check the quotes, or write a list"
        ) from None


def variable(text: str) -> tuple[str, str]:
    """``NAME=VALUE``."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise UsageError(f"not NAME=VALUE: {text!r}", "write it like EPOCHS=3")
    if any(letter.isspace() for letter in name):
        raise UsageError(f"{name!r} has blanks, and is the name of no variable", "write it like EPOCHS=3")
    return name, plain(value)


def plain(text: str) -> str:
    """Text that a process can be given: no NUL character."""
    if "\0" in text:
        raise UsageError("holds a NUL character, which no program can be given")
    return text


def exit_code(text: str) -> int:
    """An exit code worth a retry, 1 to 255."""
    value = whole(text)
    if not 1 <= value <= 255:
        raise UsageError(f"{value} is not an exit code from 1 to 255")
    return value


def dependencies(text: str) -> tuple[JobDependency, ...]:
    """Jobs and arrays to wait for, see ``wire.dependencies``."""
    return parse_dependencies(text)


def log_limit(text: str) -> int:
    """Bytes, 0 for none. Raises UsageError for a limit that leaves nothing worth reading."""
    limit = parse_bytes(text)
    if 0 < limit < LEAST_BYTES:
        raise UsageError(f"log limit: {text} is less than {format_bytes(LEAST_BYTES)}", "give more, or 0 for no limit")
    return limit
