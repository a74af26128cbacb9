"""What the process that sends notifications asks of a job, and the warning where none can be sent."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...base.errors import NotFound
from ...model.cause import Code
from ...model.job import JobSpec
from ...wire import api
from ...wire.calls.notify import NotifyingReply, NotifyReply
from ..controller.controller_context import ControllerContext
from ..journal.archive import Archive
from .cause_views import cause_view
from .cooperative import of_archive
from .listing import PAGE

LATEST = 1000
"""Ended jobs that are looked at for who has never asked."""


def reply(view: api.JobView, spec: JobSpec | None, now: int) -> NotifyReply:
    """Whom a job notifies. Raises NotFound for one that notifies of nothing."""
    if spec is None or spec.notify is None:
        raise NotFound(f"job {view.id} notifies of nothing", "submit jobs with --mail-type or --webhook")
    array = spec.array
    return NotifyReply(
        job=view, notify=spec.notify, deadline=view.submit + spec.deadline_us if spec.deadline_us else 0,
        array=str(array.job or array.parent) if array else None, size=array.size if array else 1, now=now,
    )  # fmt: skip


async def notifying(context: ControllerContext, after: int) -> NotifyingReply:
    """The jobs that want notifications."""
    book = context.loop.driver.engine.book
    newest = book.next_job - 1
    after = after if after >= 0 else max(newest - LATEST, 0)
    live = tuple(job for job, spec in book.specs.items() if spec.notify is not None)
    almost = [job for job, one in context.loop.pending_archive.items() if one.spec.notify is not None and job > after]
    archived: list[int] = []
    if after < newest:
        archived = await of_archive(context.journal, lambda archive: _since(archive, after))
    return NotifyingReply(live=live, ended=tuple(sorted({*almost, *archived})), newest=newest)


def _since(archive: Archive, after: int) -> list[int]:
    below, found = None, []
    while page := archive.find(PAGE, below=below):
        found += [one.job for one in page if one.spec.notify is not None and one.job > after]
        below = page[-1].job
        if below <= after:
            break
    return found


def warned(answer: api.SubmitReply, specs: Sequence[JobSpec], mails: bool) -> api.SubmitReply:
    """The answer to a submission, with a warning where a mail is wanted that cannot be sent."""
    if mails or not any(spec.notify is not None and spec.notify.mail for spec in specs):
        return answer
    view = cause_view(Code.NO_MAIL_SERVER())
    return replace(answer, warnings=(*answer.warnings, view.text), causes=(*answer.causes, view))
