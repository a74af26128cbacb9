"""Whose container it is that the kubelet allocates for. Pure.

The kubelet names only device ids. Exactly, by its own checkpoint: once it has allocated, the entry with these ids names pod
and container. By guess, before that: it allocates pod after pod, for each init container and then each container that asks,
in their order (recorded from 1.36), so the next container of the pod that waits longest and has this size is meant.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ...base.errors import UsageError, WorldError
from ..objects import names
from ..objects.metadata import ENDED, Json, annotations_of, phase, title
from ..objects.pod_request import ContainerRequest, GpuAssignment, read_gpu_assignment, read_pod_request
from ..objects.quantity import whole
from ..objects.schema import Pod, validated

Key = tuple[str, str]
"""(pod uid, container name)."""


@dataclass(frozen=True, slots=True)
class CheckpointEntry:
    """What the kubelet allocated to one container."""

    uid: str
    container: str
    ids: frozenset[str]
    answer: bytes = b""
    """A ContainerAllocateResponse: the answer that the kubelet got for it and passes to the runtime."""


@dataclass(frozen=True, slots=True)
class ContainerAllocation:
    """One container of a pod whose GPUs were chosen. ``units``: its own by GPU, where they are not what the pod's
    annotations say."""

    pod: Json
    assignment: GpuAssignment
    part: ContainerRequest
    units: Mapping[int, int] | None = None


def entries(text: str) -> tuple[CheckpointEntry, ...]:
    """Those of ``kubelet_internal_checkpoint`` for our resource. Raises WorldError when it cannot be read.

    Source: kubernetes pkg/kubelet/cm/devicemanager/checkpoint (DeviceIDs by NUMA node since 1.20, a plain list before).
    """
    return tuple(entry for resource, entry in _entries(text) if resource == names.MEM)


def whole_gpus(text: str) -> frozenset[tuple[str, str]]:
    """Pod uid and UUID of the GPUs and instances that other device plugins gave away, by the kubelet's checkpoint: NVIDIA's
    calls its devices by them, with ``::N`` behind for a share. Raises WorldError when it cannot be read."""
    others = (entry for resource, entry in _entries(text) if resource != names.MEM)
    return frozenset((entry.uid, one.partition("::")[0]) for entry in others for one in entry.ids)


def _entries(text: str) -> list[tuple[str, CheckpointEntry]]:
    """With the resource that each is of."""
    try:
        found = json.loads(text)["Data"]["PodDeviceEntries"] or ()
        return [
            (
                str(one["ResourceName"]),
                CheckpointEntry(
                    str(one["PodUID"]),
                    str(one["ContainerName"]),
                    _ids(one["DeviceIDs"]),
                    base64.b64decode(one.get("AllocResp") or ""),
                ),
            )
            for one in found
        ]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WorldError(f"the kubelet's checkpoint cannot be read: {type(error).__name__} {error}") from error


def _ids(value: Any) -> frozenset[str]:
    lists = value.values() if isinstance(value, Mapping) else (value,)
    return frozenset(str(one) for some in lists for one in some or ())


def owner(found: Iterable[CheckpointEntry], ids: Iterable[str], gone: Collection[str] = ()) -> CheckpointEntry | None:
    """The entry with exactly these ids; ``gone``: uids of pods that ended. Raises WorldError when two pods have them.

    An init container and an app container of one pod may have equal sets: the kubelet uses the ids again. The app
    container's entry is taken; pod, size and GPU are the same.
    """
    wanted = frozenset(ids)
    same = [entry for entry in found if entry.ids == wanted and entry.uid not in gone]
    if len({entry.uid for entry in same}) > 1:
        raise WorldError("the kubelet's checkpoint gives the same devices to two pods")
    return same[-1] if same else None


def claim_of(pod: Json, container: str) -> ContainerAllocation:
    """What the extender chose for a container. Raises UsageError, in words for the pod's event."""
    held = read_gpu_assignment(validated(pod, Pod))
    if held is None:
        raise UsageError(
            f"no GPU was chosen for pod {title(pod)}: the scheduler did not ask the extender, or the pod was bound past it",
            "set the extender up in the scheduler's configuration and recreate the pod",
        )
    part = next((one for one in read_pod_request(pod).parts if one.name == container), None)
    if part is None:
        raise UsageError(f"container {container} of pod {title(pod)} asks for no {names.MEM}", "recreate the pod")
    return ContainerAllocation(pod, held, part)


def waiting(pods: Iterable[Json], done: Collection[Key]) -> list[ContainerAllocation]:
    """The next container of each pod that was assumed and not handed over, in the order in which the kubelet comes to
    them: pods it has begun first, then by the time of the bind. Pods on their way out are left out, and so are ones that
    cannot be understood."""
    found = []
    for pod in pods:
        try:
            claim = _next(pod, done)
            if claim is not None:
                begun = any(uid == claim.assignment.uid for uid, _ in done)
                found.append((not begun, assumed_ns(pod), title(pod), claim))
        except UsageError:
            continue
    return [claim for *_, claim in sorted(found, key=lambda one: one[:3])]


def _next(pod: Json, done: Collection[Key]) -> ContainerAllocation | None:
    meta = pod.get("metadata") or {}
    if meta.get("deletionTimestamp") or phase(pod) in ENDED or annotations_of(pod).get(names.ASSIGNED) == "true":
        return None
    held = read_gpu_assignment(validated(pod, Pod))
    if held is None:
        return None
    parts = [part for part in read_pod_request(pod).parts if part.units]
    left = [part for part in parts if (held.uid, part.name) not in done]
    return ContainerAllocation(pod, held, left[0]) if left else None


def assumed_ns(pod: Json) -> int:
    """When the pod was bound, by its annotation; 0 without one. Nanoseconds do not fit a double, so they are read as digits,
    not as a quantity."""
    text = str(annotations_of(pod).get(names.ASSUME_TIME, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) < 24 else 0


def guess(pods: Iterable[Json], size: int, done: Collection[Key]) -> ContainerAllocation | None:
    """Whose request of ``size`` units this probably is."""
    return next((claim for claim in waiting(pods, done) if claim.part.units == size), None)


def only(pods: Iterable[Json], size: int, done: Collection[Key]) -> ContainerAllocation | None:
    """As ``guess``, but None unless there is just one pod it can be."""
    found = [claim for claim in waiting(pods, done) if claim.part.units == size]
    return found[0] if len(found) == 1 else None


def gpus_of(claim: ContainerAllocation) -> dict[int, int]:
    """The container's units by GPU. One of several containers on several GPUs has only its own, if it was said which."""
    if claim.units is not None:
        return dict(claim.units)
    every = dict(claim.assignment.units)
    text = annotations_of(claim.pod).get(names.ALLOCATION)
    if text and not claim.part.init:
        own = (json.loads(text) or {}).get(str(claim.part.index))
        if isinstance(own, Mapping) and own:
            return {whole(gpu, "GPU index"): whole(units, "units") for gpu, units in own.items()}
    if len(every) == 1:
        return dict.fromkeys(every, claim.part.units)
    return every
