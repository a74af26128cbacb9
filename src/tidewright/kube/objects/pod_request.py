"""What a pod asks of GPUs and what it holds, read from its JSON. Pure: no API, no clock."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ...base.errors import UsageError
from . import names
from .metadata import ENDED, Json, annotations_of, title
from .quantity import LIMIT, millicores, whole

POLICIES = ("best-fit", "spread", "fgd")
MOST_GPUS = 128
MOST_UNITS = 2**30
"""Of one GPU: a PiB where a unit is a MiB. So what all pods of a cluster hold together still fits into 64 bits."""


@dataclass(frozen=True, slots=True)
class ContainerRequest:
    """One container that asks for GPU memory; ``index`` counts within ``spec.containers`` or ``spec.initContainers``."""

    name: str
    index: int
    units: int
    init: bool = False
    sidecar: bool = False


@dataclass(frozen=True, slots=True)
class PodRequest:
    """``units`` of memory on each of ``count`` GPUs of one node. ``policy`` empty: the cluster's own."""

    uid: str
    namespace: str
    name: str
    units: int
    count: int = 1
    parts: tuple[ContainerRequest, ...] = ()
    policy: str = ""
    priority: int = 0
    cpu: int = 0
    """Millicores that it requests."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Units per GPU, GPUs, millicores: all that matters for where a pod can go."""
        return self.units, self.count, self.cpu

    @property
    def total(self) -> int:
        """Units over all its GPUs: what the kubelet counts."""
        return self.units * self.count


@dataclass(frozen=True, slots=True)
class GpuAssignment:
    """GPUs of ``node`` taken by a pod: units by GPU index. ``bound``: the API server says that the pod runs there."""

    uid: str
    namespace: str
    name: str
    node: str
    units: Mapping[int, int]
    bound: bool
    assigned: bool = False
    priority: int = 0


def requests_memory(pod: Json) -> bool:
    """Whether any container limits gpu-mem: only those pods are ours."""
    spec = pod.get("spec") or {}
    return any(
        names.MEM in _limits(found) for kind in ("containers", "initContainers") for found in spec.get(kind) or ()
    )


def read_pod_request(pod: Json) -> PodRequest:
    """What ``pod`` asks. Raises UsageError, in words meant for the pod's event, when it makes no sense.

    The sum is that of the scheduler (KEP-753): containers and sidecars run together; each other init container runs
    together with the sidecars that started before it; the larger of the two counts.
    """
    meta = pod.get("metadata") or {}
    parts = tuple(_parts(pod, _memory))
    total = at_worst(parts)
    if total <= 0:
        raise UsageError(f"pod {title(pod)} asks for no {names.MEM}", f"set limits: {{{names.MEM}: UNITS}}")
    count = _gpus(pod)
    if total % count:
        remedy = f"ask for {total - total % count + count} or another multiple of {count}"
        raise UsageError(f"{total} units of {names.MEM} do not divide into {count} GPUs", remedy)
    if total // count > MOST_UNITS:
        raise UsageError(f"{total // count} units of {names.MEM} are more than any GPU has", "ask for less")
    policy = str(annotations_of(pod).get(names.POLICY, ""))
    if policy and policy not in POLICIES:
        raise UsageError(f"annotation {names.POLICY} is {policy!r}", f"choose one of {', '.join(POLICIES)}")
    return PodRequest(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        units=total // count,
        count=count,
        parts=parts,
        policy=policy,
        priority=int((pod.get("spec") or {}).get("priority") or 0),
        cpu=cpu_of(pod),
    )


def beside(pod: Json) -> PodRequest:
    """A pod that asks for no GPU memory. Raises UsageError when it makes no sense."""
    meta = pod.get("metadata") or {}
    policy = str(annotations_of(pod).get(names.POLICY, ""))
    return PodRequest(
        str(meta.get("uid", "")), str(meta.get("namespace", "default")), str(meta.get("name", "")), 0, 0,
        policy=policy if policy in POLICIES else "", cpu=cpu_of(pod),
    )  # fmt: skip


def cpu_of(pod: Json) -> int:
    """Millicores that kube-scheduler counts for it. Raises UsageError, also when they are more than can be reckoned with: each
    container is limited, but a pod may have any number of them."""
    found = at_worst(tuple(_parts(pod, _cpu)))
    if found >= LIMIT:
        raise UsageError(f"pod {title(pod)} asks for more CPU than any node has", "ask for less")
    return found


def _cpu(container: Json, name: str) -> int | None:
    found = {**_limits(container), **((container.get("resources") or {}).get("requests") or {})}.get("cpu")
    return None if found is None else millicores(found, f"cpu of container {name}")


def _memory(container: Json, name: str) -> int | None:
    found = _limits(container).get(names.MEM)
    return None if found is None else whole(found, f"{names.MEM} of container {name}")


def read_gpu_assignment(pod: Json) -> GpuAssignment | None:
    """The GPUs a pod holds; None when it holds none: never annotated, nowhere, or ended. Its annotations say which GPUs. How
    many units it holds its limits say, which its owner cannot change, unlike annotations (``fitted``).

    A pod that is being deleted holds its GPUs until its containers are gone, which the phase or its disappearance says.
    Raises UsageError when the pod or its annotations cannot be understood, and nothing else whatever they are: anybody
    may write them.
    """
    try:
        return _held(pod)
    except (ArithmeticError, AttributeError, RecursionError, TypeError, ValueError) as error:
        raise UsageError(f"this is no pod: {error}", "send the object as the API server has it") from error


def _held(pod: Json) -> GpuAssignment | None:
    notes = annotations_of(pod)
    meta, spec, status = (pod.get(name) or {} for name in ("metadata", "spec", "status"))
    if status.get("phase") in ENDED or (names.IDX not in notes and names.ALLOCATION not in notes):
        return None
    node = spec.get("nodeName") or notes.get(names.NODE) or ""
    units = fitted(_annotated(notes, title(pod)), asked_units(pod))
    _possible(units, title(pod))
    if not node or not units:
        return None
    return GpuAssignment(
        uid=str(meta.get("uid", "")),
        namespace=str(meta.get("namespace", "default")),
        name=str(meta.get("name", "")),
        node=str(node),
        units=units,
        bound=bool(spec.get("nodeName")),
        assigned=notes.get(names.ASSIGNED) == "true",
        priority=int(spec.get("priority") or 0),
    )


def fitted(marked: Mapping[int, int], total: int | None, most: int = 2) -> dict[int, int]:
    """Units by GPU of a pod that is marked so and asks for ``total`` units: on the marked GPUs, never fewer than it asks and
    never more than ``most`` times as many. Twice, because a pod whose annotations are being corrected shows the GPU that it
    had and the one that it has. ``total`` None: the pod has no limit, and the marks alone count."""
    if total is None:
        return {gpu: units for gpu, units in marked.items() if units}
    if total <= sum(marked.values()) <= (most if len(marked) > 1 else 1) * total and max(marked.values()) <= total:
        return {gpu: units for gpu, units in marked.items() if units}
    share, more = divmod(total, len(marked) or 1)
    found = {gpu: share + (at < more) for at, gpu in enumerate(sorted(marked))}
    return {gpu: units for gpu, units in found.items() if units}


def annotated_units(pod: Json) -> dict[int, int]:
    """Units by GPU as the annotations say, whatever the pod asks for. Raises UsageError."""
    return _annotated(annotations_of(pod), title(pod))


def check_marks(pod: Json) -> None:
    """Raises UsageError when the annotations give a pod other amounts than its limits ask for, or on more GPUs.

    gpushare counts no init containers, so the sum without them is also right. Several containers of a pod that asks for one
    GPU may each have one of their own."""
    ask, marked = read_pod_request(pod), annotated_units(pod)
    main = [part for part in ask.parts if not part.init]
    right = sum(marked.values()) in {ask.total, sum(part.units for part in main)}
    if ask.count > 1:
        fits = right and len(marked) == ask.count and len(set(marked.values())) == 1
    else:
        fits = right and len(marked) <= max(1, len(main))
    if not fits:
        shown = ", ".join(f"{units} on GPU {gpu}" for gpu, units in sorted(marked.items())) or "none"
        on = "GPU" if ask.count == 1 else "GPUs"
        raise UsageError(
            f"the annotations of pod {title(pod)} give it other units of {names.MEM} ({shown}) than its limits ask for "
            f"({ask.total} on {ask.count} {on})",
            "recreate the pod, and leave its GPU annotations to the extender",
        )


def marks(ask: PodRequest, node: str, gpus: Mapping[int, int], card_units: int, now_ns: int) -> dict[str, str | None]:
    """The annotations that give ``gpus`` (units by index) of ``node`` to a pod, as gpushare and its tools read them.

    All of them are ours: one that is not needed is None, so that none which the pod brought along is left.
    """
    first = min(gpus)
    several = json.dumps(_by_container(ask, gpus), separators=(",", ":")) if len(gpus) > 1 else None
    return {
        names.IDX: str(first),
        names.DEV: str(card_units),
        names.POD: str(ask.total),
        names.ASSIGNED: "false",
        names.ASSUME_TIME: str(now_ns),
        names.NODE: node,
        names.ALLOCATION: several,
    }


def _by_container(ask: PodRequest, gpus: Mapping[int, int]) -> dict[str, dict[str, int]]:
    """Which container's units lie on which GPU: one GPU after the other is filled, so each holds what was chosen for it.

    What only an init container needs is written to the last container, or the GPUs' sums would be too small.
    """
    left = {gpu: gpus[gpu] for gpu in sorted(gpus)}
    main = [part for part in ask.parts if not part.init] or [ContainerRequest("", 0, 0)]
    found: dict[str, dict[str, int]] = {}
    for part in main:
        wanted = part.units if part is not main[-1] else sum(left.values())
        shares = found.setdefault(str(part.index), {})
        for gpu in left:
            if share := min(wanted, left[gpu]):
                shares[str(gpu)] = share
                left[gpu] -= share
                wanted -= share
    return found


def _annotated(notes: Json, who: str) -> dict[int, int]:
    """As they stand there; 0 units where there is a GPU alone."""
    if not (text := notes.get(names.ALLOCATION)):
        index = notes.get(names.IDX, "")
        units = whole(notes.get(names.POD, "0"), f"annotation {names.POD} of {who}")
        gpu = -1 if index == "-1" else whole(index, f"annotation {names.IDX} of {who}")
        return _possible({gpu: units}, who) if gpu >= 0 else {}
    found: dict[int, int] = {}
    try:
        for gpus in json.loads(text).values():
            for gpu, units in gpus.items():
                at = whole(gpu, "GPU index")
                found[at] = found.get(at, 0) + whole(units, "units")
    except (ValueError, AttributeError, RecursionError) as error:
        raise UsageError(f"annotation {names.ALLOCATION} of {who} cannot be read: {error}") from error
    return _possible(found, who)


def asked_units(pod: Json) -> int | None:
    """Units over all its GPUs by the limits of its containers; None when none has such a limit."""
    return at_worst(tuple(_parts(pod, _memory))) if requests_memory(pod) else None


def _possible(units: dict[int, int], who: str) -> dict[int, int]:
    if (most := max(units.values(), default=0)) > MOST_UNITS:
        raise UsageError(f"by its annotations {who} holds {most} units of one GPU, more than any has", "delete the pod")
    return units


def _parts(pod: Json, amount: Callable[[Json, str], int | None]) -> Iterator[ContainerRequest]:
    """The containers that ask for some; ``amount``: of a container with that name."""
    spec = pod.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for index, found in enumerate(spec.get(kind) or ()):
            name = str(found.get("name", index))
            if (units := amount(found, name)) is not None:
                init = kind == "initContainers"
                yield ContainerRequest(name, index, units, init, init and found.get("restartPolicy") == "Always")


def at_worst(parts: Sequence[ContainerRequest], given: Sequence[int] | None = None) -> int:
    """Units needed at the worst moment of the pod's life; ``parts`` with init containers first, in their order; ``given``: units
    of each part, where they are not those that it asks for."""
    sidecars = worst = main = 0
    for part, units in zip(parts, [part.units for part in parts] if given is None else given, strict=True):
        if part.sidecar:
            sidecars += units
            worst = max(worst, sidecars)
        elif part.init:
            worst = max(worst, sidecars + units)
        else:
            main += units
    return max(worst, sidecars + main)


def _gpus(pod: Json) -> int:
    """Over how many GPUs: a limit on any container, else the label or annotation; 1 without."""
    spec, meta = pod.get("spec") or {}, pod.get("metadata") or {}
    found = [_limits(one)[names.COUNT] for one in spec.get("containers") or () if names.COUNT in _limits(one)]
    found += [place[names.COUNT] for place in (meta.get("labels") or {}, annotations_of(pod)) if names.COUNT in place]
    counts = [whole(value, names.COUNT) for value in found]
    count = max(counts, default=1) or 1
    if count > MOST_GPUS:
        raise UsageError(f"{names.COUNT} is {count}: no node has so many GPUs", f"ask for {MOST_GPUS} at most")
    return count


def _limits(container: Json) -> Json:
    return (container.get("resources") or {}).get("limits") or {}
