"""What every route about jobs has: the jobs that a reference means, one request to several members of an array, their ends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ....base.errors import Conflict, NotFound, UsageError
from ....base.ids import new_op_id
from ....engine import events as ev
from ....engine.commands import Reply
from ....model.cause import Code
from ....plan.render import render
from ....wire import api
from ....wire.array_refs import member_ref
from ....wire.arrays import MAX_LISTED, MAX_NAMED
from ...journal.archive import EndedMember
from .. import submission, views
from ..book_routes import WAITING
from ..cause_views import cause_view_or_none
from ..cooperative import CooperativeYield, of_archive
from ..request_parsing import body as read_body
from ..request_parsing import flag
from ..service_routes import ServiceRoutes
from ..why import waited
from .job_names import JobNames, JobSelection, some

Make = Callable[[int, str], ev.Event]
"""The event for one job, with its op_id."""


class ArrayRoutes(ServiceRoutes):
    """The handlers."""

    # -- one job ------------------------------------------------------------------------------------------------------

    def _is_live(self, job: int) -> bool:
        """Raises NotFound for a job that was not accepted."""
        if job in self.context.loop.rejected:
            raise NotFound(f"job {job} was not accepted: the disk was full", "submit it again")
        return job in self._book.specs

    def _brief(self, job: int) -> api.JobView:
        """A job as lists show it: without its story, and without a look for its logs. Raises NotFound."""
        return views.live_job(self._book, job, self._now()) if self._is_live(job) else self._ended_view(job)

    def _ended_view(self, job: int, full: bool = False) -> api.JobView:
        """A job that has ended; while that is not durable, one that is about to. Raises NotFound."""
        ended = self.context.journal.archive.get(job)
        if ended is not None:
            return views.ended_job(ended, full)
        if job in self.context.loop.pending_archive:
            return views.almost_ended(self.context.loop.pending_archive[job], full)
        raise submission.refusal(Code.NO_SUCH_JOB(job), "notfound")

    # -- what is meant ----------------------------------------------------------------------------------------------

    def _names(self) -> JobNames:
        return JobNames(
            self._book, self.context.journal.archive, self.context.loop.pending_archive, self._archived_members
        )

    async def _select(self, request: Request) -> JobSelection:
        """The jobs that ``{ref}`` means. Raises NotFound or Conflict."""
        return await self._names().find(request.path_params["ref"], flag(request, "single"))

    async def _find(self, request: Request) -> int:
        """The job that ``{ref}`` means. Raises Conflict where it means several members of an array."""
        found = await self._select(request)
        if not found.many or (found.indices is None and len(found.jobs) == 1):
            return found.jobs[0]
        ref = request.path_params["ref"]
        example = member_ref(found.array, 0) if found.array else f"{found.name}[0]"
        raise Conflict(f"{ref!r} means several members of array {found.name}", f"name one of them, e.g. {example!r}")

    async def _chosen(self, found: JobSelection) -> int:
        """The job to speak of where several are meant: the first that waits, else the first live one, else the first."""
        live = [job for job in found.jobs if job in self._book.specs]
        for state in WAITING if found.many else ():
            for job in live:
                if self._book.state(job) is state:
                    return job
        if live or found.jobs:
            return (live or found.jobs)[0]
        ended = await self._ended(found)
        return ended[0].job if ended else found.array

    # -- doing something to them --------------------------------------------------------------------------------------

    async def _act_on(
        self, request: Request, op_id: str, make: Make, concerned: Callable[[int], bool] | None = None, count: bool = False,
    ) -> Response:  # fmt: skip
        """One event for each job meant, in one step. ``concerned``: of several, only those that the request has a meaning for,
        if there are such. ``count``: those without devices are counted in the answer. Raises what the engine says where it
        refuses all of them."""
        found = await self._select(request)
        jobs = self._answered(op_id) if op_id and found.many else []
        op_id = op_id or new_op_id()
        if not found.many:
            return await self._act(make(found.jobs[0], op_id), op_id, count=count)
        if not jobs:
            live = [job for job in found.jobs if job in self._book.specs]
            if not live:
                raise submission.refusal(Code.ARRAY_OVER(found.array), "conflict")
            jobs = [job for job in live if concerned is None or concerned(job)] or live
        events: dict[str, ev.Event] = {}
        pause = CooperativeYield()
        for job in jobs:
            events[f"{op_id}.{job}"] = make(job, f"{op_id}.{job}")
            await pause()
        replies = await self.context.loop.request_all(events)
        done = self._summed_up(found, jobs, [replies[key] for key in events])
        return self._answer(replace(done, waiting=self._waiting(done.jobs)) if count else done)

    def _answered(self, op_id: str) -> list[int]:
        """The members that a request with this ``op_id`` has been about: it comes again where its sender lost the answer, and
        others would be meant by now."""
        before = f"{op_id}."
        found = [key.removeprefix(before) for key in self._book.answers if key.startswith(before)]
        return [int(job) for job in found if job.isdecimal()]

    def _summed_up(self, found: JobSelection, jobs: list[int], replies: list[Reply]) -> api.ActionReply:
        refused = [(job, reply) for job, reply in zip(jobs, replies, strict=True) if reply.error]
        if len(refused) == len(jobs):
            submission.raise_refusal(refused[0][1])
        warning = next((reply.warning for reply in replies if reply.warning), None)
        left_out = {job: True for job, _ in refused}
        done = tuple(job for job in jobs if job not in left_out)
        return api.ActionReply(
            job=jobs[0], array=found.array, jobs=done, refused=len(refused),
            members=tuple(self._left(job, reply) for job, reply in refused[:MAX_NAMED]),
            warning=render(warning), cause=cause_view_or_none(warning),
        )  # fmt: skip

    def _left(self, job: int, reply: Reply) -> api.MemberView:
        """A member that was left as it is, and why."""
        spec = self._book.specs.get(job)
        index = spec.array.index if spec is not None and spec.array is not None else -1
        state = self._brief(job).state
        return api.MemberView(job=job, index=index, state=state, why=render(reply.error))

    async def array_limit(self, request: Request) -> Response:
        """Change how many members of an array run at once."""
        body = await read_body(request, api.ArrayLimitRequest)
        found, op_id = await self._select(request), body.op_id or new_op_id()
        if found.indices is not None:
            raise UsageError("the limit is of a whole array, not of members", f"name the array: {found.array}")
        if not found.array:
            if found.many:
                raise submission.refusal(Code.NO_SUCH_ARRAY(found.jobs[0]), "notfound")
            ref = request.path_params["ref"]
            raise NotFound(f"{ref!r} is one job, and the limit is of an array", "name an array: its id, or its name")
        if not 0 <= body.limit < 2**31:
            raise submission.refusal(
                Code.SPEC_WRONG((f"limit: {body.limit} is not between 0 and {2**31 - 1}",)), "usage"
            )
        return await self._act(ev.LimitArray(found.array, body.limit, op_id), op_id)

    # -- what became of them ------------------------------------------------------------------------------------------

    async def _ended(self, found: JobSelection) -> list[EndedMember]:
        """The ended members among those meant, by job."""
        return some(found, await self._archived_members(found.array)) if found.array else []

    async def _archived_members(self, array: int) -> list[EndedMember]:
        return await of_archive(self.context.journal, lambda archive: archive.members(array))

    async def _array_view(self, found: JobSelection) -> api.ArrayView:
        """The members meant, live and ended."""
        ended = {one.job: one for one in await self._ended(found)}
        live = [job for job in found.jobs if job in self._book.specs and job not in ended]
        specs = self._book.specs
        members = [
            api.MemberView(job=job, index=member.index, state=views.state_name(self._book.jobs[job].state))
            for job in live
            if (member := specs[job].array) is not None
        ]
        gone = [
            self.context.loop.pending_archive.get(job) for job in found.jobs if job not in specs and job not in ended
        ]
        members += [
            api.MemberView(job=one.job, index=one.spec.array.index, state="stopping")
            for one in gone
            if one is not None and one.spec.array is not None
        ]
        members += [_member(one) for one in ended.values()]
        members.sort(key=lambda one: one.index)
        first = specs[live[0]] if live else self._names().spec(next(iter(ended), found.array))
        record = self._book.arrays.get(str(found.array))
        array = first.array if first is not None else None
        return api.ArrayView(
            id=found.array, name=found.name, user=first.user if first else "", team=first.team if first else "",
            size=array.size if array else 0, limit=record.limit if record else array.limit if array else 0,
            states=dict(Counter(one.state for one in members)), members=self._explained(members[:MAX_LISTED]),
        )  # fmt: skip

    def _explained(self, members: list[api.MemberView]) -> tuple[api.MemberView, ...]:
        """With why the first of those that failed did."""
        bad = [one for one in members if one.state in ("failed", "timeout")][:MAX_NAMED]
        named = {one.job: self._brief(one.job).why for one in bad}
        return tuple(
            api.MemberView(job=one.job, index=one.index, state=one.state, exit_code=one.exit_code, why=named[one.job])
            if one.job in named
            else one
            for one in members
        )

    def _any_left(self, found: JobSelection) -> bool:
        """Whether a job meant has not ended for good."""
        specs, pending = self._book.specs, self.context.loop.pending_archive
        return any(job in specs or job in pending for job in found.jobs)

    async def _waited(self, found: JobSelection, late: bool) -> api.WaitReply | None:
        """The answer of a long poll; None where it is not over yet and not too late."""
        if not found.many:
            view = self._brief(found.jobs[0])
            final = view.state in api.FINAL_STATES
            return waited(view, final) if final or late else None
        left = [job for job in found.jobs if job in self._book.specs or job in self.context.loop.pending_archive]
        if left:
            return _still(found, left, self._brief(left[0]).state) if late else None
        ended = await self._ended(found) or await self._by_ids(found.jobs)
        return self._ends(found, ended)

    async def _by_ids(self, jobs: Iterable[int]) -> list[EndedMember]:
        """Members of an array without an id, by their own."""
        pause, ended = CooperativeYield(), []
        for job in jobs:
            one = self.context.journal.archive.get(job)
            if one is not None and one.spec.array is not None:
                ended.append(EndedMember(job, one.spec.array.index, one.state, one.code))
            await pause()
        return ended

    def _ends(self, found: JobSelection, ended: list[EndedMember]) -> api.WaitReply:
        members = [_member(one) for one in ended]
        bad = [one for one in members if one.exit_code]
        worst = max(bad, key=lambda one: one.exit_code, default=None)
        states = ", ".join(f"{count} {state}" for state, count in Counter(one.state for one in bad).items())
        why = f"{len(bad)} of {len(members)} members did not complete ({states})" if bad else ""
        return api.WaitReply(
            job=members[0].job if members else found.array, array=found.array, state=worst.state if worst else "completed",
            final=True, exit_code=worst.exit_code if worst else 0, why=why, failed=len(bad),
            members=self._explained([one for one in bad if one.state != "cancelled"][:MAX_NAMED]),
        )  # fmt: skip


def _still(found: JobSelection, left: list[int], state: api.StateName) -> api.WaitReply:
    return api.WaitReply(
        job=left[0], array=found.array, state=state, final=False, why=f"{len(left)} of its members have not ended"
    )


def _member(one: EndedMember) -> api.MemberView:
    state = views.state_name(one.state)
    return api.MemberView(job=one.job, index=one.index, state=state, exit_code=views.exit_code_of(one.state, one.code))
