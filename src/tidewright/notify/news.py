"""What has happened to a job since it was last looked at, as kinds of notifications. Pure: the caller brings the time."""

from __future__ import annotations

from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from ..base.units import MINUTE
from ..model.notify import ARRAY_TASKS
from ..wire.answers import EtaView
from ..wire.api import FINAL_STATES, JobView
from ..wire.calls.notify import NotifyReply

BELOW_US = MINUTE
"""A job whose delivered fraction has been below its promise for so long is in breach of it; one that ended sooner is not."""
BETWEEN_PREEMPTIONS_US = MINUTE
"""Least time between two notifications of preemptions of one job."""
FAILURES = frozenset({"failed", "timeout"})


class SeenJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What has been seen of a job. Times in microseconds since 1970; 0: not yet."""

    job: int
    group: str = ""
    """The array that it is notified of with; empty: by itself."""
    size: int = 1
    began: bool = False
    attempt: int = 0
    preemptions: int = 0
    interrupted_at: int = 0
    """When it was last said that it was preempted or started again."""
    below_since: int = 0
    broken: bool = False
    forecast: bool = False
    """Whether a forecast breach has been notified."""
    state: str = ""

    @property
    def final(self) -> bool:
        return self.state in FINAL_STATES

    @property
    def failed(self) -> bool:
        return self.state in FAILURES


def first_seen(reply: NotifyReply) -> SeenJob:
    """A job of which nothing has been said yet."""
    alone = reply.array is None or ARRAY_TASKS in reply.notify.events
    group = "" if alone or reply.array is None else reply.array
    return SeenJob(job=reply.job.id, group=group, size=reply.size if group else 1)


def news(seen: SeenJob, reply: NotifyReply, now: int) -> tuple[SeenJob, tuple[str, ...]]:
    """What is now seen of it, and the kinds of what is new, whether wanted or not."""
    job, kinds = reply.job, []
    after = replace(seen, state=job.state, attempt=max(seen.attempt, job.attempt), preemptions=job.preemptions)
    if job.start > 0 and not seen.began:
        kinds.append("begin")
        after = replace(after, began=True)
    if seen.attempt and job.attempt > seen.attempt:
        kinds.append("requeue")
        after = replace(after, interrupted_at=now)
    if job.preemptions > seen.preemptions:
        if now - seen.interrupted_at >= BETWEEN_PREEMPTIONS_US:
            kinds.append("preempt")
            after = replace(after, interrupted_at=now)
        else:  # said with the next one
            after = replace(after, preemptions=seen.preemptions)
    after = _promise(after, reply, now)
    if after.broken and not seen.broken:
        kinds.append("breach")
    if after.final and not seen.final:
        kinds.append("fail" if after.failed else "end")
    return after, tuple(kinds)


def _promise(seen: SeenJob, reply: NotifyReply, now: int) -> SeenJob:
    job = reply.job
    if seen.broken or job.state == "cancelled" or (job.state == "held" and not job.start > 0):
        return seen
    below = job.target > 0 and job.fraction < job.target and job.submit > 0
    if not below:
        return replace(seen, below_since=0, broken=_late(reply, now))
    since = seen.below_since or now
    long_enough = (job.end - job.submit if seen.final else now - since) >= BELOW_US
    return replace(seen, below_since=since, broken=_late(reply, now) or long_enough)


def _late(reply: NotifyReply, now: int) -> bool:
    """Whether its deadline passed before it ended."""
    end = reply.job.end if reply.job.state in FINAL_STATES else now
    return bool(reply.deadline) and end > reply.deadline


def breach(reply: NotifyReply, now: int) -> str:
    """What was promised and is not kept, in words."""
    job = reply.job
    if _late(reply, now):
        return "its deadline has passed"
    return f"it was delivered {job.fraction:.0%} of full speed so far, of {job.target:.0%} promised"


def breaks_by_forecast(reply: NotifyReply, eta: EtaView) -> str:
    """Why a job is forecast to break what it was promised, in words; empty: it is not.

    By the middle of the forecast: as likely earlier as later. The GPU fraction at the end is what it has been delivered and
    full speed from its next start on.
    """
    job, ends = reply.job, eta.ends
    if ends is None or ends.middle < 0:
        return ""
    if reply.deadline and ends.middle > reply.deadline:
        return "it is forecast to end after its deadline"
    begins = max(eta.now, eta.starts.middle if eta.starts is not None else eta.now)
    lasts = ends.middle - job.submit
    fraction = (job.ideal_us + max(0, ends.middle - begins)) / lasts if lasts > 0 else 1.0
    if job.target > 0 and fraction < job.target - 0.005:
        return f"it is forecast to have been delivered {fraction:.0%} of full speed at its end, of {job.target:.0%} promised"
    return ""


def wanted(kinds: tuple[str, ...], reply: NotifyReply) -> tuple[str, ...]:
    """Those of ``kinds`` that its user asked for. A failure is an end, too, for who asked for ends only."""
    asked = reply.notify.events
    said = ("end" if kind == "fail" and "fail" not in asked else kind for kind in kinds)
    return tuple(dict.fromkeys(kind for kind in said if kind in asked))


class MembersSeen(NamedTuple):
    """How many other members of an array have begun, ended, failed, broken their promise and been forecast to, and when the last
    of them was said to be interrupted."""

    began: int = 0
    final: int = 0
    failed: int = 0
    broken: int = 0
    forecast: int = 0
    interrupted_at: int = 0


def of_array(kinds: tuple[str, ...], others: MembersSeen, size: int, now: int) -> tuple[str, ...]:
    """What is new of an array with the news of one member: its first start, its last end, the first member whose promise is
    broken, and interruptions once in a while."""
    calm = now - others.interrupted_at >= BETWEEN_PREEMPTIONS_US
    found = [kind for kind in kinds if kind in ("preempt", "requeue") and calm]
    found += [
        kind for kind, before in (("begin", others.began), ("breach", others.broken)) if kind in kinds and not before
    ]
    if ("end" in kinds or "fail" in kinds) and others.final >= size - 1:
        found.append("fail" if "fail" in kinds or others.failed else "end")
    return tuple(found)


def headline(kind: str, job: JobView) -> str:
    """One line for a subject: what happened to which job."""
    ended = {"completed": "has completed", "failed": "has failed", "timeout": "reached its time limit"}
    what = {
        "begin": "has begun", "end": ended.get(job.state, f"has ended ({job.state})"),
        "fail": ended.get(job.state, f"has ended ({job.state})"), "requeue": f"started again (attempt {job.attempt})",
        "preempt": f"was preempted ({job.preemptions} times in all)",
        "breach": "misses what was promised", "forecast": "is forecast to miss what was promised",
    }  # fmt: skip
    return f"job {job.id} ({job.name}) {what[kind]}"
