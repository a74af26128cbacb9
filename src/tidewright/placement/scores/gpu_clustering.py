"""Clustering: requests of one size lie on the same nodes (Xiao et al., Gandiva, OSDI'18, section 3.2, "affinity"), by the rules
of GpuClusteringScore in FGD's artifact (ATC'23, section 6.1)."""

from __future__ import annotations

import numpy as np

from .columns import Floats, Ints, NodeColumns, Positive, ShareRequest, fullest, group_of


class GpuClustering:
    """From high to low: nodes with pods of this size only, of this size too, without pods, of other sizes; the fuller first."""

    name = "gpu-clustering"
    repeatable = True

    def __init__(self, units: Positive = 8_000) -> None:
        """``units``: device units of the largest node."""
        self._units = units

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """0 to 100, whole; the same on all nodes for a request without devices."""
        if not request.devices:
            return np.zeros(len(nodes.row), dtype=np.int64)
        sizes = (nodes.pods > 0).sum(axis=1)
        mine = nodes.pods[np.arange(len(nodes.row)), self._groups(nodes, request)] > 0
        quarter = np.where(mine, np.where(sizes == 1, 75, 50), np.where(sizes == 0, 25, 0))
        found: Ints = 25 * np.maximum(self._units - nodes.idle(), 0) // self._units + quarter
        return found

    def _groups(self, nodes: NodeColumns, request: ShareRequest) -> Ints:
        last = nodes.pods.shape[1] - 1
        found: Ints = np.where(
            (request.devices == 1) & (request.units < nodes.size), 0, min(group_of(request, request.units), last)
        )
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The fullest that have enough."""
        return fullest(nodes.free[0], request.units, request.devices)
