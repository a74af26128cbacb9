"""Any node that has room, each with the same probability: the baseline of FGD's evaluation (Weng et al., ATC'23, section 6.1)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .columns import Floats, Ints, NodeColumns, ShareRequest

Words = NDArray[np.uint64]
_ODD = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def _mixed(values: Words) -> Words:
    """SplitMix64 (Steele et al., OOPSLA'14): each bit of the result depends on all bits of the value."""
    found = values + np.uint64(_ODD[0])
    found = (found ^ (found >> np.uint64(30))) * np.uint64(_ODD[1])
    found = (found ^ (found >> np.uint64(27))) * np.uint64(_ODD[2])
    mixed: Words = found ^ (found >> np.uint64(31))
    return mixed


class UniformDraw:
    """A number for each node and draw, and for each of its devices, mixed from a seed: no state, no order of calls."""

    name = "random"
    repeatable = False

    def __init__(self, seed: int = 1) -> None:
        self._seed = seed

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """0 to 1, other numbers in each draw."""
        found: Floats = self._draws(draw, nodes.row.astype(np.uint64)) / 2.0**64
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """Any that have enough; of several whole devices the first."""
        enough = np.flatnonzero(nodes.free[0] >= request.units)
        if request.devices == 1:
            keys = self._draws(~draw, enough.astype(np.uint64))
            return (int(enough[keys.argmax()]),)
        return tuple(int(device) for device in enough[: request.devices])

    def _draws(self, draw: int, numbers: Words) -> Words:
        start = _mixed(np.array([self._seed % 2**64], dtype=np.uint64)) ^ np.uint64(draw % 2**64)
        return _mixed(_mixed(start) ^ numbers)
