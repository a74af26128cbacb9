"""Whole numbers as Kubernetes writes them.

Source: apimachinery ``resource.Quantity``. The API server rewrites "2000" as "2k", so decimal suffixes must be read even
where users only write integers; binary suffixes (1Gi) are quantities of bytes, and one where units are due is a mistake.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache

from ...base.errors import UsageError

LIMIT = 2**53
"""More units than any cluster has, and still exact in every JSON reader."""
LONGEST = 100
"""Characters. What was read is remembered, as pods of a cluster ask for much the same."""
_FORM = re.compile(
    r"(?P<sign>[+-]?)(?P<digits>[0-9]{1,40}(?:\.[0-9]{0,40})?)"
    r"(?:(?P<suffix>[numkMGTPE])|[eE](?P<exponent>[+-]?[0-9]{1,3})|(?P<binary>[KMGTPE]i))?"
)
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def whole(value: object, name: str) -> int:
    """``value``, a string or number found under ``name``, as a whole number from 0 up to 2^53. Raises UsageError."""
    if type(value) is str and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)  # as nearly all are: below LIMIT
    number = _read(value)
    if number is None:
        raise UsageError(f"{name} is {value!r}, which is no quantity", "write a whole number")
    if str(value).rstrip().endswith("i"):
        raise UsageError(f"{name} is {value!r}: units are counted, not bytes", "write the number of units, such as 8")
    if number < 0:
        raise UsageError(f"{name} is {value!r} and negative", "write a whole number, 1 or more")
    if number >= LIMIT:
        raise UsageError(f"{name} is {value!r}, more than any GPU has", "write the number of units, such as 8")
    if number != int(number):
        raise UsageError(f"{name} is {value!r}, not a whole number of units", "round it up")
    return int(number)


def millicores(value: object, name: str) -> int:
    """A quantity of CPUs, such as 2, 1.5 or 250m, in thousandths, rounded up as the scheduler does. Raises UsageError."""
    number = _read(value)
    if number is None or not 0 <= 1000 * number < LIMIT:
        raise UsageError(f"{name} is {value!r}, which is no amount of CPU", "write one such as 2 or 500m")
    return math.ceil(1000 * number)


def mib_of(value: object, name: str) -> int:
    """A quantity of bytes, such as 7Gi, 256Mi or 8053063680, in MiB, rounded down. Raises UsageError."""
    number = _read(value)
    if number is None:
        raise UsageError(f"{name} is {value!r}, which is no quantity", "write one such as 8Gi or 512Mi")
    if not 0 < number < LIMIT << 20:
        raise UsageError(f"{name} is {value!r}, which no GPU has", "write one such as 8Gi or 512Mi")
    return int(number) >> 20


def _read(value: object) -> Decimal | None:
    """None: no quantity."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        return None
    text = str(value)
    return _read_once(text) if len(text) <= LONGEST else None


@lru_cache(maxsize=4096)
def _read_once(text: str) -> Decimal | None:
    found = _FORM.fullmatch(text.strip())
    if not found:
        return None
    number = Decimal(f"{found['sign']}{found['digits']}")
    if found["binary"]:
        return number * (1 << 10 * (1 + "KMGTPE".index(found["binary"][0])))
    return number.scaleb(_POWERS[found["suffix"]] if found["suffix"] else int(found["exponent"] or 0))


def of_mib(mib: int) -> str:
    """As the API server writes it back: the largest binary suffix that leaves a whole number."""
    for suffix in ("Mi", "Gi"):
        if mib % 1024 or not mib:
            return f"{mib}{suffix}"
        mib //= 1024
    return f"{mib}Ti"
