"""The route table of the HTTP API, and the OpenAPI document made from it."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec
from msgspec import Struct

from . import api
from .bounds import QUERIES, bound
from .calls.completion import WORD_KINDS, WordList
from .calls.job_changes import BulkReply, BulkRequest, RequeueRequest, Selection, UpdateRequest
from .calls.notify import NotifyingReply, NotifyReply
from .services import DeployRequest, ReplicaReadyRequest, ScaleServiceRequest, ServiceImageRequest, ServiceList


class Param(Struct, frozen=True):
    """One query parameter."""

    name: str
    text: str
    kind: Literal["string", "integer", "number"] = "string"


class Route(Struct, frozen=True, kw_only=True):
    """One operation. ``name`` is its operationId and the name of the handler that serves it."""

    name: str
    method: str
    path: str
    text: str
    body: type[Struct] | None = None
    body_required: bool = True
    answer: type[Struct] | None = None
    media: str = "application/json"
    """What it answers with when ``answer`` is None."""
    query: tuple[Param, ...] = ()


_JOB = "/v1/jobs/{ref}"
_SINGLE = Param("single", "1: a number is the id of one job, though an array has the same", "integer")
_ROUTES: tuple[Route, ...] = (
    Route(name="info", method="GET", path="/v1/info", text="The controller itself", answer=api.Info),
    Route(
        name="submit", method="POST", path="/v1/jobs", text="Submit jobs; several specs are one array or sweep",
        body=api.SubmitRequest, answer=api.SubmitReply,
    ),
    Route(
        name="jobs", method="GET", path="/v1/jobs", text="List jobs", answer=api.JobList,
        query=(
            Param("all", "1: ended jobs too", "integer"), Param("state", "state names, separated by commas"),
            Param("team", "of this team"), Param("user", "of this user"), Param("name", "of this name"),
            Param("limit", "at most so many", "integer"),
            Param("collapse", "1: one entry for the members of an array that wait alike", "integer"),
                   ),
    ),
    Route(
        name="job", method="GET", path=_JOB, answer=api.JobReply,
        text="One job in full by id or unique name, or an array (12) or members of it (12_3, 12_[4-6])",
    ),
    Route(
        name="why", method="GET", path=_JOB + "/why", text="Why it is where it is, and what would start it",
        answer=api.WhyView, query=(Param("changes", "0: look for no changes, which takes longer", "integer"),),
    ),
    Route(name="eta", method="GET", path=_JOB + "/eta", text="When it starts and ends", answer=api.EtaView),
    Route(
        name="notifying", method="GET", path="/v1/notifications", text="Jobs that want notifications",
        answer=NotifyingReply, query=(Param("after", "ended ones with ids above it; left out: the latest", "integer"),),
    ),
    Route(
        name="notify", method="GET", path=_JOB + "/notify", text="Whom it notifies of what; over the unix socket only",
        answer=NotifyReply,
    ),
    Route(
        name="suspend", method="POST", path=_JOB + "/suspend", text="Suspend it; it releases its devices",
        body=api.SuspendRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="resume", method="POST", path=_JOB + "/resume", text="End a suspension by the user",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="migrate", method="POST", path=_JOB + "/migrate", text="Bring it to other nodes, without losing a step",
        body=api.MoveRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="scale", method="POST", path=_JOB + "/scale", text="Have it run on so many devices",
        body=api.ScaleRequest, answer=api.ActionReply,
    ),
    Route(
        name="checkpoint", method="POST", path=_JOB + "/checkpoint", text="Take an image of it now; it runs on",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="cancel", method="POST", path=_JOB + "/cancel", text="End it, whatever it is doing",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="array_limit", method="POST", path=_JOB + "/array-limit", text="Change how many members of an array run at once",
        body=api.ArrayLimitRequest, answer=api.ActionReply,
    ),
    Route(
        name="update", method="POST", path=_JOB + "/update", text="Change what it asks for, waiting or running",
        body=UpdateRequest, answer=api.ActionReply,
    ),
    Route(
        name="hold", method="POST", path=_JOB + "/hold", text="Keep it from starting while it waits",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="release", method="POST", path=_JOB + "/release", text="End a hold, or a suspension by the user",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="requeue", method="POST", path=_JOB + "/requeue", text="End its attempt and queue it again",
        body=RequeueRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="select", method="GET", path="/v1/selection", text="Live jobs that match filters, for an action on many",
        answer=Selection,
        query=(
            Param("action", "what is to be done: cancel, hold, release or requeue"),
            Param("user", "of these users, separated by commas"), Param("team", "of these teams"),
            Param("name", "of these names, or members of arrays of these names"),
            Param("state", "state names, separated by commas"), Param("all", "1: without any filter", "integer"),
        ),
    ),
    Route(
        name="bulk", method="POST", path="/v1/bulk", text="Cancel, hold, release or requeue many jobs",
        body=BulkRequest, answer=BulkReply,
    ),
    Route(
        name="logs", method="GET", path=_JOB + "/logs", text="Output of one rank, or of all, over all attempts",
        media="application/octet-stream",
        query=(
            Param("rank", "which rank", "integer"), Param("follow", "1: until the job has ended", "integer"),
            Param("tail", "start so many lines before the end", "integer"),
            Param("attempt", "of this attempt only", "integer"),
            Param("all_ranks", "1: every rank's, as lines that begin with [rank N]", "integer"),
        ),
    ),
    Route(
        name="wait", method="GET", path=_JOB + "/wait", text="Answer when the job has ended", answer=api.WaitReply,
        query=(Param("timeout", "seconds to wait, 300 at most", "number"),),
    ),
    Route(name="nodes", method="GET", path="/v1/nodes", text="Nodes and what is on them", answer=api.NodeList),
    Route(
        name="drain", method="POST", path="/v1/nodes/{name}/drain", text="Keep new work off a node",
        body=api.DrainRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="undrain", method="POST", path="/v1/nodes/{name}/undrain", text="Let new work onto a node",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(
        name="words", method="GET", path="/v1/words", text="What begins with a prefix, for the completion of shells",
        answer=WordList, query=(Param("of", ", ".join(WORD_KINDS)), Param("prefix", "what the words begin with")),
    ),
    Route(
        name="usage", method="GET", path="/v1/usage", text="GPU-seconds held and delivered", answer=api.UsageReply,
        query=(Param("by", "team, user or tier"),),
    ),
    Route(
        name="rates", method="GET", path="/v1/rates", text="How fast workloads run, declared and learnt",
        answer=api.RatesReply, query=(Param("workload", "of this workload"),),
    ),
    Route(
        name="forget_rates", method="POST", path="/v1/rates/forget", text="Forget what jobs have shown of a workload",
        body=api.ForgetRatesRequest, answer=api.ActionReply,
    ),
    Route(name="services", method="GET", path="/v1/services", text="Services and their replicas", answer=ServiceList),
    Route(
        name="deploy", method="POST", path="/v1/services", text="Deploy a service, or another version of one",
        body=DeployRequest, answer=api.ActionReply,
    ),
    Route(
        name="scale_service", method="POST", path="/v1/services/{name}/scale", text="Have so many replicas of a service",
        body=ScaleServiceRequest, answer=api.ActionReply,
    ),
    Route(
        name="replica_ready", method="POST", path="/v1/services/{name}/ready", text="Report that a replica answers requests",
        body=ReplicaReadyRequest, answer=api.ActionReply,
    ),
    Route(
        name="take_service_image", method="POST", path="/v1/services/{name}/image",
        text="Have further replicas start from a warmed-up one", body=ServiceImageRequest, answer=api.ActionReply,
    ),
    Route(
        name="delete_service", method="POST", path="/v1/services/{name}/delete", text="End a service and its replicas",
        body=api.ActionRequest, body_required=False, answer=api.ActionReply,
    ),
    Route(name="top", method="GET", path="/v1/top", text="The pool at a glance", answer=api.TopView),
    Route(
        name="events", method="GET", path="/v1/events", media="text/event-stream",
        text="State changes as server-sent events; Last-Event-ID resumes",
    ),
    Route(
        name="journal", method="GET", path="/v1/journal", media="application/x-ndjson",
        text="The journal: a header line, then one record per turn; without the values of jobs' environments",
        query=(
            Param("environment", "1: with the values of jobs' environments, secrets among them", "integer"),
            Param("redact", "1: with pseudonyms for every word of users", "integer"),
        ),
    ),
    Route(
        name="shutdown", method="POST", path="/v1/shutdown", text="Stop controller and agent; jobs run on",
        answer=api.Done, query=(Param("agent", "0: leave the agent running", "integer"),),
    ),
    Route(name="openapi", method="GET", path="/openapi.json", text="This document"),
    Route(name="metrics", method="GET", path="/metrics", text="Prometheus metrics", media="text/plain"),
    Route(name="healthz", method="GET", path="/healthz", text="Whether it serves", answer=api.Done),
)  # fmt: skip
ROUTES = tuple(
    msgspec.structs.replace(route, query=(*route.query, _SINGLE)) if route.path.startswith(_JOB) else route
    for route in _ROUTES
)
_REF = "#/components/schemas/{name}"


def document(version: str) -> dict[str, Any]:
    """The OpenAPI 3.1 document of ``ROUTES``."""
    kinds = list(dict.fromkeys(kind for route in ROUTES for kind in (route.body, route.answer) if kind is not None))
    schemas, components = msgspec.json.schema_components([*kinds, api.ErrorBody, api.JobEvent], ref_template=_REF)
    shown = dict(zip(kinds, schemas, strict=False))
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, shown)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Tidewright",
            "version": version,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": bound(components),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "over TCP only"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(route: Route, shown: dict[type[Struct], dict[str, Any]]) -> dict[str, Any]:
    schema = shown[route.answer] if route.answer else {"type": "object"} if route.media == "application/json" else {}
    error = {
        "description": "Refused",
        "content": {"application/json": {"schema": {"$ref": _REF.format(name="ErrorBody")}}},
    }
    found: dict[str, Any] = {
        "operationId": route.name,
        "summary": route.text,
        "parameters": _parameters(route),
        "responses": {"200": {"description": "Done", "content": {route.media: {"schema": schema}}}, "default": error},
    }
    if route.body is not None:
        content = {"application/json": {"schema": shown[route.body]}}
        found["requestBody"] = {"required": route.body_required, "content": content}
    return found


def _parameters(route: Route) -> list[dict[str, Any]]:
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    asked = [
        {
            "name": param.name,
            "in": "query",
            "description": param.text,
            "schema": {"type": param.kind, **QUERIES.get(param.name, {})},
        }
        for param in route.query
    ]
    return [*named, *asked]
