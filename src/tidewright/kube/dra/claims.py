"""What a ResourceClaim gives its pods of this node's GPUs, and what is kept of it for unpreparing and for a restart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...base.errors import UsageError, WorldError
from ..isolation.ladder import ALL_SMS, tenant_of
from ..node.atomic_files import remove_drafts, write_whole
from ..objects import names
from ..objects.metadata import ENDED, Json, annotations_of, phase
from ..objects.quantity import mib_of, whole
from .protocol import DRIVER, MEMORY, SM_PERCENT

PART = ".part-"
_UID = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_GATE = "let DRAConsumableCapacity be on in kube-apiserver and kube-scheduler, and recreate the claim"


@dataclass(frozen=True, slots=True)
class AllocatedDevice:
    """One device of a claim. ``share``: its shareID, empty for a device that is not shared; ``mib`` and ``percent``: what
    was taken of one that is, 0 else. 0 percent is no limit: no part of the multiprocessors is kept for it either."""

    request: str
    device: str
    share: str = ""
    mib: int = 0
    percent: int = 0


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim that was allocated on this node. ``pods``: uids of those that it is reserved for."""

    uid: str
    namespace: str
    name: str
    pods: tuple[str, ...]
    results: tuple[AllocatedDevice, ...]


def proper(uid: str) -> str:
    """``uid``, which becomes part of file names. Raises UsageError when it is none."""
    if not _UID.fullmatch(uid):
        raise UsageError(f"{uid!r} is no uid of a claim", "look at what calls this driver; the kubelet does not")
    return uid


def given_by(claim: Json, uid: str, pool: str) -> PreparedClaim:
    """What ``claim``, as the API server has it, gives of our devices in ``pool``. Raises UsageError for one that is another,
    is not allocated, or makes no sense."""
    meta, status = claim.get("metadata") or {}, claim.get("status") or {}
    where = f"claim {meta.get('namespace')}/{meta.get('name')}"
    if meta.get("uid") != uid:
        raise UsageError(f"{where} is another one now, with uid {meta.get('uid')}", "recreate the pod")
    if not status.get("allocation"):
        raise UsageError(f"{where} is not allocated", "let the scheduler place the pod; do not set nodeName")
    try:
        listed = status["allocation"]["devices"]["results"]
        results = tuple(_result(one, where, pool) for one in listed if one["driver"] == DRIVER)
        pods = tuple(one["uid"] for one in status.get("reservedFor") or () if one.get("resource") == "pods")
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{where} cannot be read: {error!r}", "look at its status.allocation") from error
    if not results:
        raise UsageError(f"{where} has no device of {DRIVER}", "look at its status.allocation")
    return PreparedClaim(uid, str(meta.get("namespace")), str(meta.get("name")), pods, results)


def _result(one: Json, where: str, pool: str) -> AllocatedDevice:
    device = str(one["device"])
    if one["pool"] != pool:
        raise UsageError(f"{where} has device {device} of pool {one['pool']}, not of {pool}", "recreate the pod")
    if one.get("adminAccess"):
        raise UsageError(f"{where} asks for adminAccess", "ask for a share instead: this driver has no other way in")
    share, taken = str(one.get("shareID") or ""), one.get("consumedCapacity") or {}
    if not share and not taken:
        return AllocatedDevice(str(one["request"]), device)
    if MEMORY not in taken:
        raise UsageError(f"{where} does not say in consumedCapacity how much {MEMORY} of {device} it has", _GATE)
    mib, percent = (
        mib_of(taken[MEMORY], f"{where}: {MEMORY}"),
        whole(taken.get(SM_PERCENT, 0), f"{where}: {SM_PERCENT}"),
    )
    if not mib or percent > ALL_SMS:
        raise UsageError(f"{where} has {mib} MiB and {percent} % of {device}", "ask for 256Mi or more and at most 100")
    return AllocatedDevice(str(one["request"]), device, share, mib, percent)


def uses(pod: Json, claim: PreparedClaim) -> bool:
    """Whether a pod runs with this claim, by its own words. A kubelet that has a claim prepared says nothing when another
    pod comes to share it."""
    meta, spec, status = pod.get("metadata") or {}, pod.get("spec") or {}, pod.get("status") or {}
    if meta.get("namespace") != claim.namespace or phase(pod) in ENDED:
        return False
    named = [*(status.get("resourceClaimStatuses") or ()), *(spec.get("resourceClaims") or ())]
    named.append(status.get("extendedResourceClaimStatus") or {})
    return claim.name in {one.get("resourceClaimName") for one in named}


def cooperates(pods: Iterable[Json], claim: PreparedClaim) -> frozenset[str]:
    """Frameworks that keep to a limit, as the claim's pod declares them. None for a claim that a user made by
    himself: another pod may come to share it, that says nothing of the kind."""
    for pod in pods:
        meta, status = pod.get("metadata") or {}, pod.get("status") or {}
        made = [*(status.get("resourceClaimStatuses") or ()), status.get("extendedResourceClaimStatus") or {}]
        named = claim.name in {one.get("resourceClaimName") for one in made}
        if named and meta.get("namespace") == claim.namespace and meta.get("uid") in claim.pods:
            return tenant_of(pod, "", ()).cooperates
    return frozenset()


def trim_pod(pod: Json) -> dict[str, Any] | None:
    """What is read of a pod. None for pods without claims."""
    spec, status, meta = pod.get("spec") or {}, pod.get("status") or {}, pod.get("metadata") or {}
    extended = status.get("extendedResourceClaimStatus")
    if not spec.get("resourceClaims") and not extended:
        return None
    claims = {"resourceClaimStatuses": status.get("resourceClaimStatuses"), "extendedResourceClaimStatus": extended}
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion") if key in meta}
    notes = {key: text for key, text in annotations_of(pod).items() if key == names.COOPERATES}
    return {
        "metadata": {**kept, "annotations": notes},
        "spec": {"nodeName": spec.get("nodeName"), "resourceClaims": spec.get("resourceClaims")},
        "status": {"phase": status.get("phase"), **claims},
    }


class ClaimRecords:
    """A file for each claim that is prepared or half prepared, in a folder that survives restarts of the node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self) -> dict[str, PreparedClaim]:
        """All, by uid. Such as cannot be read are passed over: the kubelet has them prepared anew. What a run that was killed
        left half written is removed."""
        with suppress(OSError):
            remove_drafts(self.folder, PART)
        return {given.uid: given for path in sorted(self.folder.glob("*.json")) for given in _read(path)}

    def put(self, given: PreparedClaim) -> None:
        """Whole or not at all. Raises WorldError."""
        try:
            # Unpreparing needs it, after the node lost power too.
            write_whole(self._path(given.uid), json.dumps(asdict(given)), PART, mode=0o750, lasting=True)
        except OSError as error:
            raise WorldError(f"what claim {given.uid} has cannot be written down: {error}") from error

    def drop(self, uid: str) -> None:
        """Raises WorldError."""
        try:
            self._path(uid).unlink(missing_ok=True)
        except OSError as error:
            raise WorldError(f"the record of claim {uid} cannot be removed: {error}") from error

    def _path(self, uid: str) -> Path:
        return self.folder / f"{uid}.json"


def _read(path: Path) -> Iterator[PreparedClaim]:
    try:
        found = json.loads(path.read_text())
        results = tuple(AllocatedDevice(**one) for one in found["results"])
        yield PreparedClaim(**{**found, "pods": tuple(found["pods"]), "results": results})
    except (OSError, ValueError, TypeError, KeyError):
        return
