"""What keeps a job waiting: a closed list of limits (``plan.sentences`` says what happens next), and a job's own."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ..model.cause import Cause, Code, given


class Reason(StrEnum):
    """One binding limit. The value is the stable code printed by ``tide why -o json``."""

    NEVER_FITS = "NeverFits"
    NO_CAPACITY = "NoCapacity"
    FRAGMENTED = "Fragmented"
    CPUS = "Cpus"
    HOST_MEMORY = "HostMemory"
    BEHIND = "Behind"
    RESERVED = "Reserved"
    TIER = "Tier"
    DEVICES_RESERVED = "DevicesReserved"
    DEPENDENCY = "Dependency"
    USER_HOLD = "UserHold"
    ARRAY_LIMIT = "ArrayLimit"
    BACKOFF = "Backoff"
    RUNTIME = "Runtime"
    NODES_DOWN = "NodesDown"
    PINNED_NODE_BUSY = "PinnedNodeBusy"
    PLANNING = "Planning"

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
