"""Pods that ask for ``aliyun.com/gpu-mem``, turned into pods with a DRA claim. Pure: pod in; patch and template out.

A pod gets one claim for all its containers, because gpushare gives a pod one set of GPUs. Sources: the DRA API
(resource.k8s.io/v1), KEP-5075 (capacity requests, distinctAttribute), KEP-753 (what a pod's containers need together).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ...base.errors import UsageError
from ..allocation.units import UnitSize
from ..dra.protocol import DRIVER
from ..isolation.ladder import ALL_SMS, percent_of
from ..objects import names
from ..objects.metadata import Json, annotations_of, bound_to, labels_of, title
from ..objects.pod_request import PodRequest, read_pod_request, requests_memory
from ..objects.quantity import of_mib, whole
from .admission_review import Operation, appended, pointer

CLASS = DRIVER
"""The DeviceClass of our DRA driver is called like it."""
UNIQUE = "gpu.tidewright.io/uuid"
"""The attribute in which any two of the driver's devices differ."""
SWITCH = "tidewright.io/dra"
"""Label of a namespace whose pods are converted (``enabled``); label or annotation of a pod that is not (``off``)."""
CONVERTED = "tidewright.io/dra-converted"
"""On a converted pod: what it had asked for, as JSON."""
MADE_BY = {"app.kubernetes.io/managed-by": "tidewright-webhook"}
"""The label of our templates."""
CLAIM = "tidewright-gpu"
"""The claim's name within its pod."""
MOST_DEVICES = 32
"""Of one claim: ``AllocationResultsMaxSize`` and ``DeviceRequestsMaxSize`` of the API."""
MOST_MIB = 1 << 24
"""Of one GPU; 16 TiB."""
_LISTS = ("initContainers", "containers")


@dataclass(frozen=True, slots=True)
class ConvertedRequest:
    """``mib`` of memory on each of ``count`` GPUs, and at most ``percent`` of each one's multiprocessors."""

    mib: int
    count: int
    percent: int

    def __post_init__(self) -> None:
        if self.mib > MOST_MIB:
            raise UsageError(f"{self.mib} MiB are more than any GPU has", f"give {MOST_MIB} at most")
        if self.count > MOST_DEVICES:
            remedy = f"ask for {MOST_DEVICES} at most, or label the pod {SWITCH}: off"
            raise UsageError(f"{names.COUNT} is {self.count}: a claim has {MOST_DEVICES} devices at most", remedy)

    def capacity(self) -> dict[str, str]:
        """Quantities as the API server itself writes them, so that what it stored compares equal.

        All multiprocessors are the absence of a limit, which is the driver's default; and a claim on a MIG instance, which has
        no such capacity, must not mention it.
        """
        found = {"memory": of_mib(self.mib)}
        return found if self.percent == ALL_SMS else {**found, "smPercent": str(self.percent)}


@dataclass(frozen=True, slots=True)
class ConversionSettings:
    """How the cluster reads an ask. ``percent``: of multiprocessors, for pods whose annotation does not say."""

    split: UnitSize = field(default_factory=UnitSize)
    device_class: str = CLASS
    percent: int = ALL_SMS

    def wanted(self, pod: Json, ask: PodRequest) -> ConvertedRequest:
        """By a pod. Raises UsageError."""
        percent = percent_of(pod) if names.SM_PERCENT in annotations_of(pod) else self.percent
        return ConvertedRequest(ask.units * self.split.unit_mib, ask.count, percent)


@dataclass(frozen=True, slots=True)
class Conversion:
    """``patch`` refers to ``template``, which must be there before the pod is."""

    patch: tuple[Operation, ...]
    template: Mapping[str, Any]
    warnings: tuple[str, ...] = ()


def convert(pod: Json, namespace: str, terms: ConversionSettings) -> Conversion | None:
    """None: the pod stays as it is. Raises UsageError, in words for its creator, when its request is invalid.

    ``pod`` as ``admission.read`` has checked it.
    """
    if not requests_memory(pod) or left_alone(pod):
        return None
    ask = read_pod_request(pod)
    _check_requests(pod)
    want = terms.wanted(pod, ask)
    template = template_of(want, namespace, terms.device_class)
    patch = (
        *_without_units(pod),
        *_with_claim(pod, ask, template["metadata"]["name"]),
        _noted(pod, ask, want, template),
    )
    ignored = [name for name in (names.POLICY,) if name in annotations_of(pod)]
    return Conversion(patch, template, tuple(f"annotation {name} has no effect on a DRA claim" for name in ignored))


def left_alone(pod: Json) -> bool:
    """Converted before, placed already (no scheduler would allocate a claim), or taken out by its owner."""
    labels, notes = labels_of(pod), annotations_of(pod)
    return CONVERTED in notes or bool(bound_to(pod)) or "off" in (labels.get(SWITCH), notes.get(SWITCH))


def template_of(want: ConvertedRequest, namespace: str, device_class: str = CLASS) -> dict[str, Any]:
    """The ResourceClaimTemplate. Its name says what is in it, and ends in a digest of it: other content, other name.

    Several GPUs are several requests. One request with a count may take two shares of one device, and up to Kubernetes 1.36
    ``distinctAttribute`` does not compare all devices of one request.
    """
    exactly = {
        "deviceClassName": device_class, "allocationMode": "ExactCount", "count": 1,
        "capacity": {"requests": want.capacity()},
    }  # fmt: skip
    requests = [{"name": f"gpu-{index}", "exactly": exactly} for index in range(want.count)]
    devices: dict[str, Any] = {"requests": requests}
    if want.count > 1:
        devices["constraints"] = [{"distinctAttribute": UNIQUE}]
    spec = {"spec": {"devices": devices}}
    digest = hashlib.sha256(msgspec.json.encode(spec, order="sorted")).hexdigest()[:8]
    name = f"tidewright-gpu-{want.mib}mib-x{want.count}-sm{want.percent}-{digest}"
    return {
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(MADE_BY)}, "spec": spec,
    }  # fmt: skip


def same(found: Json, template: Json) -> bool:
    """Whether a template as the API server has it asks for what ours does. Labels do not matter, the spec never changes."""
    return bool(_bare(found.get("spec")) == _bare(template["spec"]))


def _bare(thing: Any) -> Any:
    """Without what is empty: the API server may write ``metadata: {creationTimestamp: null}``."""
    if isinstance(thing, dict):
        kept = {key: _bare(value) for key, value in thing.items()}
        return {key: value for key, value in kept.items() if value not in (None, {}, [])}
    return [_bare(one) for one in thing] if isinstance(thing, list) else thing


def _containers(pod: Json) -> Iterator[tuple[str, int, Json, Json]]:
    """(list, index, the container, its resources) of all containers."""
    for kind in _LISTS:
        for index, found in enumerate(pod["spec"].get(kind) or ()):
            yield kind, index, found, found.get("resources") or {}


def _check_requests(pod: Json) -> None:
    """The API server would refuse other requests than limits, and it will not see them any more."""
    for _, _, container, resources in _containers(pod):
        limit, request = ((resources.get(words) or {}).get(names.MEM) for words in ("limits", "requests"))
        if request is None:
            continue
        who = f"of container {container.get('name')}"
        if limit is None or whole(request, f"request {who}") != whole(limit, f"limit {who}"):
            raise UsageError(f"the request for {names.MEM} {who} is not its limit", "give the limit only")


def _without_units(pod: Json) -> Iterator[Operation]:
    for kind, index, _, resources in _containers(pod):
        for words in ("limits", "requests"):
            for name in (names.MEM, names.COUNT):
                if name in (resources.get(words) or {}):
                    yield {"op": "remove", "path": pointer("spec", kind, index, "resources", words, name)}


def _with_claim(pod: Json, ask: PodRequest, template: str) -> Iterator[Operation]:
    """Containers that asked for 0 units get no GPU, as from gpushare's plugin."""
    there = pod["spec"].get("resourceClaims")
    taken = {one["name"] for one in there or ()}
    claim = next(name for name in (CLAIM, *(f"{CLAIM}-{n}" for n in range(len(taken)))) if name not in taken)
    asked = {("initContainers" if part.init else "containers", part.index) for part in ask.parts if part.units}
    for kind, index, _, resources in _containers(pod):
        if (kind, index) in asked:
            path = pointer("spec", kind, index, "resources", "claims")
            yield appended(resources.get("claims"), path, {"name": claim})
    yield appended(there, pointer("spec", "resourceClaims"), {"name": claim, "resourceClaimTemplateName": template})


def _noted(pod: Json, ask: PodRequest, want: ConvertedRequest, template: Json) -> Operation:
    units = {part.name: part.units for part in ask.parts}
    said = {"units": units, "memoryMiB": want.mib, "gpus": want.count, "smPercent": want.percent}
    text = msgspec.json.encode({**said, "template": template["metadata"]["name"]}).decode()
    if pod["metadata"].get("annotations") is None:
        return {"op": "add", "path": pointer("metadata", "annotations"), "value": {CONVERTED: text}}
    return {"op": "add", "path": pointer("metadata", "annotations", CONVERTED), "value": text}


def named(pod: Json, namespace: str) -> str:
    """For messages. A pod of a controller has no name before it is admitted."""
    meta = pod["metadata"]
    name = meta.get("name") or f"{meta.get('generateName', '')}…"
    return title({"metadata": {"namespace": namespace, "name": name}})
