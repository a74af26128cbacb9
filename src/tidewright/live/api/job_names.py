"""What to answer where a name is of no single job: it may be of an array, whose members have names of their own."""

from __future__ import annotations

import re

from ...base.errors import Conflict, NotFound, UsageError
from ...engine.book import Book

_SHOWN = 10
_MEMBER_ELSEWHERE = re.compile(r"\d+_\d+")
"""How sbatch(1) names members: id of the array, index."""


def no_such_name(book: Book, name: str) -> UsageError:
    """The error to raise: an array's members are named, else it is said how to list jobs."""
    members = [(job, spec.name) for job, spec in book.specs.items() if spec.array and spec.array.parent == name]
    if members:
        shown = ", ".join(f"{member} ({job})" for job, member in members[:_SHOWN])
        text = f"{name!r} is an array of {len(members)} jobs that have not ended: {shown}"
        return Conflict(text + (", …" if len(members) > _SHOWN else ""), f"name one of them, e.g. '{members[0][1]}'")
    member = "; members of arrays are called name[index]" if _MEMBER_ELSEWHERE.fullmatch(name) else ""
    return NotFound(f"no job called {name!r}", f"list jobs with tide ps --all{member}")
