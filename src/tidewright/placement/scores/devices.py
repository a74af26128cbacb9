"""Scores that look at the devices alone, not at what else a node has: the fullest that have room, as gpushare-scheduler-extender
takes them (github.com/AliyunContainerService), and the emptiest."""

from __future__ import annotations

import numpy as np

from .columns import Floats, Ints, NodeColumns, ShareRequest, fullest

_FAR = np.iinfo(np.int64).max // 256


class TightestDevices:
    """The node on which least is left of the devices that the request takes, the fullest that have room."""

    name = "tightest"
    repeatable = True

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """Minus the units left; 0 without devices."""
        left = np.sort(np.where(nodes.free >= request.units, nodes.free - request.units, _FAR), axis=1)
        found: Ints = -left[:, : request.devices].sum(axis=1)
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The fullest that have enough."""
        return fullest(nodes.free[0], request.units, request.devices)


class EmptiestDevices:
    """The node whose devices have most free, so many as are asked for."""

    name = "spread"
    repeatable = True

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """Units free on them; 0 without devices."""
        free = np.sort(np.maximum(nodes.free, 0), axis=1)[:, ::-1]
        found: Ints = free[:, : request.devices].sum(axis=1)
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The emptiest; the first among equals."""
        order = np.argsort(-nodes.free[0], kind="stable")[: request.devices]
        return tuple(sorted(int(device) for device in order))
