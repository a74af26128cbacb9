"""Which node and which of its GPUs: best-fit, spread, or least fragmentation. Pure.

``cost`` is a number per node, lower is better; ``pick`` names the GPUs. Scores of nodes whose row did not change are kept,
so scoring a thousand nodes costs what changed since the last pod of that shape.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from ..objects.pod_request import PodRequest
from .fragmentation import Floats, Shape, Workload, growth, rank
from .pool import Ints, Pool

SHAPES_KEPT = 128
BEST = -101.0
"""Less than any growth of fragmentation costs."""
_FAR = np.iinfo(np.int64).max


@dataclass(slots=True)
class _Scores:
    cost: Floats
    gpu: Ints
    version: Ints
    edition: int


@dataclass(slots=True)
class GpuSelector:
    """Applies the policy of each pod, else ``policy``, to a pool."""

    pool: Pool
    policy: str = "best-fit"
    workload: Workload = field(default_factory=Workload)
    _kept: OrderedDict[Shape, _Scores] = field(default_factory=OrderedDict)

    def cost(self, ask: PodRequest, rows: Ints) -> Floats:
        """Of putting ``ask`` on each row; infinite where it does not fit."""
        policy = ask.policy or self.policy
        fits = self.pool.fits(ask, rows)
        if policy == "fgd":
            costs = self._ranked(ask, rows)
        elif policy == "spread":
            costs = -self._most_free(ask, rows)
        else:
            costs = self._least_left(ask, rows)
        return np.where(fits, costs, np.inf)

    def cost_beside(self, ask: PodRequest, rows: Ints) -> Floats | None:
        """Of putting a pod that asks for no GPU on each row: what it keeps GPUs from being used, and least where there are
        none (row -1). None when the policy does not care."""
        if (ask.policy or self.policy) != "fgd":
            return None
        return np.where(rows >= 0, self._ranked(ask, rows), BEST)

    def pick(self, ask: PodRequest, node: str) -> tuple[int, ...]:
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

    def _least_left(self, ask: PodRequest, rows: Ints) -> Floats:
        """gpushare's best fit, over nodes too: what stays free on the GPUs it would take."""
        free = self.pool.free_to(ask.uid, rows)
        left = np.sort(np.where(free >= ask.units, free - ask.units, _FAR // 256), axis=1)
        costs: Floats = left[:, : ask.count].sum(axis=1).astype(np.float64)
        return costs

    def _most_free(self, ask: PodRequest, rows: Ints) -> Floats:
        free = np.sort(np.maximum(self.pool.free_to(ask.uid, rows), 0), axis=1)
        costs: Floats = free[:, -ask.count :].sum(axis=1).astype(np.float64)
        return costs

    def _ranked(self, ask: PodRequest, rows: Ints) -> Floats:
        return rank(self._growth(ask, rows)[0], self.pool.size[rows], rows)

    def _growth(self, ask: PodRequest, rows: Ints) -> tuple[Floats, Ints]:
        """By how much each row's fragmentation grows, and its one best GPU; where the pod already holds something, as if it
        did not."""
        kept = self._scores(ask)
        costs, gpus = kept.cost[rows], kept.gpu[rows]
        own = rows == self.pool.own_row(ask.uid)
        if own.any():
            free = self.pool.free_to(ask.uid, rows[own])
            costs[own], gpus[own] = growth(free, self.pool.cpu_to(ask.uid, rows[own]), ask.shape, self.workload.typical)
        return costs, gpus

    def _scores(self, ask: PodRequest) -> _Scores:
        """Of all rows; those that changed since the last time are worked out again."""
        key, pool = ask.shape, self.pool
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
            kept.cost[dirty], kept.gpu[dirty] = growth(pool.free[dirty], pool.cpu[dirty], key, self.workload.typical)
            kept.version[dirty] = pool.version[dirty]
        return kept


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
