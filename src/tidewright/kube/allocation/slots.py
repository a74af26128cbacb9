"""Which GPUs a container gets that the kubelet names by its size alone. Pure.

The annotations of pods on this node are slots: so many units, on these GPUs. The checkpoint says which of them were given.
Containers of one size may have each other's slots, so whichever pod it really is, no slot is given twice; and whatever the
annotations say, no GPU gets more units than it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...base.errors import WorldError
from ..objects import names
from ..objects.metadata import Json, annotations_of, title
from ..objects.pod_request import ContainerRequest
from .container_lookup import ContainerAllocation
from .pod_usage import Allocated, PodUse, Units, leaves
from .units import occupied_units

MOST_NAMED = 5
"""Pods in a refusal, and of these each has the event."""
Slot = tuple[int, frozenset[tuple[int, int]]]
"""A container's size, and its units by GPU."""


class NoSlot(WorldError):
    """A request that no slot fits. ``pods``: those that it may have been for. ``final``: another look would not help."""

    def __init__(self, message: str, pods: Sequence[Json] = (), final: bool = False) -> None:
        super().__init__(message)
        self.pods, self.final = tuple(pods), final


@dataclass(frozen=True, slots=True)
class Capacity:
    """``units`` of each GPU; ``whole``: GPUs that go to one pod each (MIG instances)."""

    units: Units
    whole: frozenset[int] = frozenset()

    def weighed(self, units: Units) -> dict[int, int]:
        """What a pod's units on each GPU take away from others."""
        sizes = {gpu: self.units.get(gpu, 0) for gpu in self.whole}
        return {gpu: occupied_units(count, sizes.get(gpu, 0)) for gpu, count in units.items()}


@dataclass(frozen=True)
class Slots:
    """One moment. ``uses``: pods that have not ended, in the order of their binds. ``strays``: what containers have whose pods
    are not among them. ``passed``: uids of pods that the kubelet is through with, though containers of theirs have nothing.
    ``busy``: uids of pods that are over for the kubelet or the API server, and have processes all the same. ``sick``: GPUs that
    only pods get that were promised them."""

    capacity: Capacity
    uses: Sequence[PodUse]
    strays: Sequence[Allocated] = ()
    passed: Collection[str] = ()
    busy: Collection[str] = ()
    sick: Collection[int] = ()

    def choose(self, size: int, ids: Collection[str] = ()) -> ContainerAllocation:
        """For a request of ``size`` units. Raises NoSlot, in words for the events of its pods."""
        known = self._without_reused(frozenset(ids), size)
        claims = list(known._candidates(size, frozenset(ids)))
        for use, part in claims:
            if (units := known._own(use, part)) is not None:
                return _claim(use, part, units)
        for use, part in claims:
            if (units := known._other(use, part)) is not None:
                return _claim(use, part, units)
        raise known._refusal(size, claims)

    def _without_reused(self, ids: frozenset[str], size: int) -> Slots:
        """The kubelet hands out the ids of a pod again once that has ended, which we may not have heard of yet."""
        gone = [use for use in self.uses if use.ids & ids and not _next(use, size)]
        strays = [one for one in self.strays if one.uid in self.busy or not one.ids & ids]
        strays += [Allocated(one.ask.uid, "", one.ids, one.taken()) for one in gone if one.ask.uid in self.busy]
        return replace(self, uses=[use for use in self.uses if use not in gone], strays=strays)

    def _candidates(self, size: int, ids: frozenset[str]) -> Iterator[tuple[PodUse, ContainerRequest]]:
        """Whose request it may be: the pod whose init container has these ids, else the one that was begun and is not
        complete (the kubelet allocates for one pod after the other), else those that wait, the one bound first first."""
        begun = [use for use in self.uses if use.ask.uid in self.begun(size)]
        exact = [use for use in begun if use.ids & ids] or begun[-1:]
        waiting = [use for use in self.uses if not use.has and _waits(use) and _next(use, size)]
        for use in exact or waiting:
            yield use, use.left()[0]

    def begun(self, size: int) -> frozenset[str]:
        """Uids of pods that have a part of what they asked for, and next ask for so many units."""
        return frozenset(use.ask.uid for use in self.uses if use.has and _next(use, size)) - frozenset(self.passed)

    def _own(self, use: PodUse, part: ContainerRequest) -> Units | None:
        """Where its pod is already, or what its pod was promised, if no other pod got that meanwhile."""
        free, promised = self.free, use.promised(part)
        for gpu in use.taken() if len(promised) == 1 else ():
            on_it = {gpu: part.units}
            if self._fits(use, part, on_it) and (
                _slot(part, on_it) in free or self._costs_nothing(use, part, on_it) or self._spare(use, part, on_it)
            ):
                return on_it
        return promised if promised and _slot(part, promised) in free and self._fits(use, part, promised) else None

    def _other(self, use: PodUse, part: ContainerRequest) -> Units | None:
        """A slot that a pod of its size left, which got another's; else units that are reserved for no other pod."""
        promised = use.promised(part)
        shape = sorted(promised.values())
        for size, slot in sorted(self.free, key=lambda one: (one[0], sorted(one[1]))):
            units = dict(slot)
            alike = size == part.units and sorted(units.values()) == shape and not units.keys() & set(self.sick)
            if alike and self._fits(use, part, units):
                return units
        if len(promised) == 1:
            for gpu in sorted(self.capacity.units):
                if gpu not in self.sick and self._spare(use, part, {gpu: part.units}):
                    return {gpu: part.units}
        return None

    @cached_property
    def free(self) -> Counter[Slot]:
        """Slots that were promised, less those that were given."""
        found: Counter[Slot] = Counter()
        given: Counter[Slot] = Counter()
        for use in self.uses:
            for part in use.parts():
                if units := home(use, part):
                    found[_slot(part, units)] += 1
                if part.name in use.has:
                    given[_slot(part, use.has[part.name])] += 1
        return found - given

    @cached_property
    def booked(self) -> Counter[int]:
        """Units on each GPU that pods have, and that those which are not complete were bound to."""
        found: Counter[int] = Counter()
        for use in self.uses:
            found.update(self.capacity.weighed(use.taken() if use.complete() else use.marked()))
        return found

    def keeps_room(self, units: Units) -> bool:
        """Whether on these GPUs all that pods were bound to, and have past that, has room: false where some of it is not true."""
        booked: Counter[int] = Counter()
        for use in self.uses:
            booked.update(self.capacity.weighed(slot_of(use) or use.taken()))
        return all(booked[gpu] <= self.capacity.units.get(gpu, 0) for gpu in units)

    @cached_property
    def given(self) -> Counter[int]:
        """Units on each GPU that containers have, by the answers that the runtime got."""
        found: Counter[int] = Counter()
        for use in self.uses:
            found.update(self.capacity.weighed(use.taken()))
        return self._and_strays(found)

    def _and_strays(self, found: Counter[int]) -> Counter[int]:
        for one in self.strays:
            found.update(self.capacity.weighed(one.units))
        return found

    def _fits(self, use: PodUse, part: ContainerRequest, units: Units) -> bool:
        """Whether the GPUs have room beside what they were given already."""
        return self._room(use, part, units, self.given - Counter(self.capacity.weighed(use.taken())))

    def _spare(self, use: PodUse, part: ContainerRequest, units: Units) -> bool:
        """Whether they have room beside that and all that other pods still wait for."""
        others: Counter[int] = Counter()
        for one in self.uses:
            if one is not use:
                ahead = one.taken() if one.complete() else _most(one.taken(), one.marked())
                others.update(self.capacity.weighed(ahead))
        return self._room(use, part, units, self._and_strays(others))

    def _room(self, use: PodUse, part: ContainerRequest, units: Units, others: Mapping[int, int]) -> bool:
        after = self.capacity.weighed(use.taken((part.name, units)))
        return all(
            others.get(gpu, 0) + after.get(gpu, 0) <= self.capacity.units.get(gpu, 0) for gpu in units if units[gpu]
        )

    def _costs_nothing(self, use: PodUse, part: ContainerRequest, units: Units) -> bool:
        """An init container's share goes on to the containers after it."""
        return use.taken((part.name, units)) == use.taken()

    def _refusal(self, size: int, claims: Sequence[tuple[PodUse, ContainerRequest]]) -> NoSlot:
        wanted = f"{size} units of {names.MEM}"
        if claims:
            given = self.given
            full = ", ".join(f"GPU {gpu} {given[gpu]} of {most}" for gpu, most in sorted(self.capacity.units.items()))
            pods = [use.pod for use, _ in claims]
            return NoSlot(
                f"no GPU has room for the {wanted} that {_either(pods)} was promised (given out: {full}); recreate the pod",
                pods,
            )
        leaving = [use for use in self.uses if not use.has and use.leaving and _next(use, size)]
        if leaving:
            pods = [use.pod for use in leaving]
            return NoSlot(f"{_either(pods)}, which asks for {wanted}, is being deleted", pods, final=True)
        return NoSlot(
            f"no pod on this node waits for {wanted}: it was not bound by the extender, names a GPU that is not here, or has its "
            "GPU already; set the extender up in the scheduler's configuration and recreate the pod"
        )


def home(use: PodUse, part: ContainerRequest) -> Units:
    """The slot that a container has in the books."""
    promised = use.promised(part)
    if part.name in use.has and use.ask.count == 1 and len(promised) > 1:
        left = leaves(use)
        return {min(left): part.units} if left else use.has[part.name]
    return promised


def slot_of(use: PodUse) -> Units:
    """What it was bound to and leaves to others where it has something else."""
    return leaves(use) or use.marked()


def _either(pods: Sequence[Json]) -> str:
    """The kubelet names no pod, so it may be any of those."""
    listed = ", ".join(title(pod) for pod in pods[:MOST_NAMED])
    more = f" and {len(pods) - MOST_NAMED} more" if len(pods) > MOST_NAMED else ""
    return f"pod {listed}" if len(pods) == 1 else f"one of the pods {listed}{more}"


def _claim(use: PodUse, part: ContainerRequest, units: Units) -> ContainerAllocation:
    assert use.held is not None
    return ContainerAllocation(use.pod, use.held, part, dict(units))


def _slot(part: ContainerRequest, units: Units) -> Slot:
    return part.units, frozenset(units.items())


def _most(one: Units, other: Units) -> dict[int, int]:
    return {gpu: max(one.get(gpu, 0), other.get(gpu, 0)) for gpu in sorted({*one, *other})}


def _next(use: PodUse, size: int) -> bool:
    """Whether the kubelet's next request for this pod, if it makes one, is of this size."""
    left = use.left()
    return bool(left) and left[0].units == size and use.held is not None


def _waits(use: PodUse) -> bool:
    return not use.leaving and annotations_of(use.pod).get(names.ASSIGNED) != "true"
