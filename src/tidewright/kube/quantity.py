"""Whole numbers as Kubernetes writes them.

Source: apimachinery ``resource.Quantity``. The API server rewrites "2000" as "2k", so decimal suffixes must be read even
where users only write integers; binary suffixes (1Gi) are quantities of bytes, and one where units are due is a mistake.
"""

from __future__ import annotations

import re
from decimal import Decimal

from ..base.errors import UsageError

LIMIT = 2**53
"""More units than any cluster has, and still exact in every JSON reader."""
_FORM = re.compile(r"([+-]?)([0-9]{1,40}(?:\.[0-9]{0,40})?)(?:([numkMGTPE])|[eE]([+-]?[0-9]{1,3})|([KMGTPE]i))?")
_POWERS = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}


def whole(value: object, name: str) -> int:
    """``value``, a string or number found under ``name``, as a whole number from 0 up to 2^53. Raises UsageError."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{name} is {value!r}", "write a whole number")
    found = _FORM.fullmatch(str(value).strip())
    if not found:
        raise UsageError(f"{name} is {value!r}, which is no quantity", "write a whole number")
    sign, digits, suffix, exponent, binary = found.groups()
    if binary:
        raise UsageError(f"{name} is {value!r}: units are counted, not bytes", "write the number of units, such as 8")
    number = Decimal(digits).scaleb(_POWERS[suffix] if suffix else int(exponent or 0))
    if sign == "-" and number:
        raise UsageError(f"{name} is {value!r}, less than nothing", "write a whole number, 1 or more")
    if number >= LIMIT:
        raise UsageError(f"{name} is {value!r}, more than any GPU has", "write the number of units, such as 8")
    if number != int(number):
        raise UsageError(f"{name} is {value!r}, not a whole number of units", "round it up")
    return int(number)
