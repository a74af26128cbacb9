"""How arrays and their members are written: ``12`` an array, ``12_3`` a member by its index, ``12_[3-7,9]`` several (Slurm)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ..base.errors import UsageError

MAX_MEMBERS = 10_000
"""Largest array or sweep; ten times Slurm's default MaxArraySize (slurm.conf(5))."""
_BIG = 10**9
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18})(?::([0-9]{1,18}))?)?")
_MEMBER = re.compile(r"([0-9]{1,18})_(?:([0-9]{1,18})|\[([0-9,:%\- ]*)\])")


def indices(text: str) -> tuple[tuple[int, ...], int]:
    """(indices, limit) of ``0-9``, ``1,3,5-9:2%4`` as in sbatch(1) --array; limit 0 means all at once. Raises UsageError."""
    head, percent, tail = text.replace(" ", "").partition("%")
    limit = _whole(tail) if percent else 0
    if percent and not limit:
        raise UsageError(f"{text!r}: at most 0 at once would never run", "write it like 0-9%4")
    found: list[int] = []
    for part in head.split(","):
        more = _range(part, text)
        if len(found) + len(more) > MAX_MEMBERS:
            raise UsageError(f"{text!r} has more than {MAX_MEMBERS} members", "split it into several arrays")
        found.extend(more)
    if len(set(found)) != len(found):
        raise UsageError(f"{text!r} names an index twice")
    return tuple(sorted(found)), limit


def _range(part: str, text: str) -> range:
    match = _RANGE.fullmatch(part)
    if match is None:
        raise UsageError(f"not a list of array indices: {text!r}", "write it like 0-9, 0-9%4 or 1,3,5-9:2")
    first = _whole(match[1])
    last = _whole(match[2]) if match[2] else first
    step = _whole(match[3]) if match[3] else 1
    if last < first:
        raise UsageError(f"{part!r}: the range must go up", "write it like 0-9")
    if not step:
        raise UsageError(f"{part!r}: a step of 0 leads nowhere", "write it like 0-9:2, or leave the step out")
    return range(first, last + 1, step)


def _whole(text: str) -> int:
    if not re.fullmatch(r"\+?[0-9]{1,18}", text) or int(text) > _BIG:
        raise UsageError(f"not a whole number: {text!r}", "write it like 4")
    return int(text)


def members_of(ref: str) -> tuple[int, tuple[int, ...]] | None:
    """(array, indices) of ``12_3`` and ``12_[3-7]``, a limit behind the indices being left out; None for anything else. Raises
    UsageError for a list of indices that is none."""
    match = _MEMBER.fullmatch(ref)
    if match is None:
        return None
    return int(match[1]), (int(match[2]),) if match[2] is not None else indices(match[3])[0]


def member_ref(array: int, index: int) -> str:
    """One member of an array."""
    return f"{array}_{index}"


def ranges(found: Iterable[int]) -> str:
    """Indices as ``0-3,7``, smallest first."""
    runs: list[list[int]] = []
    for index in sorted(found):
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
