"""Which node and which of its GPUs, by the placement scores of ``placement.scores``. Pure.

``cost`` is a number per node, lower is better; ``pick`` names the GPUs. Scores of nodes whose row did not change are kept,
so scoring a thousand nodes costs what changed since the last pod of that shape.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from ...placement.scores.columns import Floats, NodeColumns, ShareRequest
from ...placement.scores.devices import EmptiestDevices, TightestDevices
from ...placement.scores.protocol import PlacementScore
from ..objects.pod_request import PodRequest
from .pool import NEVER, Ints, Pool
from .workload import Workload, request_of

SHAPES_KEPT = 128
BEST = -101.0
"""Less than any growth of fragmentation costs."""
APART = 1e-6
"""Between equals the first row, so that pods lie together and whole nodes stay free. FGD's scores are whole hundredths."""
BY_DEVICES: dict[str, PlacementScore] = {"best-fit": TightestDevices(), "spread": EmptiestDevices()}


@dataclass(slots=True)
class _Scores:
    cost: Floats
    version: Ints
    edition: int


@dataclass(slots=True)
class GpuSelector:
    """Applies the policy of each pod, else ``policy``, to a pool."""

    pool: Pool
    policy: str = "best-fit"
    workload: Workload = field(default_factory=Workload)
    _kept: OrderedDict[ShareRequest, _Scores] = field(default_factory=OrderedDict)

    def cost(self, ask: PodRequest, rows: Ints) -> Floats:
        """Of putting ``ask`` on each row; infinite where it does not fit."""
        fits = self.pool.fits(ask, rows)
        score = BY_DEVICES.get(ask.policy or self.policy)
        if score is None:
            costs = self._fragments(ask, rows)
        else:
            costs = -np.asarray(score.score(self._nodes(ask, rows), request_of(ask), 0), dtype=np.float64)
        return np.where(fits, costs, np.inf)

    def cost_beside(self, ask: PodRequest, rows: Ints) -> Floats | None:
        """Of putting a pod that asks for no GPU on each row: what it keeps GPUs from being used, and least where there are
        none (row -1). None when the policy does not care."""
        if (ask.policy or self.policy) != "fgd":
            return None
        return np.where(rows >= 0, self._fragments(ask, rows), BEST)

    def pick(self, ask: PodRequest, node: str) -> tuple[int, ...]:
        """The GPUs of ``node`` for ``ask``, by index; empty when they do not fit."""
        row = self.pool.row.get(node, -1)
        if row < 0:
            return ()
        nodes = self._nodes(ask, np.array([row], dtype=np.int64))
        if (nodes.free[0] >= ask.units).sum() < ask.count:
            return ()
        score = BY_DEVICES.get(ask.policy or self.policy, self.workload.score)
        return score.pick(nodes, request_of(ask), 0)

    def _nodes(self, ask: PodRequest, rows: Ints) -> NodeColumns:
        """Rows as scores see them; where the pod already holds something, as if it did not."""
        return self._columns(self.pool.free_to(ask.uid, rows), self.pool.cpu_to(ask.uid, rows), rows)

    def _columns(self, free: Ints, cpu: Ints, rows: Ints) -> NodeColumns:
        nothing = np.zeros(len(rows), dtype=np.int64)
        none_there = np.zeros((len(rows), 1 + free.shape[1]), dtype=np.int64)
        return NodeColumns(
            free, cpu, nothing, nothing, self.pool.size[rows], (free > NEVER // 2).sum(axis=1), none_there, rows
        )

    def _fragments(self, ask: PodRequest, rows: Ints) -> Floats:
        """FGD's, the fewest first; infinite where the GPUs do not fit."""
        costs = self._scores(request_of(ask))[rows]
        own = rows == self.pool.own_row(ask.uid)
        if own.any():
            costs[own] = self._anew(self._nodes(ask, rows[own]), request_of(ask))
        return costs + rows * APART

    def _anew(self, nodes: NodeColumns, request: ShareRequest) -> Floats:
        costs = -np.asarray(self.workload.score.score(nodes, request, 0), dtype=np.float64)
        return np.where((nodes.free >= request.units).sum(axis=1) >= request.devices, costs, np.inf)

    def _scores(self, key: ShareRequest) -> Floats:
        """Of all rows; those that changed since the last time are worked out again."""
        pool, size = self.pool, len(self.pool.version)
        kept = self._kept.get(key)
        if kept is None or kept.edition != self.workload.edition or len(kept.cost) != size:
            kept = _Scores(np.full(size, np.inf), np.full(size, -1, dtype=np.int64), self.workload.edition)
            self._kept[key] = kept
        self._kept.move_to_end(key)
        while len(self._kept) > SHAPES_KEPT:
            self._kept.popitem(last=False)
        dirty = np.flatnonzero(kept.version != pool.version)
        if len(dirty):
            kept.cost[dirty] = self._anew(self._columns(pool.free[dirty], pool.cpu[dirty], dirty), key)
            kept.version[dirty] = pool.version[dirty]
        return kept.cost


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
