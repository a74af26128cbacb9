"""Handlers of the HTTP API about services: deploy, list, scale, delete."""

from __future__ import annotations

import shlex

from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ...base.errors import NotFound
from ...base.ids import new_op_id
from ...engine import events as ev
from ...engine.book import RUNNING, Book
from ...engine.services import start_image
from ...engine.services.records import ServiceRecord, is_ready
from ...model.cause import Code
from ...model.job import State
from ...model.launchable import unlaunchable
from ...plan.render import render
from ...wire import api
from ...wire.services import (
    DeployRequest,
    ReplicaReadyRequest,
    ReplicaView,
    ScaleServiceRequest,
    ServiceImageRequest,
    ServiceList,
    ServiceView,
)
from . import submission
from .book_routes import BookRoutes
from .identity import signed
from .request_parsing import body as read_body


class ServiceRoutes(BookRoutes):
    """The handlers."""

    async def services(self, request: Request) -> Response:
        records = self._book.services.records
        found = tuple(service_view(self._book, records[name]) for name in sorted(records))
        return self._answer(ServiceList(services=found, now=self._now()))

    async def deploy(self, request: Request) -> Response:
        body = await read_body(request, DeployRequest)
        jobs = api.SubmitRequest(specs=(body.service.replica,))
        (replica,) = signed(jobs, request.scope, self.context.run_as).specs
        wrong = unlaunchable(replica)
        if wrong:
            raise submission.refusal(Code.SPEC_WRONG(tuple(wrong[: submission.SHOWN_MISTAKES])), "usage")
        op_id = body.op_id or new_op_id()
        return await self._act(ev.DeployService(replace(body.service, replica=replica), op_id), op_id)

    async def scale_service(self, request: Request) -> Response:
        body = await read_body(request, ScaleServiceRequest)
        op_id = body.op_id or new_op_id()
        return await self._act(ev.ScaleService(_name(request), body.replicas, op_id), op_id)

    async def replica_ready(self, request: Request) -> Response:
        body = await read_body(request, ReplicaReadyRequest)
        op_id = body.op_id or new_op_id()
        return await self._act(ev.ReplicaReady(_name(request), body.job, body.attempt, op_id), op_id)

    async def take_service_image(self, request: Request) -> Response:
        body = await read_body(request, ServiceImageRequest)
        op_id = body.op_id or new_op_id()
        return await self._act(ev.TakeServiceImage(_name(request), body.job, body.attempt, op_id), op_id)

    async def delete_service(self, request: Request) -> Response:
        body = await read_body(request, api.ActionRequest, api.ActionRequest())
        op_id = body.op_id or new_op_id()
        return await self._act(ev.DeleteService(_name(request), op_id), op_id)


def _name(request: Request) -> str:
    name: str = request.path_params["name"]
    if not name:
        raise NotFound("an empty name of a service", "list them with tide serve ls")
    return name


def service_view(book: Book, record: ServiceRecord) -> ServiceView:
    """A service as clients see it."""
    spec = record.spec
    replicas = tuple(
        ReplicaView(
            job=job, name=book.specs[job].name, state=State(book.jobs[job].state).word, version=version,
            ready=is_ready(record, job, book.jobs[job].attempt), retired=job in record.retired,
        )
        for job, version in record.replicas.items() if job in book.jobs and job != record.image_job
    )  # fmt: skip
    running = sum(
        book.jobs[one.job].state == RUNNING and one.ready and one.version == record.version and not one.retired
        for one in replicas
    )
    last = record.last_restart
    return ServiceView(
        name=spec.name, state=_state(record, running, replicas), version=record.version, wanted=record.wanted, running=running,
        min_replicas=spec.min_replicas, max_replicas=spec.max_replicas, scale_down_us=spec.scale_down_us,
        tier=spec.replica.tier, devices=spec.replica.devices,
        since=record.deployed, image=_image(book, record), image_job=record.image_job,
        image_error=render(record.image_error) if record.image_error else "", ends=record.ends,
        restarts=record.restarts, last_end=render(last.why) if last else "", last_end_job=last.job if last else 0,
        last_end_at=last.at if last else 0,
        replicas=replicas, command=shlex.join(spec.replica.command),
        user=spec.replica.user,
    )  # fmt: skip


def _image(book: Book, record: ServiceRecord) -> str:
    if not record.spec.from_image:
        return ""
    if record.image_job:
        return "making" if start_image.being_taken(book, record) else "ready"
    return "failed" if start_image.unwanted(record) else "wanted"


def _state(record: ServiceRecord, running: int, replicas: tuple[ReplicaView, ...]) -> str:
    if record.deleted:
        return "deleting"
    if any(one.version != record.version for one in replicas):
        return "updating"
    if not record.wanted:
        return "idle"
    return "ready" if running >= record.wanted else "starting"
