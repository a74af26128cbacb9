"""How large a comparison may be, checked before anything is read or run. It refuses to know what a cell is worth."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...base.errors import UsageError
from ...sim.trace import check_load

MAX_CELLS = 100_000
"""Of one comparison; so many of the packaged trace take a machine of 100 processors a week."""
MAX_SEED = 2**63 - 1

_HOW = "write how many, --seeds 3, or which, --seeds 2,5 or 4-6"
_RANGE = re.compile(r"([0-9]{1,19})(?:-([0-9]{1,19}))?")


def seeds_of(text: str) -> tuple[int, ...]:
    """``"3"`` is 1, 2, 3; lists and ranges are the seeds that they name. Raises UsageError, before a range is written out."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if len(words) == 1 and words[0].isdecimal():
        words = [f"1-{words[0]}"]
    ranges = [_range(word, text) for word in words]
    if not ranges:
        raise UsageError("--seeds: an empty list", _HOW)
    count = sum(map(len, ranges))
    if count > MAX_CELLS:
        raise UsageError(f"--seeds {text}: {count:,} seeds, and a comparison has at most {MAX_CELLS:,} cells", _HOW)
    return tuple(seed for numbers in ranges for seed in numbers)


def _range(word: str, text: str) -> range:
    found = _RANGE.fullmatch(word)
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if not first <= last <= MAX_SEED:
        raise UsageError(f"--seeds {text}: not a number of seeds, and no list of seeds up to {MAX_SEED}", _HOW)
    return range(first, last + 1)


def check_size(axes: Mapping[str, Sequence[Any]]) -> None:
    """Raise UsageError for loads that no trace can have, and for more than MAX_CELLS cells. ``axes``: options and values."""
    for load in axes["loads"]:
        if load is not None:
            check_load(load)
    several = {name: len(values) for name, values in axes.items() if len(values) > 1}
    cells = math.prod(several.values())
    if cells > MAX_CELLS:
        product = " × ".join(f"{count:,} {name}" for name, count in several.items())
        raise UsageError(
            f"{product} are {cells:,} cells, and a comparison has at most {MAX_CELLS:,}", "give fewer of them"
        )
