"""The HTTP API: a handler per route of ``wire.openapi``. Reads look at the book; writes are durable when answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import msgspec
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from ...base.errors import NotFound, UsageError
from ...base.ids import new_op_id
from ...base.units import counted
from ...engine import events as ev
from ...engine.wall_time import wall_time
from ...model.cause import Code
from ...model.job import LONGEST_US, JobSpec, State
from ...wire import api, openapi
from ...wire.calls.completion import WORD_KINDS, WordList
from ..controller.loop import NotDurable
from ..journal.archive import GROUPS
from ..journal.export import exported
from . import notifications, submission, views
from .answers import Handler, bug, by_method, guard, no_route
from .event_stream import point
from .identity import caller, signed, uid_of
from .jobs.job_change_routes import JobChangeRoutes
from .jobs.job_names import typed
from .listing import Query, listing, usage, words
from .logs import RankPaths, Tail, all_ranks, log_path
from .metrics import exposition
from .request_parsing import body as read_body
from .request_parsing import flag, number, reason, seconds, states
from .why import eta_ended, eta_view, rehearsed, why_ended, why_live

LONGEST_WAIT_S = 300.0
KEEPALIVE_S = 15.0
"""Pause after which a silent event stream says that it is alive, so that proxies keep it."""
EVENTS_AT_A_TIME = 200


class Routes(JobChangeRoutes):
    """The handlers. Named as in the route table, which binds them."""

    def application(self) -> Starlette:
        """The ASGI application."""
        found: dict[str, dict[str, Handler]] = {}
        for route in openapi.ROUTES:
            found.setdefault(route.path, {})[route.method] = guard(getattr(self, route.name))
        routes = [Route(path, by_method(handlers), methods=list(handlers)) for path, handlers in found.items()]
        return Starlette(routes=routes, exception_handlers={HTTPException: no_route, Exception: bug})

    # -- the controller ---------------------------------------------------------------------------------------------

    async def info(self, request: Request) -> Response:
        return self._answer(self.context.info())

    async def healthz(self, request: Request) -> Response:
        if why := self.context.loop.journal_error or self.context.loop.room():
            raise NotDurable(why)
        return self._answer(api.Done())

    async def openapi(self, request: Request) -> Response:
        return Response(msgspec.json.encode(openapi.document(self.context.version)), media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        return Response(exposition(self.context.metrics), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def shutdown(self, request: Request) -> Response:
        self.context.shutdown(flag(request, "agent", True))
        return self._answer(api.Done())

    # -- jobs -------------------------------------------------------------------------------------------------------

    async def submit(self, request: Request) -> Response:
        body = signed(await submission.read(await request.body()), request.scope, self.context.run_as)
        submission.check_joined(self._names(), body)
        body = await submission.with_dependencies(self._names(), body)
        await submission.check(self._book, body)
        if body.dry_run:
            now = self._now()
            found = await self.context.explainer.rehearse(self.context.loop.driver.engine, body.specs, now)
            return self._answer(rehearsed(body.specs, found, now))
        reply = await submission.admit(self.context.loop, body)
        return self._answer(notifications.warned(reply, body.specs, self.context.mails))

    async def jobs(self, request: Request) -> Response:
        given = request.query_params
        query = Query(
            states=tuple(states(given.get("state", ""))), limit=number(request, "limit", 0),
            equal={key: given[key] for key in ("name", "team", "user") if key in given},
            ended=flag(request, "all"), without=self.context.loop.rejected,
            collapse=flag(request, "collapse"), pending=self.context.loop.pending_archive,
        )  # fmt: skip
        found = await listing(self._book, self.context.journal, query, self._now())
        return Response(found, media_type="application/json")

    async def job(self, request: Request) -> Response:
        found = await self._select(request)
        job = self._view(await self._chosen(found))
        array = await self._array_view(found) if found.many else None
        return self._answer(api.JobReply(job=job, array=array, now=self._now()))

    def _view(self, job: int) -> api.JobView:
        if not self._is_live(job):
            view = self._ended_view(job, full=True)
            return replace(view, logs=self._logs(job, view.start >= 0))
        view = views.live_job(self._book, job, self._now(), full=True)
        logs = self._logs(job, view.start >= 0)
        reconciler = self.context.agent_pool.reconciler
        memory, share, host = reconciler.limits(job)
        held_us = reconciler.registry.held_us(job)
        return replace(view, logs=logs, hold_us=held_us, memory_limit=memory, share_limits=share, host_limits=host)

    async def why(self, request: Request) -> Response:
        selected, now = await self._select(request), self._now()
        job = await self._chosen(selected)
        view, waiting = self._view(job), self._waiting(selected.jobs) if selected.many else 0
        if job not in self._book.specs:
            return self._answer(why_ended(view, now))
        engine, explainer = self.context.loop.driver.engine, self.context.explainer
        found = explainer.limit(engine, job, now)
        searched = flag(request, "changes", True) and found.liftable
        if searched:
            found = replace(found, changes=await explainer.changes(engine, found, now))
        answer = why_live(view, found, now, searched, lambda each: typed(self._book, each))
        return self._answer(replace(answer, array=selected.array if selected.many else 0, waiting=waiting))

    async def eta(self, request: Request) -> Response:
        job, now = await self._chosen(await self._select(request)), self._now()
        view = self._brief(job)
        if job not in self._book.specs:
            return self._answer(eta_ended(view, now))
        found = await self.context.explainer.forecast(self.context.loop.driver.engine, (job,), now)
        kept = views.calibration_view(self._book.start_calibration)
        return self._answer(eta_view(view.id, view.name, view.state, found[0], now, kept))

    async def notify(self, request: Request) -> Response:
        if uid_of(request.scope) is None:
            raise UsageError("notifications are asked for over the unix socket only", "ask on the controller's machine")
        job = await self._find(request)
        view, ended = self._brief(job), self.context.ended(job)
        spec = self._book.specs.get(job) or (ended.spec if ended else None)
        return self._answer(notifications.reply(view, spec, self._now()))

    async def notifying(self, request: Request) -> Response:
        return self._answer(await notifications.notifying(self.context, number(request, "after", -1)))

    async def suspend(self, request: Request) -> Response:
        body = await read_body(request, api.SuspendRequest, api.SuspendRequest())
        now = wall_time(self._book.wall_offsets, self._now(), self._now())
        if body.until_us and body.until_us <= now:
            raise UsageError("until_us: that time has passed", "give a time to come, in microseconds since 1970")
        if body.until_us > now + LONGEST_US:
            raise UsageError("until_us: more than a century from now", "leave it out to suspend without an end")
        return await self._act_on(
            request, body.op_id, lambda job, op_id: ev.Hold(job, op_id, body.until_us), count=True
        )

    async def resume(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        held = self._book.jobs
        return await self._act_on(request, body.op_id, ev.Release, lambda job: held[job].user_hold is not None)

    async def migrate(self, request: Request) -> Response:
        body = await read_body(request, api.MoveRequest, api.MoveRequest())
        op_id = body.op_id or new_op_id()
        for name in body.to:
            if name not in self._book.nodes:
                raise submission.refusal(Code.NO_SUCH_NODE(name), "notfound")
        return await self._act(ev.Move(await self._find(request), body.to, op_id), op_id)

    async def scale(self, request: Request) -> Response:
        body = await read_body(request, api.ScaleRequest)
        op_id = body.op_id or new_op_id()
        if body.devices < 0:
            raise UsageError(f"devices: {body.devices} is negative", "give a number of devices, or 0 for as submitted")
        return await self._act(ev.Scale(await self._find(request), body.devices, op_id), op_id)

    async def checkpoint(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        book = self._book
        return await self._act_on(request, body.op_id, ev.TakeImage, lambda job: book.state(job) is State.RUNNING)

    async def cancel(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        by = caller(request.scope)
        return await self._act_on(request, body.op_id, lambda job, op_id: ev.Cancel(job, op_id, by))

    async def wait(self, request: Request) -> Response:
        found = await self._select(request)
        end = asyncio.get_running_loop().time() + min(LONGEST_WAIT_S, seconds(request, "timeout", LONGEST_WAIT_S))
        while True:
            change = self.context.event_stream.change()
            left = end - asyncio.get_running_loop().time()
            # Every waiting client looks at every change: a whole view each time would be work for nothing.
            if left <= 0 or not self._any_left(found):
                reply = await self._waited(found, left <= 0)
                if reply is not None:
                    return self._answer(reply)
            await _or_timeout(change, max(0.0, left))

    async def logs(self, request: Request) -> Response:
        job = await self._find(request)
        view = self._brief(job)
        rank, tail, follow = number(request, "rank", 0), number(request, "tail", -1), flag(request, "follow")
        attempt = number(request, "attempt", 0)
        if not 0 <= rank < view.ranks:
            raise NotFound(f"job {job} has ranks 0 to {view.ranks - 1}, no rank {rank}", "choose one with --rank")

        if attempt > max(view.attempt, 1):
            raise NotFound(f"job {job} has had {counted(view.attempt, 'attempt')}", "choose one with --attempt")

        def reader(rank: int) -> AsyncIterator[bytes]:
            paths = RankPaths(
                self.context.state, job, rank, lambda: self._attempts(job), lambda one: self._reported(job, one, rank)[1],
                attempt,
            )  # fmt: skip
            ended = Tail(
                paths, lambda: job not in self._book.specs, tail if tail >= 0 else None, self.context.log_owner(job)
            )
            return ended.read(follow)

        if flag(request, "all_ranks"):
            lines = all_ranks({rank: reader(rank) for rank in range(view.ranks)}, follow)
        else:
            lines = reader(rank)
        return StreamingResponse(lines, media_type="application/octet-stream")

    def _logs(self, job: int, started: bool) -> tuple[api.AttemptLog, ...]:
        """Every rank's log of every attempt so far: as reported, else where they are by rule, if it has ``started`` ever."""
        known = self._attempts(job)
        if known is None:
            return ()
        spec, attempts = known
        found = []
        for attempt in range(1, attempts + 1):
            for rank in range(spec.ranks):
                node, path = self._reported(job, attempt, rank)
                if path is None and started:
                    path = str(log_path(self.context.state, job, spec, attempt, rank))
                if path is not None:
                    found.append(api.AttemptLog(attempt, rank, node, path))
        return tuple(found)

    def _attempts(self, job: int) -> tuple[JobSpec, int] | None:
        """The spec of a job, live or ended, and how many attempts it has had."""
        book = self._book
        if job in book.specs:
            return book.specs[job], int(book.table.attempt[book.table.row[job]])
        ended = self.context.ended(job)
        return (ended.spec, ended.attempts) if ended is not None else None

    def _reported(self, job: int, attempt: int, rank: int) -> tuple[str, str | None]:
        """(node, path) of a rank's log as its agent has said; no path where it has not."""
        return self.context.agent_pool.logs.get((job, attempt), {}).get(rank, ("", None))

    # -- the pool ---------------------------------------------------------------------------------------------------

    async def nodes(self, request: Request) -> Response:
        nodes = views.nodes(self._book)
        known = tuple(views.with_inventory(node, self.context.agent_pool.nodes.get(node.name)) for node in nodes)
        return self._answer(api.NodeList(nodes=known, now=self._now()))

    async def drain(self, request: Request) -> Response:
        body = await read_body(request, api.DrainRequest, api.DrainRequest())
        name, op_id = request.path_params["name"], body.op_id or new_op_id()
        return await self._act(ev.NodeDrain(name, True, reason(body.why), op_id, body.move), op_id, name)

    async def undrain(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        name, op_id = request.path_params["name"], body.op_id or new_op_id()
        self.context.agent_pool.forgive(name)
        return await self._act(ev.NodeDrain(name, False, reason(body.why), op_id), op_id, name)

    async def words(self, request: Request) -> Response:
        of = request.query_params.get("of", "jobs")
        if of not in WORD_KINDS:
            raise UsageError(f"of: {of!r} is not one of {', '.join(WORD_KINDS)}", "ask for /v1/words?of=jobs")
        found = await words(self._book, self.context.journal, of, request.query_params.get("prefix", ""))
        return self._answer(WordList(words=found))

    async def usage(self, request: Request) -> Response:
        by = request.query_params.get("by", "team")
        if by not in GROUPS:
            raise UsageError(f"by: {by!r} is not one of {', '.join(GROUPS)}", "ask for /v1/usage?by=team")
        now = self._now()
        return self._answer(api.UsageReply(by=by, rows=await usage(self._book, self.context.journal, by, now), now=now))

    async def rates(self, request: Request) -> Response:
        rows = views.rates(self._book)
        workload = request.query_params.get("workload")
        kept = tuple(row for row in rows if workload in (None, row.workload))
        return self._answer(api.RatesReply(rows=kept, now=self._now()))

    async def forget_rates(self, request: Request) -> Response:
        body = await read_body(request, api.ForgetRatesRequest)
        op_id = body.op_id or new_op_id()
        self.context.forget_reports(body.workload)
        return await self._act(ev.ForgetRates(body.workload, op_id), op_id)

    async def top(self, request: Request) -> Response:
        return self._answer(await self.context.top())

    # -- streams ----------------------------------------------------------------------------------------------------

    async def events(self, request: Request) -> Response:
        given = request.headers.get("last-event-id", "")
        try:
            last = point(given) if given else self.context.event_stream.last
        except ValueError:
            raise UsageError(f"Last-Event-ID: {given!r} is not an event id", "give back an id that was sent") from None
        return StreamingResponse(
            self._events(last), media_type="text/event-stream", headers={"cache-control": "no-store"}
        )

    async def _events(self, last: tuple[int, int]) -> AsyncIterator[bytes]:
        yield b": tidewright\n\n"
        while not self.context.loop.stopping:
            change = self.context.event_stream.change()
            new, complete = self.context.event_stream.after(last)
            last = max(
                last, self.context.event_stream.last
            )  # before the first pause: what is published in one comes next
            if not complete:
                yield b": events were dropped; list the jobs again\n\n"
            for first in range(0, len(new), EVENTS_AT_A_TIME):
                yield b"".join(map(_event, new[first : first + EVENTS_AT_A_TIME]))
                await asyncio.sleep(0)  # a client that reads fast would have all of them in one go
            if not await _or_timeout(change, KEEPALIVE_S):
                yield b": alive\n\n"

    async def journal(self, request: Request) -> Response:
        environment, redact = flag(request, "environment"), flag(request, "redact")
        if environment and redact:
            raise UsageError("environment and redact exclude each other", "leave one of them out")
        lines = exported(self.context, environment, redact)
        return StreamingResponse(lines, media_type="application/x-ndjson")


def _event(event: api.JobEvent) -> bytes:
    return b"id: %s\nevent: job\ndata: %s\n\n" % (event.seq.encode(), msgspec.json.encode(event))


async def _or_timeout(change: asyncio.Event, seconds: float) -> bool:
    """Wait for a change; false when the time is over first."""
    try:
        await asyncio.wait_for(change.wait(), seconds)
    except TimeoutError:
        return False
    return True
