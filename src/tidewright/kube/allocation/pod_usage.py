"""What the containers of a node were really given, and what their pods' annotations promise beside it. Pure.

The kubelet's checkpoint keeps, with the ids of each container, the whole answer that Allocate gave, and it is that answer
which the runtime gets. So it says which GPU a container has, whichever program answered. It is written before the kubelet
allocates again: an answer that is not in it was lost, or its pod failed.
Source: kubernetes pkg/kubelet/cm/devicemanager, ``allocateContainerResources``, ``writeCheckpoint``, ``PodDevicesEntry``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from ...base.errors import TideError, UsageError
from ..objects.metadata import ENDED, Json, phase, version_of
from ..objects.pod_request import (
    ContainerRequest,
    GpuAssignment,
    PodRequest,
    annotated_units,
    at_worst,
    read_gpu_assignment,
    read_pod_request,
)
from ..objects.schema import Pod, validated
from .container_lookup import ContainerAllocation, assumed_ns, gpus_of

Units = Mapping[int, int]
"""Of memory, by GPU index."""


@dataclass(frozen=True, slots=True)
class Allocated:
    """What one container was given. ``units`` is empty where the answer does not say, as with late binding."""

    uid: str
    container: str
    ids: frozenset[str]
    units: Units


def written(units: Units) -> str:
    """For the annotation of an answer."""
    return ",".join(f"{gpu}={count}" for gpu, count in sorted(units.items()))


@dataclass(frozen=True, slots=True)
class PodUse:
    """A pod of this node that has not ended. ``pod``, ``ask``, ``held``: as recorded at its bind, ``held`` None where that cannot
    be; ``has``: units by GPU of each container that was given some; ``order``: when it was bound, as a number that grows;
    ``shown``: units by GPU by the annotations as they are now, written by any client."""

    pod: Json
    ask: PodRequest
    held: GpuAssignment | None
    has: Mapping[str, Units] = field(default_factory=dict)
    ids: frozenset[str] = frozenset()
    order: int = 0
    shown: Units = field(default_factory=dict)

    @property
    def leaving(self) -> bool:
        """It is being deleted."""
        return bool((self.pod.get("metadata") or {}).get("deletionTimestamp"))

    def parts(self) -> list[ContainerRequest]:
        """Containers that get devices, in the kubelet's order."""
        return [part for part in self.ask.parts if part.units]

    def left(self) -> list[ContainerRequest]:
        """Those that have none yet."""
        return [part for part in self.parts() if part.name not in self.has]

    def complete(self) -> bool:
        """Every container was given its GPUs."""
        return not self.left()

    def marked(self) -> Units:
        """What it was bound to: units of the whole pod by GPU."""
        return {} if self.held is None else self.held.units

    def promised(self, part: ContainerRequest) -> Units:
        """To one container. Empty where nothing was."""
        return {} if self.held is None else gpus_of(ContainerAllocation(self.pod, self.held, part))

    def taken(self, more: tuple[str, Units] | None = None) -> dict[int, int]:
        """Units by GPU at the worst moment of what its containers were given; ``more``: one container more."""
        has = {**self.has, **({more[0]: more[1]} if more else {})}
        gpus = {gpu for units in has.values() for gpu in units}
        # Over how many GPUs a label says, which anybody may have written: it counts where it agrees with what was given.
        most = self.ask.units if len(gpus) == self.ask.count > 1 else self.ask.total
        return {gpu: self._worst(gpu, has, most) for gpu in sorted(gpus)}

    def _worst(self, gpu: int, has: Mapping[str, Units], most: int) -> int:
        """Init containers of a pod on several GPUs see all of these, so their sums may be more than the pod has."""
        given = [has.get(part.name, {}).get(gpu, 0) for part in self.ask.parts]
        return min(at_worst(self.ask.parts, given), most)


def uses(
    pods: Iterable[Json], found: Iterable[Allocated], order: Mapping[str, int], units: Units,
    recorded: Callable[[Json], Json] = lambda pod: pod,
) -> tuple[PodUse, ...]:  # fmt: skip
    """Pods that have not ended and can be understood, in the order in which they were bound. ``units`` of each GPU;
    ``recorded``: a pod as it was bound."""
    by_uid: dict[str, list[Allocated]] = {}
    for one in found:
        by_uid.setdefault(one.uid, []).append(one)
    listed = []
    for pod in pods:
        try:
            if phase(pod) not in ENDED:
                use = _use(recorded(pod), by_uid, order, units)
                listed.append(replace(use, shown=_shown(pod)))
        except UsageError:
            continue
    return tuple(sorted(listed, key=lambda use: (use.order, assumed_ns(use.pod), use.ask.namespace, use.ask.name)))


def _use(pod: Json, by_uid: Mapping[str, list[Allocated]], order: Mapping[str, int], units: Units) -> PodUse:
    """Where an answer does not say which GPUs, the annotations do."""
    ask = read_pod_request(validated(pod, Pod))
    mine = by_uid.get(ask.uid, [])
    ids = frozenset(one for each in mine for one in each.ids)
    plain = PodUse(pod, ask, _held(pod), ids=ids, order=order.get(ask.uid, version_of(pod)))
    parts = {part.name: part for part in ask.parts}
    has = {one.container: one.units for one in mine if one.container in parts}
    plain = _credible(replace(plain, has=has), units)
    return replace(plain, has={name: given or plain.promised(parts[name]) for name, given in has.items()})


def _credible(use: PodUse, units: Units) -> PodUse:
    """Annotations choose GPUs; how many units is what the containers ask for. What names a GPU that is not here, or other
    sums, was written by no extender: then nothing was chosen. Both GPUs of a correction under way may be named (``leaves``)."""
    marked = use.marked()
    if use.held is None or not all(0 < marked[gpu] <= units.get(gpu, 0) for gpu in marked):
        return replace(use, held=None)
    if len(marked) == 1:
        return replace(use, held=replace(use.held, units=dict.fromkeys(marked, use.ask.total)))
    exact = marked == _shown(use.pod) and (sum(marked.values()) == use.ask.total or leaves(use))
    return use if exact else replace(use, held=None)


def leaves(use: PodUse) -> Units:
    """A pod whose annotations are being corrected shows both the GPU that it really has and the one that is kept for another
    pod until that one's are corrected, too; this is the other one. Empty where it shows no such two."""
    marked, has = use.marked(), use.taken()
    rest = {gpu: units for gpu, units in marked.items() if gpu not in has}
    return rest if len(has) == 1 and sum(marked.values()) == 2 * sum(rest.values()) == 2 * use.ask.total else {}


def _shown(pod: Json) -> Units:
    """Also amounts that the pod did not ask for."""
    return {} if _held(pod) is None else annotated_units(pod)


def _held(pod: Json) -> GpuAssignment | None:
    try:
        return read_gpu_assignment(pod)
    except TideError:
        return None
