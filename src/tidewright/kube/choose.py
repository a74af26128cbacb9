"""Which node and which of its GPUs: best-fit, spread, or least fragmentation. Pure.

``cost`` is a number per node, lower is better; ``pick`` names the GPUs. Scores of nodes whose row did not change are kept,
so scoring a thousand nodes costs what changed since the last pod of that shape.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .ask import Ask
from .pool import Ints, Pool

Floats = NDArray[np.float64]
Shape = tuple[int, int]
"""Units per GPU, GPUs."""
COVERED = 0.95
"""FGD, section 4.1: the typical pods are the most frequent ones that make up this share of all."""
REFRESH = 500
"""New pods after which the typical ones are worked out anew; each time all scores are."""
SHAPES_KEPT = 64
_FAR = np.iinfo(np.int64).max


@dataclass(slots=True)
class Workload:
    """The shapes of pods seen so far, and the typical ones among them as (units, GPUs, share)."""

    seen: Counter[Shape] = field(default_factory=Counter)
    typical: tuple[tuple[int, int, float], ...] = ()
    edition: int = 0
    _since: int = REFRESH

    def add(self, ask: Ask) -> None:
        """Once per pod."""
        self.seen[ask.units, ask.count] += 1
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
        for (units, count), often in sorted(self.seen.items(), key=lambda item: (-item[1], item[0])):
            chosen.append((units, count, often))
            covered += often
            if covered >= COVERED * total:
                break
        self.typical = tuple((units, count, often / covered) for units, count, often in chosen)


@dataclass(slots=True)
class _Scores:
    cost: Floats
    gpu: Ints
    version: Ints
    edition: int


@dataclass(slots=True)
class Chooser:
    """Applies the policy of each pod, else ``policy``, to a pool."""

    pool: Pool
    policy: str = "best-fit"
    workload: Workload = field(default_factory=Workload)
    _kept: OrderedDict[Shape, _Scores] = field(default_factory=OrderedDict)

    def cost(self, ask: Ask, rows: Ints) -> Floats:
        """Of putting ``ask`` on each row; infinite where it does not fit."""
        policy = ask.policy or self.policy
        fits = self.pool.fits(ask, rows)
        if policy == "fgd":
            costs, _ = self._growth(ask, rows)
        elif policy == "spread":
            costs = -self._most_free(ask, rows)
        else:
            costs = self._least_left(ask, rows)
        return np.where(fits, costs, np.inf)

    def pick(self, ask: Ask, node: str) -> tuple[int, ...]:
        """The GPUs of ``node`` for ``ask``, by index; empty when they do not fit."""
        row = self.pool.row.get(node, -1)
        if row < 0:
            return ()
        rows = np.array([row], dtype=np.int64)
        free = self.pool.free_to(ask.uid, rows)[0]
        enough = np.flatnonzero(free >= ask.units)
        if len(enough) < ask.count:
            return ()
        policy = ask.policy or self.policy
        if policy == "fgd" and ask.count == 1:
            return (int(self._growth(ask, rows)[1][0]),)
        order = np.argsort(-free[enough] if policy == "spread" else free[enough], kind="stable")
        return tuple(sorted(int(gpu) for gpu in enough[order[: ask.count]]))

    def _least_left(self, ask: Ask, rows: Ints) -> Floats:
        """gpushare's best fit, over nodes too: what stays free on the GPUs it would take."""
        free = self.pool.free_to(ask.uid, rows)
        left = np.sort(np.where(free >= ask.units, free - ask.units, _FAR // 256), axis=1)
        costs: Floats = left[:, : ask.count].sum(axis=1).astype(np.float64)
        return costs

    def _most_free(self, ask: Ask, rows: Ints) -> Floats:
        free = np.sort(np.maximum(self.pool.free_to(ask.uid, rows), 0), axis=1)
        costs: Floats = free[:, -ask.count :].sum(axis=1).astype(np.float64)
        return costs

    def _growth(self, ask: Ask, rows: Ints) -> tuple[Floats, Ints]:
        """By how much each row's fragmentation grows, and its one best GPU; where the pod already holds something, as if it
        did not."""
        kept = self._scores(ask)
        costs, gpus = kept.cost[rows], kept.gpu[rows]
        own = rows == self.pool.own_row(ask.uid)
        if own.any():
            free = self.pool.free_to(ask.uid, rows[own])
            costs[own], gpus[own] = growth(free, ask.units, ask.count, self.workload.typical)
        return costs, gpus

    def _scores(self, ask: Ask) -> _Scores:
        """Of all rows; those that changed since the last time are worked out again."""
        key, pool = (ask.units, ask.count), self.pool
        kept = self._kept.get(key)
        size = len(pool.version)
        if kept is None or kept.edition != self.workload.edition or len(kept.cost) != size:
            nothing = np.full(size, -1, dtype=np.int64)
            kept = _Scores(np.full(size, np.inf), nothing.copy(), nothing, self.workload.edition)
            self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > SHAPES_KEPT:
            self._kept.popitem(last=False)
        dirty = np.flatnonzero(kept.version != pool.version)
        if len(dirty):
            kept.cost[dirty], kept.gpu[dirty] = growth(pool.free[dirty], ask.units, ask.count, self.workload.typical)
            kept.version[dirty] = pool.version[dirty]
        return kept


def fragmentation(free: Ints, typical: tuple[tuple[int, int, float], ...]) -> Floats:
    """F of FGD (ATC'23, section 3.2): units of ``free[..., gpu]`` that a typical pod cannot use, by how often it comes."""
    usable = np.maximum(free, 0)
    everything = usable.sum(axis=-1)
    found: Floats = np.zeros(everything.shape)
    for units, count, share in typical:
        enough = free >= units
        fits = enough.sum(axis=-1) >= count
        found += share * np.where(fits, np.where(enough, 0, usable).sum(axis=-1), everything)
    return found


def growth(free: Ints, units: int, count: int, typical: tuple[tuple[int, int, float], ...]) -> tuple[Floats, Ints]:
    """By how much the fragmentation of each row grows when a pod takes ``units`` on ``count`` GPUs, and its one best GPU."""
    enough = free >= units
    if count > 1:
        # The fullest GPUs that have enough, as ``pick`` takes them.
        order = np.argsort(np.where(enough, free, _FAR), axis=1, kind="stable")
        rank = np.argsort(order, axis=1, kind="stable")
        taken = enough & (rank < count)
        grown = fragmentation(free - units * taken, typical) - fragmentation(free, typical)
        return np.where(enough.sum(axis=1) >= count, grown, np.inf), np.full(len(free), -1, dtype=np.int64)
    each = np.where(enough, _growth_of_one(free, units, typical), np.inf)
    best = each.argmin(axis=1)
    return each[np.arange(len(free)), best], best


def _growth_of_one(free: Ints, units: int, typical: tuple[tuple[int, int, float], ...]) -> Floats:
    """As ``free[row, gpu]`` loses ``units``: by how much the row's fragmentation grows. Only one GPU of it changes, so what
    all of them come to is worked out once for the row."""
    usable = np.maximum(free, 0)
    everything, after = usable.sum(axis=1, keepdims=True), free - units
    found: Floats = np.zeros(free.shape)
    for asked, count, share in typical:
        before, still = free >= asked, after >= asked
        fitting, useless = before.sum(axis=1, keepdims=True), np.where(before, 0, usable)
        unused = useless.sum(axis=1, keepdims=True)
        then = np.where(
            fitting - before + still >= count, unused - useless + np.where(still, 0, after), everything - units
        )
        found += share * (then - np.where(fitting >= count, unused, everything))
    return found


def scores(costs: Floats) -> list[int]:
    """0 to 10 for kube-scheduler: 10 for the cheapest alone (and its equals), the others spread over 0 to 9."""
    finite = np.isfinite(costs)
    found = np.zeros(len(costs), dtype=np.int64)
    if finite.any():
        low, high = costs[finite].min(), costs[finite].max()
        if high > low:
            found[finite] = np.minimum(9, (10 * (high - costs[finite]) / (high - low)).astype(np.int64))
        found[finite & (costs == low)] = 10
    return [int(value) for value in found]
