"""States of jobs as users write them: our names, in any case, and those of squeue(1) and sacct(1)."""

from __future__ import annotations

from typing import get_args

from ..base.errors import UsageError
from .answers import StateName

STATES: tuple[StateName, ...] = get_args(StateName)
SLURM: dict[str, tuple[StateName, ...]] = {
    "pd": ("held", "queued"), "pending": ("held", "queued"), "cf": ("starting",), "configuring": ("starting",),
    "r": ("running",), "s": ("suspended",), "cg": ("stopping",), "completing": ("stopping",), "cd": ("completed",),
    "f": ("failed",), "ca": ("cancelled",), "to": ("timeout",),
}  # fmt: skip
"""Slurm's states, short and long, that are called otherwise here (squeue(1), "JOB STATE CODES")."""


def states_of(text: str) -> tuple[StateName, ...]:
    """The states named between commas, each once, in the order of a job's life. Raises UsageError for a word that is none."""
    wanted: set[StateName] = set()
    for word in filter(None, (word.strip().lower() for word in text.split(","))):
        named = tuple(state for state in STATES if state == word) or SLURM.get(word, ())
        if not named:
            short = ", ".join(name.upper() for name in SLURM if len(name) <= 2)
            raise UsageError(f"state: {word!r} is not one of {', '.join(STATES)}", f"or as Slurm has it: {short}")
        wanted.update(named)
    return tuple(state for state in STATES if state in wanted)
