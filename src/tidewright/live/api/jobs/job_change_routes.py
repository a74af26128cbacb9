"""Handlers of the HTTP API that change jobs, one or many of them.

Any caller may change any job: who may connect at all is decided before (``identity.SocketAuth``, ``auth.TokenAuth``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from ....base.errors import UsageError
from ....base.ids import new_op_id
from ....engine import events as ev
from ....engine.book import Book
from ....engine.commands import Reply
from ....engine.requests.hold import WITH_DEVICES
from ....engine.requests.requeue import has_begun
from ....model.cause import Code
from ....model.job import FINAL, State
from ....model.job_record import JobRecord
from ....plan.render import remedy, render
from ....wire import api
from ....wire.calls.job_changes import (
    MOST_AT_ONCE,
    Action,
    BulkReply,
    BulkRequest,
    RefusedJob,
    RequeueRequest,
    Selection,
    UpdateRequest,
    UserSelection,
)
from ..cooperative import CooperativeYield
from ..identity import caller
from ..request_parsing import body as read_body
from ..request_parsing import flag, states
from ..views import state_name
from .array_routes import ArrayRoutes

_ENDED = (Code.ENDED_ALREADY, Code.ENDED_FOR_GOOD)
ACTIONS: tuple[str, ...] = get_args(Action)


class JobChangeRoutes(ArrayRoutes):
    """The handlers."""

    def _concerned(self, action: str) -> Callable[[int], bool]:
        """Whether an action has anything to do with a live job."""
        return lambda job: _APPLIES[action](self._book.jobs[job])

    async def update(self, request: Request) -> Response:
        body = await read_body(request, UpdateRequest)
        if body.changes == type(body.changes)():
            raise UsageError("changes: empty; nothing to change", "name a field with its new value, e.g. tier")
        if body.changes.limit_by_us and body.changes.max_duration_us is not None:
            raise UsageError("changes: max_duration_us and limit_by_us are both given", "give one of them")
        if body.changes.name == "":
            raise UsageError("changes: the name is empty", "give a name of letters, digits and . _ -")
        if body.changes.name is not None and any(letter in body.changes.name for letter in "[]"):
            raise UsageError("changes: the name has brackets, as members of arrays have", "give a name without")
        if body.changes.name is not None and (await self._select(request)).many:
            raise UsageError("changes: a name is of one job, and these are several", "leave the name as it is")
        changes, by = body.changes, caller(request.scope)
        return await self._act_on(
            request, body.op_id, lambda job, op_id: ev.Update(job, changes, op_id, by), self._concerned("cancel")
        )

    async def hold(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        by = caller(request.scope)
        return await self._act_on(
            request, body.op_id, lambda job, op_id: ev.Hold(job, op_id, waiting=True, by=by), self._concerned("hold")
        )

    async def release(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        return await self._act_on(request, body.op_id, ev.Release, self._concerned("release"))

    async def requeue(self, request: Request) -> Response:
        body = await read_body(request, RequeueRequest, RequeueRequest())
        by = caller(request.scope)
        return await self._act_on(
            request, body.op_id, lambda job, op_id: ev.Requeue(job, op_id, by, body.from_image, body.hold),
            self._concerned("requeue"),
        )  # fmt: skip

    # -- many jobs --------------------------------------------------------------------------------------------------

    async def select(self, request: Request) -> Response:
        given = request.query_params
        action = given.get("action", "cancel")
        if action not in ACTIONS:
            raise UsageError(
                f"action: {action!r} is not one of {', '.join(ACTIONS)}", "correct the query and ask again"
            )
        wanted = {key: _words(given.get(key, "")) for key in ("user", "team", "name")}
        among = frozenset(states(given.get("state", "")))
        if ended := [state for state in among if state in FINAL]:
            raise UsageError(f"state: jobs that are {state_name(ended[0])} have ended", "name states of live jobs")
        every = flag(request, "all")
        matching = await self._matching(wanted, among) if every or among or any(wanted.values()) else []
        return self._answer(_selection(self._book, matching, action))

    async def _matching(self, wanted: dict[str, frozenset[str]], among: frozenset[State]) -> list[int]:
        """Live jobs by id. A name is a job's own or that of its array."""
        found, pause, unaccepted = [], CooperativeYield(), self.context.loop.rejected
        for job, record in list(self._book.jobs.items()):
            spec = record.spec
            names = (spec.name, spec.array.parent) if spec.array else (spec.name,)
            if (
                (not among or record.state in among)
                and (not wanted["user"] or spec.user in wanted["user"])
                and (not wanted["team"] or spec.team in wanted["team"])
                and (not wanted["name"] or not wanted["name"].isdisjoint(names))
                and job not in unaccepted
            ):
                found.append(job)
            await pause()
        return found

    async def bulk(self, request: Request) -> Response:
        body = await read_body(request, BulkRequest)
        if len(body.jobs) > MOST_AT_ONCE:
            raise UsageError(
                f"jobs: {len(body.jobs)} in one request; {MOST_AT_ONCE} at most", "ask in several requests"
            )
        op_id, by = body.op_id or new_op_id(), caller(request.scope)
        events, pause = {}, CooperativeYield()
        for job in dict.fromkeys(body.jobs):
            events[f"{op_id}.{job}"] = _event(body, job, f"{op_id}.{job}", by)
            await pause()
        replies = await self.context.loop.request_all(events) if events else {}
        return self._answer(_bulk_reply([replies[one] for one in events]))


def _words(text: str) -> frozenset[str]:
    return frozenset(word.strip() for word in text.split(",") if word.strip())


def _event(body: BulkRequest, job: int, op_id: str, by: str) -> ev.Event:
    if body.action == "cancel":
        return ev.Cancel(job, op_id, by)
    if body.action == "hold":
        return ev.Hold(job, op_id, waiting=True, by=by)
    if body.action == "release":
        return ev.Release(job, op_id)
    return ev.Requeue(job, op_id, by, body.from_image, body.hold)


def _bulk_reply(replies: list[Reply]) -> BulkReply:
    wrong = [(one.job, one.error) for one in replies if one.error]
    refused = tuple(
        RefusedJob(job=job, error=render(why), remedy=remedy(why)) for job, why in wrong if why.code not in _ENDED
    )
    done = tuple(one.job for one in replies if not one.error)
    return BulkReply(done=done, ended=len(wrong) - len(refused), refused=refused)


_APPLIES: dict[str, Callable[[JobRecord], bool]] = {
    "cancel": lambda record: not record.ends,
    "hold": lambda record: record.state not in WITH_DEVICES and not record.ends and not record.held_by,
    "release": lambda record: record.user_hold is not None,
    "requeue": lambda record: has_begun(record) and not record.ends,
}
"""Whether an action has anything to do with a job."""


def _selection(book: Book, matching: list[int], action: str) -> Selection:
    found: list[int] = []
    others = replicas = 0
    by_user: dict[str, dict[str, int]] = {}
    for job in matching:
        record = book.jobs.get(job)
        if record is None:  # it ended while the others were looked at
            continue
        if record.spec.service:
            replicas += 1
        elif not _APPLIES[action](record):
            others += 1
        else:
            found.append(job)
            counts = by_user.setdefault(record.spec.user, {})
            name = state_name(record.state)
            counts[name] = counts.get(name, 0) + 1
    users = tuple(
        UserSelection(user=user, jobs=sum(counts.values()), states=counts)
        for user, counts in sorted(by_user.items(), key=lambda item: (-sum(item[1].values()), item[0]))
    )
    return Selection(jobs=tuple(found), users=users, others=others, replicas=replicas)
