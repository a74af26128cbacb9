"""What is true of an array as a whole: the members that have not ended, and how many of them may run at once."""

from __future__ import annotations

from msgspec import Struct, field

from .job import ArrayMember


class ArrayRecord(Struct, omit_defaults=True):
    """An array with members that have not ended. Jobs are in the order in which they came in."""

    limit: int = 0
    """Members that may run at once; 0: all."""
    members: dict[int, bool] = field(default_factory=dict)
    """Those that have not ended."""
    waiting: dict[int, bool] = field(default_factory=dict)
    """Those of them that the limit holds back, in the order in which they may queue."""
    failed: bool = False
    """Whether a member has ended otherwise than completed."""
    dependents: list[int] = field(default_factory=list)
    """Jobs that wait for the end of the whole array."""

    @property
    def active(self) -> int:
        """Members that count against the limit."""
        return len(self.members) - len(self.waiting)


def array_key(array: ArrayMember) -> str:
    """What an array's record is kept under: its id. Arrays submitted to earlier versions have none; those of one name share a
    record, and its limit."""
    return str(array.job) if array.job else array.parent
