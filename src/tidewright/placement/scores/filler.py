"""Places one request after another on nodes by a score. Pure: the same requests in the same order give the same placements.

The scores of a kind of request are kept, and worked out again only for rows that changed since: a pod that arrives costs what
changed since the last one of its kind, however many nodes there are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .columns import Floats, Ints, NodeColumns, ShareRequest, fits, group_of
from .protocol import PlacementScore

KINDS_KEPT = 1_024
"""Kinds of requests whose scores are kept; each is two numbers for every node."""


class Placed(NamedTuple):
    """Where a request went: the row of the node and its devices by index."""

    row: int
    devices: tuple[int, ...]


@dataclass(slots=True)
class _Kept:
    score: Floats
    """[N] minus infinity where the request does not fit, its memory aside."""
    version: Ints


class Filler:
    """Nodes that fill up. Among equal scores the first row is taken."""

    def __init__(self, nodes: NodeColumns, score: PlacementScore) -> None:
        self.nodes = NodeColumns(*(column.copy() for column in nodes))
        self._score = score
        self._version = np.zeros(len(nodes.row), dtype=np.int64)
        self._kept: dict[ShareRequest, _Kept] = {}
        self._draw = 0

    def place(self, request: ShareRequest) -> Placed | None:
        """Put ``request`` on the best node; None, and nothing changes, when it fits nowhere."""
        self._draw += 1
        scores = self._scores(request)
        if request.memory:
            scores = np.where(self.nodes.memory >= request.memory, scores, -np.inf)
        row = int(scores.argmax()) if len(scores) else -1
        if row < 0 or scores[row] == -np.inf:
            return None
        devices = self._score.pick(self.nodes.take(np.array([row])), request, self._draw) if request.devices else ()
        self._take(row, devices, request)
        return Placed(row, devices)

    def _scores(self, request: ShareRequest) -> Floats:
        """[N] minus infinity where the request does not fit, its memory aside."""
        nodes, key = self.nodes, request._replace(memory=0)
        if not self._score.repeatable:
            return np.where(fits(nodes, key), self._score.score(nodes, key, self._draw), -np.inf)
        kept = self._kept.get(key)
        if kept is None:
            if len(self._kept) >= KINDS_KEPT:
                del self._kept[next(iter(self._kept))]
            kept = self._kept[key] = _Kept(
                np.full(len(nodes.row), -np.inf), np.full(len(nodes.row), -1, dtype=np.int64)
            )
        self._renew(kept, key)
        return kept.score

    def _renew(self, kept: _Kept, key: ShareRequest) -> None:
        changed = np.flatnonzero(kept.version != self._version)
        if not len(changed):
            return
        rows = self.nodes.take(changed)
        room = fits(rows, key)
        kept.score[changed] = -np.inf
        kept.version[changed] = self._version[changed]
        if room.all():
            kept.score[changed] = self._score.score(rows, key, self._draw)
        elif room.any():
            kept.score[changed[room]] = self._score.score(rows.take(room), key, self._draw)

    def _take(self, row: int, devices: tuple[int, ...], request: ShareRequest) -> None:
        nodes = self.nodes
        for device in devices:
            nodes.free[row, device] -= request.units
        nodes.cpu[row] -= request.cpu
        nodes.memory[row] -= request.memory
        group = group_of(request, int(nodes.size[row]))
        if group >= 0:
            nodes.pods[row, group] += 1
        self._version[row] += 1
