"""How a client names jobs in a request, and the calls about arrays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from ...base.errors import NotFound
from ...base.ids import new_op_id
from ..api import ActionReply, ArrayLimitRequest, JobReply
from .asks import Asks

T = TypeVar("T")
Ref = int | str
"""An id as a number: that one job. As text: what a user may write, in which an array's id, ``12_3``, ``12_[4-6]`` and names mean
an array or members of it."""


def job_path(ref: Ref, tail: str = "") -> str:
    """The path of a request about a job. Raises NotFound for an empty name, and for one with a slash: another path."""
    if not str(ref):
        raise NotFound("an empty name of a job", "list jobs with tide ps --all")
    if "/" in str(ref):
        raise NotFound(f"no job called {ref!r}", "list jobs with tide ps --all")
    return f"/v1/jobs/{quote(str(ref), safe='')}{tail}{'?single=1' if isinstance(ref, int) else ''}"


def with_query(path: str, query: Mapping[str, Any] | None) -> str:
    """The path with those of the parameters that are given."""
    given = {key: value for key, value in (query or {}).items() if value is not None}
    return f"{path}{'&' if '?' in path else '?'}{urlencode(given)}" if given else path


class ArrayCalls:
    """The calls about arrays of a client."""

    def lookup(self: Asks, ref: Ref) -> JobReply:
        """One job in full, or an array or members of it: all of them, with the one that is to be spoken of."""
        return self._ask("GET", job_path(ref), JobReply)

    def array_limit(self: Asks, ref: Ref, limit: int) -> ActionReply:
        """Have at most so many members of an array run at once; 0: all. Raises NotFound, Conflict when all have ended."""
        body = ArrayLimitRequest(limit=limit, op_id=new_op_id())
        return self._ask("POST", job_path(str(ref), "/array-limit"), ActionReply, body)
