"""FGD (Weng et al., ATC'23): how much of what is free could not be used by the pods that usually come. Pure.

A node's free units are lost to a pod that lacks GPUs there, and as well to one that lacks CPU: on Alibaba's trace most of
what stays unallocated at the end lies on nodes whose CPU is gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..objects.pod_request import PodRequest
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
AT_ONCE = 12_000
"""Numbers in each array of the work, 96 kB: malloc gives pieces from 128 kB on back to the system each time."""
_FAR = np.iinfo(np.int64).max


@dataclass(slots=True)
class Workload:
    """The shapes of pods seen so far, and the typical ones among them."""

    seen: Counter[Shape] = field(default_factory=Counter)
    typical: Typical = ()
    edition: int = 0
    _since: int = REFRESH

    def add(self, ask: PodRequest) -> None:
        """Once per pod."""
        self.seen[ask.shape] += 1
        self._since += 1
        if self._since >= REFRESH or not self.typical:
            self._renew()

    def expect(self, shapes: Mapping[Shape, int]) -> None:
        """Said beforehand what will come, and how often."""
        self.seen.update(shapes)
        self._renew()

    def _renew(self) -> None:
        self._since = 0
        total, chosen, covered = self.seen.total(), [], 0
        for shape, often in sorted(self.seen.items(), key=lambda item: (-item[1], item[0]))[:MOST_TYPICAL]:
            chosen.append((shape, often))
            covered += often
            if covered >= COVERED * total:
                break
        typical = tuple((*shape, often / covered) for shape, often in chosen)
        if typical != self.typical:
            self.typical, self.edition = typical, self.edition + 1


class _Columns(NamedTuple):
    """Of Typical, to be held against [GPUs, rows]: units [T, 1, 1], the others [T, 1], shares [T]. Rows come last, as sums
    over few GPUs that lie beside each other are slow."""

    units: Ints
    gpus: Ints
    cores: Ints
    share: Floats


@lru_cache(maxsize=8)
def _columns(typical: Typical) -> _Columns:
    units, count, cores = np.array([shape[:3] for shape in typical], dtype=np.int64).reshape(-1, 3).T
    return _Columns(units[:, None, None], count[:, None], cores[:, None], np.array([shape[3] for shape in typical]))


def fragmentation(free: Ints, cpu: Ints, typical: Typical) -> Floats:
    """F (section 3.2): units of ``free[row, gpu]`` that a typical pod cannot use, by how often it comes. ``cpu[row]`` in
    millicores."""
    columns, usable = _columns(typical), _floats(np.maximum(free, 0))
    enough = np.ascontiguousarray(free.T) >= columns.units
    fits = (enough.sum(axis=1) >= columns.gpus) & (cpu >= columns.cores)
    used = np.where(enough, usable, 0.0).sum(axis=1)
    found: Floats = columns.share.sum() * usable.sum(axis=0) - _expected(columns, fits * used)
    return found


def _floats(values: Ints) -> Floats:
    """[rows, GPUs] turned round."""
    return np.ascontiguousarray(values.T, dtype=np.float64)


def growth(free: Ints, cpu: Ints, shape: Shape, typical: Typical) -> tuple[Floats, Ints]:
    """By how much the fragmentation of each row grows when a pod of ``shape`` comes, and its one best GPU (-1 for several
    GPUs or none); infinite where its GPUs do not fit."""
    step = max(1, AT_ONCE // (max(1, len(typical)) * free.shape[1]))
    parts = [
        _growth(free[at : at + step], cpu[at : at + step], shape, typical) for at in range(0, len(free), step) or (0,)
    ]
    return np.concatenate([cost for cost, _ in parts]), np.concatenate([gpu for _, gpu in parts])


def _growth(free: Ints, cpu: Ints, shape: Shape, typical: Typical) -> tuple[Floats, Ints]:
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
    columns, (units, _, needs) = _columns(typical), shape
    usable, free = _floats(np.maximum(free, 0)), np.ascontiguousarray(free.T)
    before, still = free >= columns.units, free >= columns.units + units
    here = np.where(before, usable, 0.0)
    fitting, used = before.sum(axis=1), here.sum(axis=1)
    enough = fitting >= columns.gpus
    # A typical pod that needs all GPUs that fit it now needs this one to fit it afterwards.
    fits_then = still | ~before | (fitting > columns.gpus)[:, None]
    fits_then &= (enough & (cpu - needs >= columns.cores))[:, None]
    left = fits_then * (used[:, None] - np.where(still, float(units), here))
    now = _expected(columns, used * (enough & (cpu >= columns.cores)))
    found: Floats = (now - units * columns.share.sum() - _expected(columns, left)).T
    return found


def _expected(columns: _Columns, values: NDArray[Any]) -> Floats:
    """Over the typical pods, by their shares. No matrix product: that starts threads, which here cost more than they do."""
    found: Floats = np.einsum("t,t...->...", columns.share, values)
    return found


def rank(grown: Floats, size: Ints, rows: Ints) -> Floats:
    """What counts of the growth: hundredths of a sigmoid of it in GPUs, as the authors' scheduler scores; ``size``: units
    of a GPU. Among equals the first row, so that pods lie together and whole nodes stay free. Lower is better."""
    found: Floats = -np.floor(100 / (1 + np.exp(np.clip(grown / np.maximum(size, 1), -50, 50)))) + rows * 1e-6
    return np.where(np.isfinite(grown), found, np.inf)
