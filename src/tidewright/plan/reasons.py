"""What keeps a job waiting: a closed list of limits (``plan.advice`` says what happens next), and a job's own."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ..model.cause import Cause, Code, given

_OF_THE_POOL, _OF_THE_JOB = True, False


class Reason(StrEnum):
    """One binding limit. The value is the stable code printed by ``tide why -o json``."""

    of_the_pool: bool
    """Whether it is by what the pool has, and who holds it, that the job waits: another request of it, more of the pool, or other
    jobs that move or end may lift the limit. Otherwise something is to happen first that none of these brings about."""

    NEVER_FITS = "NeverFits", _OF_THE_POOL
    NO_CAPACITY = "NoCapacity", _OF_THE_POOL
    FRAGMENTED = "Fragmented", _OF_THE_POOL
    CPUS = "Cpus", _OF_THE_POOL
    HOST_MEMORY = "HostMemory", _OF_THE_POOL
    BEHIND = "Behind", _OF_THE_POOL
    RESERVED = "Reserved", _OF_THE_POOL
    TIER = "Tier", _OF_THE_POOL
    DEVICES_RESERVED = "DevicesReserved", _OF_THE_JOB
    DEPENDENCY = "Dependency", _OF_THE_JOB
    USER_HOLD = "UserHold", _OF_THE_JOB
    SERVICE_IMAGE = "ServiceImage", _OF_THE_JOB
    ARRAY_LIMIT = "ArrayLimit", _OF_THE_JOB
    BACKOFF = "Backoff", _OF_THE_JOB
    RUNTIME = "Runtime", _OF_THE_JOB
    NODES_DOWN = "NodesDown", _OF_THE_POOL
    PINNED_NODE_BUSY = "PinnedNodeBusy", _OF_THE_POOL
    PLANNING = "Planning", _OF_THE_JOB

    def __new__(cls, code: str, of_the_pool: bool) -> Reason:
        """A member by its code."""
        found = str.__new__(cls, code)
        found._value_, found.of_the_pool = code, of_the_pool
        return found

    @classmethod
    def _missing_(cls, value: object) -> Reason | None:
        """A reason by the name that journals and snapshots of earlier versions have for it."""
        return _EARLIER.get(value) if isinstance(value, str) else None


_EARLIER = {
    "DevicesPromised": Reason.DEVICES_RESERVED,
    "HomeBusy": Reason.PINNED_NODE_BUSY,
    "Thinking": Reason.PLANNING,
}


class Blocked(Struct, frozen=True, omit_defaults=True, rename={"why": "text"}):
    """One job's binding limit in the eyes of a planner: devices needed, devices free for it, who holds the rest.

    ``why`` is stored as ``text``, which it was in earlier versions. ``at``: absolute microseconds from which jobs that run now
    may be preempted for it; 0 where the planner foresees no such time.
    """

    job: int
    reason: Reason
    why: Cause | str
    need: int = 0
    free: int = 0
    holders: tuple[int, ...] = ()
    ahead: int = -1
    at: int = 0

    def limit(self, now: int) -> Cause:
        """Why it waits, with the time until jobs may be preempted for it."""
        why = given(self.why)
        return why if self.at <= now else Code.PREEMPTS_LATER(why, self.at - now)
