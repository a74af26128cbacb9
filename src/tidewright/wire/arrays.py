"""Messages of the HTTP API about arrays: jobs that were submitted together and are named by one id."""

from __future__ import annotations

from msgspec import Struct

from .answers import StateName

MAX_LISTED = 10_000
"""Most members in one answer."""
MAX_NAMED = 20
"""Most members in an answer of which each is said how it ended, or why it was left as it was."""


class ArrayLimitRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Have at most so many members of an array run at once; 0: all. Those that run already run on."""

    limit: int
    op_id: str = ""


class MemberView(Struct, frozen=True, kw_only=True):
    """A member of an array. ``why`` of those that have ended otherwise than completed, or were left as they were."""

    job: int
    index: int
    state: StateName
    exit_code: int = -1
    why: str = ""


class ArrayView(Struct, frozen=True, kw_only=True):
    """An array, or the members of one that were asked for. ``id`` 0: submitted to an earlier version, and known by its name."""

    id: int
    name: str
    user: str = ""
    team: str = ""
    size: int = 0
    """Members it was submitted with."""
    limit: int = 0
    """How many may run at once; 0: all."""
    states: dict[str, int] = {}
    """How many members are in each state."""
    members: tuple[MemberView, ...] = ()
    """By index."""
