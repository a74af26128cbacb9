"""Submission of jobs: reading, checking and admitting many of them without blocking other requests; all or none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ...base.errors import Conflict, NotFound, UsageError
from ...base.ids import new_op_id
from ...engine import events as ev
from ...engine.book import Book
from ...engine.commands import Reply
from ...engine.requests.admission import refuse
from ...model.cause import Cause, Code
from ...model.job import Dependency, JobSpec
from ...model.launchable import unlaunchable
from ...plan.render import remedy, render
from ...wire import api
from ...wire.dependencies import JobDependency, parse_dependencies
from ..controller.loop import Loop
from .cause_views import cause_view
from .cooperative import CooperativeYield
from .jobs.job_names import JobNames, JobSelection
from .request_parsing import parsed

MAX_DEPENDENCIES = 200_000
"""Most pairs of jobs that one request makes wait for each other; whole arrays count as one job."""
SHOWN_MISTAKES = 10
"""Of one spec; a message is not as long as the request."""
_spec = msgspec.json.Decoder(JobSpec)


class BodyTooLarge(UsageError):
    """More than one request may bring."""

    http_status = 413


class _Outline(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``api.SubmitRequest`` whose specs have not been looked into."""

    specs: list[msgspec.Raw]
    env: dict[str, str] = {}
    after: tuple[str, ...] = ()
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
        spec = _read_one(raw, at)
        specs.append(replace(spec, env={**outline.env, **spec.env}) if outline.env else spec)
        await pause()
    return api.SubmitRequest(specs=tuple(specs), after=outline.after, op_id=outline.op_id, dry_run=outline.dry_run)


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


def check_joined(names: JobNames, body: api.SubmitRequest) -> None:
    """Specs that say which array they are further members of: it is there, and it is their user's. Raises NotFound."""
    said = {
        (one.array.job, one.array.parent, one.user): one
        for one in body.specs
        if one.array is not None and one.array.job
    }
    for number, parent, user in said:
        first = names.spec(number)
        array = first.array if first is not None else None
        if first is None or array is None or (array.job, array.parent, first.user) != (number, parent, user):
            raise NotFound(
                f"{user or 'you'} submitted no array {number} called {parent!r}", "leave array.job out for a new array"
            )


async def with_dependencies(names: JobNames, body: api.SubmitRequest) -> api.SubmitRequest:
    """The request with what ``after`` names looked up. Raises NotFound, Conflict or UsageError that say which it was."""
    wanted = [one for text in body.after for one in parse_dependencies(text)]
    if not wanted:
        return body
    array = body.specs[0].array
    common: list[Dependency] = []
    matching: list[tuple[str, dict[int, int]]] = []
    for one in wanted:
        found = await _looked_up(names, one, array.job if array is not None else 0)
        if one.kind == "aftercorr":
            matching.append((one.ref, await _corresponding(names, one, found)))
        elif found.many and found.indices is None and found.array:
            common.append(Dependency(one.kind, found.array, True))
        else:
            common.extend(Dependency(one.kind, job) for job in found.jobs)
    if len(body.specs) * (len(common) + len(matching)) > MAX_DEPENDENCIES:
        raise UsageError(
            f"after: {len(body.specs)} jobs that wait for {len(common)} others each; {MAX_DEPENDENCIES} together at most",
            "name a whole array instead of its members",
        )
    specs = [
        replace(spec, after=tuple(dict.fromkeys((*spec.after, *common, *_own(spec, matching))))) for spec in body.specs
    ]
    return replace(body, specs=tuple(specs))


async def _looked_up(names: JobNames, one: JobDependency, beside: int) -> JobSelection:
    try:
        return await names.find(one.ref, beside=beside)
    except UsageError as error:
        raise type(error)(f"{one.kind}:{one.ref}: {error.message}", error.remedy) from None


async def _corresponding(names: JobNames, one: JobDependency, found: JobSelection) -> dict[int, int]:
    if not found.many or not found.array:
        raise UsageError(f"aftercorr:{one.ref}: this is no array with an id", "use afterok for a single job")
    jobs = await names.by_index(found.array)
    return {index: job for index, job in jobs.items() if found.indices is None or index in found.indices}


def _own(spec: JobSpec, matching: Sequence[tuple[str, dict[int, int]]]) -> Iterator[Dependency]:
    """The member of each array with the spec's own index."""
    for ref, jobs in matching:
        if spec.array is None:
            raise UsageError(f"aftercorr:{ref}: {spec.name or 'the job'} is no member of an array", "use afterok")
        if spec.array.index not in jobs:
            raise NotFound(
                f"aftercorr:{ref}: it has no member {spec.array.index}",
                "give both arrays the same indices, or use afterok",
            )
        yield Dependency("afterok", jobs[spec.array.index])


async def admit(loop: Loop, body: api.SubmitRequest) -> api.SubmitReply:
    """Submit every spec in one turn; returns once they are durable."""
    op_id = body.op_id or new_op_id()
    events: dict[str, ev.Event] = {}
    pause, arrays = CooperativeYield(), _ArrayFirsts()
    for at, spec in enumerate(body.specs):
        key = f"{op_id}.{at}"
        events[key] = ev.Submit(spec, key, arrays.first(key, spec))
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


class _ArrayFirsts:
    """The first member of each array in a request. An index that comes again begins another array of the same name."""

    def __init__(self) -> None:
        self._first: dict[str, str] = {}
        self._seen: dict[str, set[int]] = {}
        """Indices of the latest array of each name."""

    def first(self, key: str, spec: JobSpec) -> str:
        """The op_id of the first member of the spec's array, which may be its own ``key``; empty for one that is no member."""
        array = spec.array
        if array is None or array.job:
            return ""
        seen = self._seen.get(array.parent)
        if seen is None or array.index in seen:
            self._first[array.parent] = key
            seen = self._seen[array.parent] = set()
        seen.add(array.index)
        return self._first[array.parent]


def raise_refusal(reply: Reply) -> None:
    """What the engine refused, as an error."""
    if reply.error:
        raise refusal(reply.error, reply.kind)


def refusal(why: Cause, kind: str) -> UsageError:
    """A refusal as an error. ``kind`` as of a Reply."""
    error = {"notfound": NotFound, "conflict": Conflict}.get(kind, UsageError)(render(why), remedy(why))
    error.cause = why
    return error
