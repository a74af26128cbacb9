"""Packing devices: shared ones before free ones, free ones of used nodes before free nodes (Weng et al., MLaaS in the Wild,
NSDI'22, section 6.2), by the rules of GpuPackingScore in FGD's artifact (ATC'23, section 6.1)."""

from __future__ import annotations

import numpy as np

from .columns import Floats, Ints, NodeColumns, ShareRequest, fullest

_FAR = np.iinfo(np.int64).max


class GpuPacking:
    """From high to low: shared devices have room (100 to 50), free devices of a used node (50 to 33), a free node (to 33)."""

    name = "gpu-packing"
    repeatable = True

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """0 to 100, whole; the same on all nodes for a request without devices."""
        if not request.devices:
            return np.zeros(len(nodes.row), dtype=np.int64)
        size = nodes.size[:, None]
        unused = (nodes.free == size).sum(axis=1)
        taken = np.sort(np.where(nodes.free >= request.units, nodes.free, _FAR), axis=1)[:, : request.devices]
        whole = (taken == size).sum(axis=1)
        tenths = (np.minimum(taken, size) * 100 // size).sum(axis=1) // 10
        used = np.where(whole > 0, np.maximum(50 - whole, 33), np.maximum(100 - tenths, 50))
        found: Ints = np.where(unused == nodes.devices, np.maximum(33 - unused, unused), used)
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The fullest that have enough."""
        return fullest(nodes.free[0], request.units, request.devices)
