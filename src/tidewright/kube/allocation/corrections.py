"""Annotations that say what containers really have, where pods of one size got each other's GPUs. Pure.

A reader of the annotations (the extender) must never see free units that do not exist. So pods that exchange their slots are
rewritten one after the other, and the first one shows its old and its new slot together until the others are done. A slot
that another pod still waits for is exchanged, too: the waiting pod is reserved the one that became free.

What a pod's owner writes on it changes no other pod: slots are those that were recorded (``SlotRecords``), and one that is handed
on has the shape and the room that the other pod had. Annotations that differ from the record are written over.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..objects import names
from .pod_usage import PodUse, Units, leaves
from .slots import Slots, slot_of


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Annotations of one pod, None to take one off."""

    use: PodUse
    notes: Mapping[str, str | None]


def corrections(slots: Slots) -> list[list[Rewrite]]:
    """Rings and chains of rewrites, each to be carried out in order and up to the first that fails."""
    wrong = [use for use in slots.uses if use.complete() and use.taken() and use.shown != _shows(use, _real(use))]
    waiting = [use for use in slots.uses if not use.has]
    units, found = slots.capacity.units, []
    # A chain that broke off is resumed first and alone: what others have to do depends on how it ends.
    begun = any(map(leaves, wrong))
    while any(map(leaves, wrong)) if begun else wrong:
        path, waits = _path(slots, wrong, waiting)
        found.append([_rewrite(use, notes, units) for use, notes in _steps(path, waits)])
    if not found:
        found += [[_rewrite(use, units_there, units)] for use, units_there in _rehoused(slots, waiting)]
    handed = {step.use.ask.uid for chain in found for step in chain}
    edited = (use for use in slots.uses if not use.complete() and use.held is not None and use.shown != use.marked())
    return found + [[_rewrite(use, use.marked(), units)] for use in edited if use.ask.uid not in handed]


def _real(use: PodUse) -> Units:
    """Units by GPU. On as many GPUs as it asked for it is what it asked for."""
    taken = use.taken()
    return dict.fromkeys(taken, use.ask.units) if len(taken) == use.ask.count else taken


def _shows(use: PodUse, units: Units) -> Units:
    """What ``_rewrite`` makes its annotations say."""
    return units if len(units) > 1 else dict.fromkeys(units, use.ask.total)


def _path(slots: Slots, wrong: list[PodUse], waiting: list[PodUse]) -> tuple[list[PodUse], PodUse | None]:
    """Pods of which each really has what the next one was bound to, taken out of ``wrong``; and a pod that waits for what the
    last one has, taken out of ``waiting``, if there is one."""
    path = [_head(wrong)]
    wrong.remove(path[0])
    while True:
        real = _real(path[-1])
        if real == slot_of(path[0]):
            return path, None
        following = next((use for use in wrong if slot_of(use) == real), None)
        if following is None:
            return path, _waits_for(slots, real, slot_of(path[0]), waiting)
        wrong.remove(following)
        path.append(following)


def _head(wrong: Sequence[PodUse]) -> PodUse:
    """The head of a chain that broke off, else a pod whose slot more of them leave than take, if there is one. A path that began
    in its middle would hand the slot on to a pod that waits although another pod has it."""
    for use in wrong:
        if leaves(use):
            return use
    left = Counter(_key(slot_of(use)) for use in wrong)
    left.subtract(_key(_real(use)) for use in wrong)
    return next((use for use in wrong if left[_key(slot_of(use))] > 0), wrong[0])


def _key(units: Units) -> frozenset[tuple[int, int]]:
    return frozenset(units.items())


def _waits_for(slots: Slots, real: Units, left: Units, waiting: list[PodUse]) -> PodUse | None:
    """A pod bound to ``real`` that can have ``left`` instead, taken out of ``waiting``; before it one that was to get it when a
    chain broke off. What is left counts as booked already, so where all that is booked has room, this pod has."""
    if not left or sorted(left.values()) != sorted(real.values()) or left.keys() & set(slots.sick):
        return None
    alike = [use for use in waiting if sorted(use.marked().values()) == sorted(left.values())]
    fits = {use.ask.uid: (_too_full(slots, slots.booked, use.marked()), use.marked() == real) for use in alike}
    found = max((use for use in alike if any(fits[use.ask.uid])), key=lambda use: fits[use.ask.uid], default=None)
    if found is None or not slots.keeps_room(left):
        return None
    waiting.remove(found)
    return found


def _too_full(slots: Slots, booked: Mapping[int, int], units: Units) -> bool:
    """Whether one of the GPUs has no room for all that is booked on it."""
    return any(booked.get(gpu, 0) > slots.capacity.units.get(gpu, 0) for gpu in units)


def _rehoused(slots: Slots, waiting: Sequence[PodUse]) -> Iterator[tuple[PodUse, Units]]:
    """Pods that wait for a GPU which is too full for them, with one that is not: pods were bound while a chain was broken off."""
    booked, most = slots.booked.copy(), slots.capacity.units
    for use in waiting:
        marked = use.marked()
        if len(marked) != 1 or not _too_full(slots, booked, marked):
            continue
        for gpu in sorted(most.keys() - set(slots.sick)):
            moved = slots.capacity.weighed({gpu: use.ask.total})
            if booked[gpu] + moved[gpu] <= most[gpu]:
                booked.subtract(slots.capacity.weighed(marked))
                booked.update(moved)
                yield use, {gpu: use.ask.total}
                break


def _steps(path: Sequence[PodUse], waits: PodUse | None) -> Iterator[tuple[PodUse, Units]]:
    first, others = path[0], path[1:]
    if others or waits is not None:
        yield first, {**slot_of(first), **_real(first)}
    for use in others:
        yield use, _real(use)
    if waits is not None:
        yield waits, slot_of(first)
    yield first, _real(first)


def _rewrite(use: PodUse, shown: Units, units: Units) -> Rewrite:
    first = min(shown)
    notes: dict[str, str | None] = {names.IDX: str(first), names.DEV: str(units.get(first, 0)), names.ALLOCATION: None}
    notes[names.POD] = str(use.ask.total)
    if len(shown) > 1:
        notes[names.ALLOCATION] = json.dumps(_by_container(use, shown), separators=(",", ":"))
    return Rewrite(use, notes)


def _by_container(use: PodUse, shown: Units) -> dict[str, dict[str, int]]:
    """What only init containers had is written to the last container, so that the sums are those of ``shown``."""
    main = [part for part in use.ask.parts if not part.init]
    left, found = dict(shown), {}
    if shown == use.taken():
        for part in main:
            has = use.has.get(part.name, {})
            own = {gpu: min(count, left.get(gpu, 0)) for gpu, count in has.items()}
            found[str(part.index)] = {str(gpu): count for gpu, count in own.items()}
            left = {gpu: count - own.get(gpu, 0) for gpu, count in left.items()}
    last = found.setdefault(str(main[-1].index if main else 0), {})
    for gpu, count in left.items():
        if count > 0:
            last[str(gpu)] = last.get(str(gpu), 0) + count
    return found
