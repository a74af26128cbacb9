"""Slurm's host lists: ``node[1-3,7]`` (slurm.conf(5), NodeName) from names and back, and ``2(x3),1`` for numbers per node."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBERED = re.compile(r"(.*?)(\d+)")
_RUN = re.compile(r"(\d+)(?:\(x(\d+)\))?")
MOST = 65536
"""Names of one list, at most: what Slurm allows for the nodes of a cluster (slurm.conf(5), MaxNodes)."""


def compress(names: Iterable[str]) -> str:
    """One list of names in their order; neighbours that end in a number share what stands before it."""
    parts: list[tuple[str, list[list[str]]]] = []
    for name in names:
        match = _NUMBERED.fullmatch(name)
        stem, number = match.groups() if match else (name, "")
        if number and parts and parts[-1][0] == stem and parts[-1][1]:
            _append(parts[-1][1], number)
        else:
            parts.append((stem, [[number, number]] if number else []))
    return ",".join(_written(stem, runs) for stem, runs in parts)


def _append(runs: list[list[str]], number: str) -> None:
    first, last = runs[-1]
    if number == str(int(last) + 1).zfill(len(first)) and len(last) >= len(first):
        runs[-1][1] = number
    else:
        runs.append([number, number])


def _written(stem: str, runs: list[list[str]]) -> str:
    if not runs:
        return stem
    text = ",".join(first if first == last else f"{first}-{last}" for first, last in runs)
    return stem + (text if text.isdigit() else f"[{text}]")


def expand(text: str) -> list[str]:
    """The names of a list, in order. Raises ValueError for what is no list."""
    names: list[str] = []
    for part in _split(text):
        names.extend(_expanded(part))
        if len(names) > MOST:
            raise ValueError(f"more than {MOST} names")
    return names


def _split(text: str) -> list[str]:
    """At the commas and blanks that stand outside of brackets."""
    parts, depth, start = [], 0, 0
    for at, letter in enumerate(text + ","):
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            raise ValueError(f"brackets do not match in {text!r}")
        if letter in ", \t\n" and not depth:
            parts.append(text[start:at])
            start = at + 1
    if depth:
        raise ValueError(f"brackets do not match in {text!r}")
    return [part for part in parts if part]


def _expanded(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    numbers: list[str] = []
    for run in inside.split(","):
        first, dash, last = run.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal()) or not 0 <= int(last) - int(first) < MOST:
            raise ValueError(f"not a range of numbers: {run!r} in {part!r}")
        numbers += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return [before + number + end for number in numbers for end in _expanded(after)]


def counts(numbers: Iterable[int]) -> str:
    """Numbers per node as in SLURM_TASKS_PER_NODE: ``2(x3),1``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][0] == number:
            runs[-1][1] += 1
        else:
            runs.append([number, 1])
    return ",".join(f"{number}(x{times})" if times > 1 else str(number) for number, times in runs)


def numbers(text: str) -> list[int]:
    """``2(x3),1`` as [2, 2, 2, 1]. Raises ValueError for what is none."""
    found: list[int] = []
    for part in text.split(","):
        match = _RUN.fullmatch(part)
        if match is None:
            raise ValueError(f"not numbers per node: {text!r}")
        found += [int(match.group(1))] * int(match.group(2) or 1)
    return found
