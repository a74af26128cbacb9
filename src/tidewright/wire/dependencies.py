"""What a job waits for, as its user writes it: ``afterok:17``, ``afterany:prep``, ``afterok:12_3``, several with commas."""

from __future__ import annotations

import re
from typing import Literal, cast

from msgspec import Struct

from ..base.errors import UsageError

DependencyWord = Literal["afterok", "afternotok", "afterany", "aftercorr"]
KINDS = ("afterok", "afternotok", "afterany", "aftercorr")
_NAMED = re.compile(r"[A-Za-z0-9._-]+(?:\[[0-9A-Za-z._,:%-]*\])?")
_COMMA = re.compile(r",(?![^\[]*\])")
_COLON = re.compile(r":(?![^\[]*\])")


class JobDependency(Struct, frozen=True):
    """One job, array or member by id or name, and how it has to end. ``aftercorr``: each member of an array waits for the member
    with its own index."""

    kind: DependencyWord
    ref: str


def parse_dependencies(text: str) -> tuple[JobDependency, ...]:
    """Of ``afterok:17``, ``afterok:17:18,afterany:prep``; a bare id or name means ``afterok``. Raises UsageError."""
    found: list[JobDependency] = []
    for part in _COMMA.split(text.replace(" ", "")):
        kind, *refs = _COLON.split(part)
        if not refs and kind not in KINDS:
            kind, refs = "afterok", [kind]
        if kind not in KINDS or not refs or not all(map(_NAMED.fullmatch, refs)):
            raise UsageError(
                f"not a dependency: {part!r}",
                "write it like afterok:17, afterany:NAME or afterok:12_3 (also afternotok, aftercorr)",
            )
        found.extend(JobDependency(cast(DependencyWord, kind), ref) for ref in refs)
    return tuple(dict.fromkeys(found))
