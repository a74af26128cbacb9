"""What the process that sends notifications asks of a job, and the warning where none can be sent."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...base.errors import NotFound
from ...model.cause import Code
from ...model.job import JobSpec
from ...wire import api
from ...wire.calls.notify import NotifyReply
from ..controller.controller_context import ControllerContext
from .cause_views import cause_view


def reply(context: ControllerContext, job: int, view: api.JobView, now: int) -> NotifyReply:
    """Whom a job notifies. Raises NotFound for one that notifies of nothing."""
    ended = context.loop.pending_archive.get(job) or context.journal.archive.get(job)
    spec = context.loop.driver.engine.book.specs.get(job) or (ended.spec if ended else None)
    if spec is None or spec.notify is None:
        raise NotFound(f"job {job} notifies of nothing", "submit jobs with --mail-type or --webhook")
    array = spec.array
    return NotifyReply(
        job=replace(view, spec=None, story=(), logs=()), notify=spec.notify,
        deadline=view.submit + spec.deadline_us if spec.deadline_us else 0,
        array=str(array.job or array.parent) if array else None,
        size=array.size if array else 1, now=now,
    )  # fmt: skip


def warned(answer: api.SubmitReply, specs: Sequence[JobSpec], mails: bool) -> api.SubmitReply:
    """The answer to a submission, with a warning where a mail is wanted that cannot be sent."""
    if mails or not any(spec.notify is not None and spec.notify.mail for spec in specs):
        return answer
    view = cause_view(Code.NO_MAIL_SERVER())
    return replace(answer, warnings=(*answer.warnings, view.text), causes=(*answer.causes, view))
