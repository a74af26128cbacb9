"""FGD (Weng et al., ATC'23): how much of what is free could not be used by the pods that usually come. Pure.

A node's free units are lost to a pod that lacks GPUs there, and as well to one that lacks CPU: on Alibaba's trace most of
what stays unallocated at the end lies on nodes whose CPU is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .ask import Ask
from .pool import Ints

Floats = NDArray[np.float64]
Shape = tuple[int, int, int]
"""Units per GPU, GPUs, millicores."""
Typical = tuple[tuple[int, int, int, float], ...]
"""Shapes, and the share of pods that have each."""
COVERED = 0.95
"""FGD, section 4.1: the typical pods are the most frequent ones that make up this share of all."""
MOST_TYPICAL = 50
"""Each costs time for every node; Alibaba's trace has 35."""
REFRESH = 500
"""New pods after which the typical ones are worked out anew; each time all scores are."""
_FAR = np.iinfo(np.int64).max


@dataclass(slots=True)
class Workload:
    """The shapes of pods seen so far, and the typical ones among them."""

    seen: Counter[Shape] = field(default_factory=Counter)
    typical: Typical = ()
    edition: int = 0
    _since: int = REFRESH

    def add(self, ask: Ask) -> None:
        """Once per pod."""
        self.seen[ask.shape] += 1
        self._since += 1
        if self._since >= REFRESH or len(self.seen) == 1:
            self._renew()

    def expect(self, shapes: Mapping[Shape, int]) -> None:
        """Said beforehand what will come, and how often."""
        self.seen.update(shapes)
        self._renew()

    def _renew(self) -> None:
        self._since, self.edition = 0, self.edition + 1
        total, chosen, covered = self.seen.total(), [], 0
        for shape, often in sorted(self.seen.items(), key=lambda item: (-item[1], item[0]))[:MOST_TYPICAL]:
            chosen.append((shape, often))
            covered += often
            if covered >= COVERED * total:
                break
        self.typical = tuple((*shape, often / covered) for shape, often in chosen)


def fragmentation(free: Ints, cpu: Ints, typical: Typical) -> Floats:
    """F (section 3.2): units of ``free[..., gpu]`` that a typical pod cannot use, by how often it comes. ``cpu[...]`` in
    millicores."""
    usable = np.maximum(free, 0)
    everything = usable.sum(axis=-1)
    found: Floats = np.zeros(everything.shape)
    for units, count, cores, share in typical:
        enough = free >= units
        fits = (enough.sum(axis=-1) >= count) & (cpu >= cores)
        found += share * np.where(fits, np.where(enough, 0, usable).sum(axis=-1), everything)
    return found


def growth(free: Ints, cpu: Ints, shape: Shape, typical: Typical) -> tuple[Floats, Ints]:
    """By how much the fragmentation of each row grows when a pod of ``shape`` comes, and its one best GPU (-1 for several
    GPUs or none); infinite where its GPUs do not fit."""
    units, count, cores = shape
    none = np.full(len(free), -1, dtype=np.int64)
    if not count:
        return fragmentation(free, cpu - cores, typical) - fragmentation(free, cpu, typical), none
    enough = free >= units
    if count > 1:
        # The fullest GPUs that have enough, as ``pick`` takes them.
        order = np.argsort(np.where(enough, free, _FAR), axis=1, kind="stable")
        taken = enough & (np.argsort(order, axis=1, kind="stable") < count)
        grown = fragmentation(free - units * taken, cpu - cores, typical) - fragmentation(free, cpu, typical)
        return np.where(enough.sum(axis=1) >= count, grown, np.inf), none
    each = np.where(enough, _growth_of_one(free, cpu, shape, typical), np.inf)
    best = each.argmin(axis=1)
    return each[np.arange(len(free)), best], best


def _growth_of_one(free: Ints, cpu: Ints, shape: Shape, typical: Typical) -> Floats:
    """As ``free[row, gpu]`` loses units: by how much the row's fragmentation grows. Only one GPU of it changes, so what
    all of them come to is worked out once for the row."""
    usable, (units, _, needs) = np.maximum(free, 0), shape
    everything, after = usable.sum(axis=1, keepdims=True), free - units
    now, then = cpu[:, None], cpu[:, None] - needs
    found: Floats = np.zeros(free.shape)
    for asked, count, cores, share in typical:
        before, still = free >= asked, after >= asked
        fitting, useless = before.sum(axis=1, keepdims=True), np.where(before, 0, usable)
        unused = useless.sum(axis=1, keepdims=True)
        fits = (fitting - before + still >= count) & (then >= cores)
        lost = np.where(fits, unused - useless + np.where(still, 0, after), everything - units)
        found += share * (lost - np.where((fitting >= count) & (now >= cores), unused, everything))
    return found


def rank(grown: Floats, size: Ints, rows: Ints) -> Floats:
    """What counts of the growth: hundredths of a sigmoid of it in GPUs, as the authors' scheduler scores; ``size``: units
    of a GPU. Among equals the first row, so that pods lie together and whole nodes stay free. Lower is better."""
    found: Floats = -np.floor(100 / (1 + np.exp(np.clip(grown / np.maximum(size, 1), -50, 50)))) + rows * 1e-6
    return np.where(np.isfinite(grown), found, np.inf)
