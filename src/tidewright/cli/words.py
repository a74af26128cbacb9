"""Times, states and jobs in the words of tables."""

from __future__ import annotations

import datetime

from ..base.units import SECOND, agreeing, counted, format_duration
from ..wire.api import FINAL_STATES, CalibrationView, DeviceHeld, EtaView, JobView, StoryLine, TimeInterval
from ..wire.array_refs import member_ref
from ..wire.array_refs import ranges as ranges

WAITING = frozenset({"held", "queued", "suspended"})


def at(us: int) -> str:
    """A moment of the controller's clock in the reader's time zone; "-" when there is none."""
    if us <= 0:
        return "-"
    return datetime.datetime.fromtimestamp(us / 1e6).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def since(us: int, now: int) -> str:
    """How long ago; "-" when it has not happened."""
    return format_duration(max(0, now - us)) if us >= 0 else "-"


def age(job: JobView, now: int) -> str:
    """From submission to the end, or to now."""
    return format_duration(max(0, (job.end if job.end >= 0 else now) - job.submit))


def devices(job: JobView) -> str:
    """``4``, ``1:4`` for an elastic job, ``2/4`` when it holds fewer than it asked for."""
    asked = f"{job.min_devices}:{job.devices}" if 0 < job.min_devices < job.devices else str(job.devices)
    return f"{job.held}/{asked}" if 0 < job.held < job.devices else asked


def percent(fraction: float) -> str:
    return f"{100 * fraction:.0f}%"


def delivered(job: JobView) -> str:
    """Delivered GPU fraction; "-" before there is one."""
    return percent(job.fraction) if job.start >= 0 or job.state in FINAL_STATES else "-"


def short_of_target(job: JobView) -> bool:
    """Whether a job that has run is under its tier's promise."""
    return job.start >= 0 and job.target > 0 and job.fraction < job.target


def places(held: tuple[DeviceHeld, ...]) -> str:
    """``n1[0-3]+n2[0]``; a share as ``n1[0]@25%``, a best-effort one as ``n1[0]@be``; a client of a runtime, which has no
    device, as ``n1``."""
    return "+".join(
        (f"{place.node}[{ranges(place.devices)}]" if place.devices else place.node)
        + ("@be" if place.best_effort else f"@{place.milli / 10:.0f}%" if place.milli < 1000 else "")
        for place in held
    )


def job_ref(job: JobView) -> str:
    """What names a job to a command: its id, ``12_3`` for a member of an array, ``12_[4-99%4]`` for those that an entry stands
    for."""
    if not job.array:
        return str(job.id)
    if not job.array_waiting:
        return member_ref(job.array, job.array_index)
    return f"{job.array}_[{job.array_waiting}{f'%{job.array_limit}' if job.array_limit else ''}]"


def nodes_or_reason(job: JobView) -> str:
    """squeue(1)'s NODELIST(REASON): where it runs, or why it does not, or how it ended."""
    if job.where:
        return places(job.where)
    if job.state in FINAL_STATES:
        return _failed(job) if job.state == "failed" and job.exit_code >= 0 else job.why
    return f"({job.reason or job.why})" if job.reason or job.why else ""


def _failed(job: JobView) -> str:
    """How a job failed, and which of its ranks."""
    first = job.failure
    if first is None:
        return f"exit {job.exit_code}"
    facts = [first.signal] * bool(first.signal) + [f"rank {first.rank}"] * (job.ranks > 1)
    return f"exit {job.exit_code}" + (f" ({', '.join(facts)})" if facts else "")


def last_output(job: JobView) -> str:
    """What the rank that failed wrote at last; empty when none failed, or it wrote nothing."""
    if job.failure is None or not job.failure.lines:
        return ""
    of = f" of rank {job.failure.rank}" if job.ranks > 1 else ""
    return "\n".join([f"last output{of}", *(f"  {line}" for line in job.failure.lines)])


def story(lines: tuple[StoryLine, ...]) -> list[tuple[str, str]]:
    """For a list of facts: when and what (a state is written as in ``tide ps``), and why."""
    return [(f"{at(line.at)}  {line.what}", line.why) for line in lines]


def interval(times: TimeInterval | None, now: int) -> str:
    """``in 12m (8m to 25m)``; an end that is not foreseen is left open."""
    if times is None:
        return ""
    if times.middle < 0:
        return f"not before {_within(times.low, now)}" if times.low > 0 else "not within the time looked at"
    if times.low == times.high:
        return at(times.low) if times.high < now else f"in {_within(times.middle, now)}"
    high = f"to {_within(times.high, now)}" if times.high > 0 else "or much later"
    return f"in {_within(times.middle, now)} ({_within(times.low, now)} {high})"


def _within(us: int, now: int) -> str:
    return format_duration(max(us - now, 0))


def calibration(found: CalibrationView | None) -> str:
    """How often forecasts of starts have held, in one line; empty before that is known."""
    if found is None:
        return ""
    off = abs(found.median_error_us)
    middle = (
        f"{format_duration(off)} {'later' if found.median_error_us > 0 else 'earlier'} than" if off >= SECOND else "at"
    )
    return (
        f"of the last {counted(found.starts, 'start')} that {agreeing(found.starts, 'was', 'were')} forecast, "
        f"{percent(found.inside / found.starts)} fell into their interval (80% should), {found.earlier} came before it, "
        f"{found.later} after; in the median they came {middle} its middle"
    )


def eta(view: EtaView) -> list[tuple[str, str]]:
    """Names and values of a forecast, for a list of facts."""
    because = f": {view.why}" if view.why and not view.cancelled else ""
    starts = interval(view.starts, view.now)
    if view.starts is not None and view.starts.middle < 0:
        starts += because
    elif because and view.starts is None and view.ends is None:
        starts = f"not by itself{because}"
    facts = [("starts", starts), ("ends", interval(view.ends, view.now))]
    if view.cancelled is not None:
        some = f"in {view.cancelled_in} of {counted(view.samples, 'future')}, "
        when = interval(view.cancelled, view.now)
        facts.append(("would be cancelled", f"{some if view.cancelled_in < view.samples else ''}{when}: {view.why}"))
    return facts
