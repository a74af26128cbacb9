"""Submission of jobs: reading, checking and admitting many of them without blocking other requests; all or none."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from ...base.errors import Conflict, NotFound, UsageError
from ...base.ids import new_op_id
from ...engine import events as ev
from ...engine.book import Book
from ...engine.commands import Reply
from ...engine.requests.admission import refuse
from ...model.cause import Cause, Code
from ...model.job import JobSpec
from ...model.launchable import unlaunchable
from ...plan.render import remedy, render
from ...wire import api
from ..controller.loop import Loop
from .cause_views import cause_view
from .cooperative import CooperativeYield
from .request_parsing import parsed

SHOWN_MISTAKES = 10
"""Of one spec; a message is not as long as the request."""
_spec = msgspec.json.Decoder(JobSpec)


class BodyTooLarge(UsageError):
    """More than one request may bring."""

    http_status = 413


class _Outline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``api.SubmitRequest`` whose specs have not been looked into."""

    specs: list[msgspec.Raw]
    op_id: str = ""
    dry_run: bool = False


async def read(data: bytes) -> api.SubmitRequest:
    """The request in a body. Raises UsageError naming the field that is wrong, TooLarge for too many specs."""
    outline = parsed(data, _Outline)
    if len(outline.specs) > api.MAX_SPECS:
        raise BodyTooLarge(
            f"specs: {len(outline.specs)} jobs in one request; {api.MAX_SPECS} at most",
            "submit them in several requests",
        )
    if not outline.specs:
        raise UsageError("specs: empty; nothing to submit", "give at least one job")
    specs, pause = [], CooperativeYield()
    for at, raw in enumerate(outline.specs):
        specs.append(_read_one(raw, at))
        await pause()
    return api.SubmitRequest(specs=tuple(specs), op_id=outline.op_id, dry_run=outline.dry_run)


def _read_one(raw: msgspec.Raw, at: int) -> JobSpec:
    try:
        return _spec.decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        what, found, where = str(error).rpartition(" - at `$")
        text = f"{what} - at `$.specs[{at}]{where}" if found else f"{error} - at `$.specs[{at}]`"
        raise UsageError(f"the request's body is not right: {text}", "see /openapi.json for what is expected") from None


async def check(book: Book, body: api.SubmitRequest) -> None:
    """All or nothing: one bad member refuses the whole request before any is admitted."""
    pause = CooperativeYield()
    for at, spec in enumerate(body.specs):
        wrong = unlaunchable(spec)
        refused = (Code.SPEC_WRONG(tuple(wrong[:SHOWN_MISTAKES])), "usage") if wrong else refuse(book, spec)
        if refused is not None and f"{body.op_id}.{at}" not in book.answers:
            error, kind = refused
            raise refusal(Code.ONE_OF_SPECS(at, error) if len(body.specs) > 1 else error, kind)
        await pause()


async def admit(loop: Loop, body: api.SubmitRequest) -> api.SubmitReply:
    """Submit every spec in one turn; returns once they are durable."""
    op_id = body.op_id or new_op_id()
    events: dict[str, ev.Event] = {}
    pause = CooperativeYield()
    for at, spec in enumerate(body.specs):
        events[f"{op_id}.{at}"] = ev.Submit(spec, f"{op_id}.{at}")
        await pause()
    found = await loop.request_all(events)
    replies = [found[one] for one in events]
    for reply in replies:
        raise_refusal(reply)
    warnings = tuple(dict.fromkeys(reply.warning for reply in replies if reply.warning))
    return api.SubmitReply(
        ids=tuple(reply.job for reply in replies), names=tuple(spec.name for spec in body.specs),
        warnings=tuple(map(render, warnings)), causes=tuple(map(cause_view, warnings)),
    )  # fmt: skip


def raise_refusal(reply: Reply) -> None:
    """What the engine refused, as an error."""
    if reply.error:
        raise refusal(reply.error, reply.kind)


def refusal(why: Cause, kind: str) -> UsageError:
    """A refusal as an error. ``kind`` as of a Reply."""
    error = {"notfound": NotFound, "conflict": Conflict}.get(kind, UsageError)(render(why), remedy(why))
    error.cause = why
    return error
