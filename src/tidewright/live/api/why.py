"""Answers that say why a job is in its state, or how it ended."""

from __future__ import annotations

from ...plan.explain import Explanation
from ...plan.render import render
from ...wire import api
from .cause_views import cause_view


def why_live(job: api.JobView, found: Explanation, now: int) -> api.WhyView:
    """Of a job in the book, by what the engine and the planner say."""
    cause = cause_view(found.why) if found.why else job.cause
    change = found.change
    holders = tuple(api.Holder(one.job, one.name, one.tier, one.devices) for one in found.holders)
    return api.WhyView(
        job=job.id, name=job.name, state=job.state, summary=cause.text if cause else job.why, cause=cause,
        reason=found.reason.value if found.reason else "", consequence=found.consequence, need=found.need, free=found.free,
        holders=holders, ahead=found.ahead, change=f"{render(change.what)} ({change.flag})" if change else "",
        change_cause=cause_view(change.what) if change else None, story=job.story, now=now,
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
