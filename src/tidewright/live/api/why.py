"""Answers that say why a job is in its state, or how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...model.cause import Arg, Cause, Code
from ...model.job import JobSpec
from ...plan.advice import CONSEQUENCE_OF_BOTH, CONSEQUENCE_OF_HOLD, REASON_REMEDY
from ...plan.explain import Change, Explanation, Forecast, Interval, Rehearsal
from ...plan.reasons import Reason
from ...plan.render import remedy, render
from ...wire import api
from .cause_views import cause_view, cause_view_or_none


def why_live(
    job: api.JobView, found: Explanation, now: int, searched: bool, typed: Callable[[int], str] = str
) -> api.WhyView:
    """Of a job in the book, by what the engine and the planner say. ``searched``: whether changes were looked for; ``typed``: how
    a job is named to a command."""
    cause = cause_view(found.why) if found.why else job.cause
    own = typed(job.id)
    changes = tuple(_change(change, own, typed) for change in found.changes)
    change, dead_end = found.change, found.dead_end
    if dead_end is not None:
        changes = ()
    holders = tuple(api.Holder(one.job, one.name, one.tier, one.devices) for one in found.holders)
    return api.WhyView(
        job=job.id, name=job.name, state=job.state, summary=cause.text if cause else job.why, cause=cause,
        reason=found.reason.value if found.reason else "", consequence=_consequence(job, found, now),
        need=found.need, free=found.free, holders=holders, ahead=found.ahead, order=tuple(map(cause_view, found.order)),
        first_ahead=cause_view_or_none(found.first_ahead), change=_words(changes[0]) if changes else "",
        change_cause=cause_view(_what(change)) if change else None, changes=changes, searched=searched, story=job.story, now=now,
        dead_end=cause_view_or_none(dead_end), remedy=_remedy(typed(job.id), found),
    )  # fmt: skip


def _remedy(job: str, found: Explanation) -> str:
    """What to do next where no change is offered."""
    if found.dead_end is not None:
        return remedy(found.dead_end)
    if found.why is not None and found.why.code is Code.ALSO_HELD:
        return _release(job, found.why.args[1])
    if found.why is not None and found.why.code is Code.HELD_BY:
        return _release(job, found.why)
    return REASON_REMEDY.get(found.reason, "").format(job=job) if found.reason is not None else ""


def _release(job: str, hold: Arg) -> str:
    """How a user's hold is ended."""
    kept = isinstance(hold, Cause) and hold.code is Code.HELD_BY
    return f"release it: tide release {job}" if kept else REASON_REMEDY[Reason.USER_HOLD].format(job=job)


def _consequence(job: api.JobView, found: Explanation, now: int) -> str:
    """What happens next; a suspension for a set time ends by itself."""
    if found.why is not None and found.why.code is Code.HELD_BY:
        return CONSEQUENCE_OF_HOLD
    if found.why is not None and found.why.code is Code.ALSO_HELD:
        return CONSEQUENCE_OF_BOTH
    if found.reason is Reason.USER_HOLD and job.held_until:
        return render(Code.RELEASED_IN(max(0, job.held_until - now)))
    return found.consequence


def _words(change: api.ChangeView) -> str:
    return f"{change.text} ({change.type})" if change.type else change.text


def _change(change: Change, own: str, typed: Callable[[int], str]) -> api.ChangeView:
    todo = _typed(change, own, typed)
    what = _what(change)
    return api.ChangeView(change.kind, render(what), cause_view(what), todo, change.jobs)


def _what(change: Change) -> Cause:
    """What changes. Of a request that stays as it was submitted that is history: submitted anew, the job would lose its place."""
    return Code.HAD_IT_ASKED(change.what, change.flag) if change.kind == "request" and change.flag else change.what


def _typed(change: Change, own: str, typed: Callable[[int], str]) -> str:
    """What to type for it, for the sake of the job called ``own``."""
    if change.kind == "request":
        return "" if change.flag else f"tide scale {own} {change.devices}"
    if change.kind == "tier":
        return f"tide update {own} {change.flag}"
    if change.kind in ("cancel", "cancel-waiting"):
        return f"tide cancel {typed(change.jobs[0])}"
    if change.kind == "scale":
        return "; ".join(f"tide scale {typed(job)} {size}" for job, size in zip(change.jobs, change.sizes, strict=True))
    if change.kind == "undrain":
        return "; ".join(f"tide undrain {node}" for node in change.nodes)
    if change.kind == "move":
        return "; ".join(
            f"tide migrate {typed(job)} --to {node}" for job, node in zip(change.jobs, change.nodes, strict=True)
        )
    return ""


def eta_view(
    job: int, name: str, state: str, found: Forecast, now: int, calibration: api.CalibrationView | None = None
) -> api.EtaView:
    """When a job starts and ends, and how often such forecasts have held."""
    return api.EtaView(
        job=job, name=name, state=state, starts=_times(found.start), ends=_times(found.end),  # type: ignore[arg-type]
        why=render(found.why), cause=cause_view_or_none(found.why), samples=found.samples, method=found.method, now=now,
        calibration=calibration, durations=found.durations, finished=found.finished, cancelled=_times(found.cancelled),
        cancelled_in=found.cancelled_in,
    )  # fmt: skip


def eta_ended(job: api.JobView, now: int) -> api.EtaView:
    """Of a job that has ended: when that was."""
    end = api.TimeInterval(job.end, job.end, job.end) if job.end > 0 else None
    return api.EtaView(job=job.id, name=job.name, state=job.state, ends=end, why=job.why, cause=job.cause, now=now)


def _times(found: Interval | None) -> api.TimeInterval | None:
    return None if found is None else api.TimeInterval(found.low, found.middle, found.high)


def rehearsed(specs: Sequence[JobSpec], found: Rehearsal, now: int) -> api.SubmitReply:
    """The answer to a dry run."""
    times = tuple(
        eta_view(at, spec.name, "queued", one, now)
        for at, (spec, one) in enumerate(zip(specs, found.forecasts, strict=False), 1)
    )
    return api.SubmitReply(
        dry_run=True, forecast=tuple(map(render, found.lines)), times=times, warnings=tuple(map(render, found.warnings)),
        causes=tuple(map(cause_view, found.warnings)),
    )  # fmt: skip


def why_ended(job: api.JobView, now: int) -> api.WhyView:
    """Of a job that has ended."""
    return api.WhyView(
        job=job.id, name=job.name, state=job.state, summary=job.why, cause=job.cause, story=job.story, now=now,
        failure=job.failure,
    )  # fmt: skip


def waited(job: api.JobView, final: bool) -> api.WaitReply:
    """The answer of a long poll."""
    return api.WaitReply(
        job=job.id, state=job.state, final=final, exit_code=job.exit_code, why=job.why, cause=job.cause
    )
