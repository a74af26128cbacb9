"""AdmissionReview v1 (``admission.k8s.io/v1``): what the API server sends to a webhook, and the two answers to it. Pure.

Source: Kubernetes, "Dynamic Admission Control"; RFC 6902 and RFC 6901 for patches and their paths.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ...base.errors import UsageError

VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Operation = dict[str, Any]
"""Of a JSON patch."""


class GroupVersionResource(msgspec.Struct):
    """What is being written; ``group`` empty: the core."""

    group: str = ""
    version: str = ""
    resource: str = ""


class AdmissionRequest(msgspec.Struct, rename="camel"):
    """``object`` is the whole thing as it would be stored."""

    uid: str
    resource: GroupVersionResource
    operation: str
    sub_resource: str = ""
    namespace: str = ""
    dry_run: bool | None = None
    object: Any = None

    def makes_pod(self) -> bool:
        """Whether a pod is being created."""
        found = self.resource
        pods = (found.group, found.version, found.resource, self.sub_resource) == ("", "v1", "pods", "")
        return pods and self.operation == "CREATE"


class _Review(msgspec.Struct, rename="camel"):
    api_version: str
    kind: str
    request: AdmissionRequest


class _Claimed(msgspec.Struct):
    name: str


class _Resources(msgspec.Struct):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None
    claims: list[_Claimed] | None = None


class _Container(msgspec.Struct):
    name: str
    resources: _Resources | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container]
    init_containers: list[_Container] | None = None
    resource_claims: list[_Claimed] | None = None
    node_name: str | None = None
    priority: int | None = None


class _Meta(msgspec.Struct):
    name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class _Pod(msgspec.Struct):
    metadata: _Meta
    spec: _Spec


def read(body: bytes) -> AdmissionRequest:
    """A review's request. Raises UsageError for everything that the API server would not send: with a pod, what is read
    of it afterwards has the right types, and the namespace is one."""
    try:
        found = msgspec.json.decode(body, type=_Review)
        if (found.api_version, found.kind) != (VERSION, KIND):
            raise UsageError(f"the body is {found.api_version} {found.kind}", f"send {VERSION} {KIND}")
        if found.request.makes_pod():
            pod = msgspec.convert(found.request.object, _Pod)
            _check_namespace(found.request.namespace, pod.metadata.namespace)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"the body is no {KIND}: {error}", "") from error
    return found.request


def _check_namespace(asked: str, own: str | None) -> None:
    """It becomes a part of a path that is asked for in our own name."""
    if not _NAMESPACE.fullmatch(asked):
        raise UsageError(f"namespace {asked!r} cannot be one", "")
    if own not in (None, "", asked):
        raise UsageError(f"the request is of namespace {asked}, its pod of {own!r}", "")


def allowed(uid: str, patch: Sequence[Operation] = (), warnings: Sequence[str] = ()) -> dict[str, Any]:
    """The answer that lets it pass, changed by ``patch``. ``warnings`` are shown to the client that created the object."""
    answer: dict[str, Any] = {"uid": uid, "allowed": True}
    if patch:
        answer |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    if warnings:
        answer["warnings"] = list(warnings)
    return {"apiVersion": VERSION, "kind": KIND, "response": answer}


def denied(uid: str, why: str) -> dict[str, Any]:
    """The answer that refuses it."""
    status = {"code": 403, "reason": "Forbidden", "message": why}
    return {"apiVersion": VERSION, "kind": KIND, "response": {"uid": uid, "allowed": False, "status": status}}


def pointer(*parts: str | int) -> str:
    """A path within JSON (RFC 6901): ``~`` and ``/`` of a name are written ``~0`` and ``~1``."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def appended(there: object, path: str, item: Any) -> Operation:
    """Put ``item`` at the end of the list at ``path``, which is now ``there``: a list or nothing."""
    if isinstance(there, list):
        return {"op": "add", "path": f"{path}/-", "value": item}
    return {"op": "add", "path": path, "value": [item]}
