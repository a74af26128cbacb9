"""Why a job waits or a request is refused: a closed list, each with what happens next."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from ..base.units import format_duration


class Reason(StrEnum):
    """One binding limit. The value is the stable code printed by ``tide why -o json``."""

    NEVER_FITS = "NeverFits"
    NO_CAPACITY = "NoCapacity"
    FRAGMENTED = "Fragmented"
    BEHIND = "Behind"
    RESERVED = "Reserved"
    TIER = "Tier"
    DEVICES_PROMISED = "DevicesPromised"
    DEPENDENCY = "Dependency"
    USER_HOLD = "UserHold"
    ARRAY_LIMIT = "ArrayLimit"
    BACKOFF = "Backoff"
    NODES_DOWN = "NodesDown"
    HOME_BUSY = "HomeBusy"
    THINKING = "Thinking"


CONSEQUENCE = {
    Reason.NEVER_FITS: "refused; no node of the pool could ever hold it",
    Reason.NO_CAPACITY: "waits; tried again when devices are freed",
    Reason.FRAGMENTED: "waits; tried again when the free devices lie better together",
    Reason.BEHIND: "waits; tried again when the job ahead has started",
    Reason.RESERVED: "waits; free devices are kept for the job ahead that could otherwise starve",
    Reason.TIER: "waits; jobs whose promise is closer to breaking have the devices",
    Reason.DEVICES_PROMISED: "starts when the jobs leaving its devices have let go",
    Reason.DEPENDENCY: "waits; released when the named jobs have ended as asked",
    Reason.USER_HOLD: "waits; released by tide resume",
    Reason.ARRAY_LIMIT: "waits; tried again when another member of the array has ended",
    Reason.BACKOFF: "waits; retried after a pause that doubles with each failure",
    Reason.NODES_DOWN: "waits; tried again when a node that could hold it is back",
    Reason.HOME_BUSY: "waits; its memory is frozen on one node, whose devices are busy",
    Reason.THINKING: "a plan is being made; asked again in a moment",
}


class Blocked(Struct, frozen=True, omit_defaults=True):
    """One job's binding limit in the eyes of a planner: devices needed, devices free for it, who holds the rest.

    ``at``: absolute microseconds from which jobs that run now may be preempted for it; 0 where the planner foresees no such time.
    """

    job: int
    reason: Reason
    text: str
    need: int = 0
    free: int = 0
    holders: tuple[int, ...] = ()
    ahead: int = -1
    at: int = 0

    def said(self, now: int) -> str:
        """The limit in words, with the time until jobs may be preempted for it."""
        if self.at <= now:
            return self.text
        return f"{self.text}; running jobs may be preempted for it in {format_duration(self.at - now)}"
