"""Annotations that say what containers really have, where pods of one size got each other's GPUs. Pure.

Whoever reads the books meanwhile (the extender) must never see room that there is not. So pods that exchange their slots are
rewritten in a ring: the first one shows its old and its new slot together until the others are done. A slot that somebody
still waits for changes hands, too: the pod that waits is promised the one that was left.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from . import names
from .allocated import PodUse, Units
from .slots import leaves


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Annotations of one pod, None to take one off."""

    use: PodUse
    notes: Mapping[str, str | None]


def corrections(uses: Sequence[PodUse], units: Units) -> list[list[Rewrite]]:
    """Rings and chains of rewrites, each to be carried out in order and up to the first that fails. ``units`` of each GPU."""
    wrong = [use for use in uses if use.complete() and _real(use).keys() != use.marked().keys()]
    waiting = [use for use in uses if not use.has]
    found = []
    while wrong:
        path, closing = _path(wrong, waiting)
        found.append([_rewrite(use, notes, units) for use, notes in _steps(path, closing)])
    return found


def _real(use: PodUse) -> Units:
    """Units by GPU. On as many GPUs as it asked for it is what it asked for."""
    taken = use.taken()
    return dict.fromkeys(taken, use.ask.units) if len(taken) == use.ask.count else taken


def _old(use: PodUse) -> Units:
    return leaves(use) or use.marked()


def _path(wrong: list[PodUse], waiting: list[PodUse]) -> tuple[list[PodUse], PodUse | bool | None]:
    """Pods of which each really has what the next one shows, taken out of ``wrong``; and how it ends: True, the last one has
    what the first one shows; a pod that waits for it, taken out of ``waiting``; or None, nobody shows it."""
    path = [wrong.pop(0)]
    while True:
        real = _real(path[-1])
        if real == _old(path[0]):
            return path, True
        following = next((use for use in wrong if _old(use) == real), None)
        if following is None:
            waits = next((use for use in waiting if use.marked() == real and _old(path[0])), None)
            if waits is not None:
                waiting.remove(waits)
            return path, waits
        wrong.remove(following)
        path.append(following)


def _steps(path: Sequence[PodUse], closing: PodUse | bool | None) -> Iterator[tuple[PodUse, Units]]:
    first, ring = path[0], closing is not None
    if ring:
        yield first, {**_old(first), **_real(first)}
    for use in path if not ring else path[1:]:
        yield use, _real(use)
    if isinstance(closing, PodUse):
        yield closing, _old(first)
    if ring:
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
            own = use.has.get(part.name, {})
            found[str(part.index)] = {str(gpu): count for gpu, count in own.items()}
            left = {gpu: count - own.get(gpu, 0) for gpu, count in left.items()}
    last = found.setdefault(str(main[-1].index if main else 0), {})
    for gpu, count in left.items():
        if count > 0:
            last[str(gpu)] = last.get(str(gpu), 0) + count
    return found
