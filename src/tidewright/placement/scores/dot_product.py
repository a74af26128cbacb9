"""Alignment of what a node has free with what is asked for (Grandl et al., Tetris, SIGCOMM'14, section 3.2), as FGD's evaluation
runs it (DotProductScore of its artifact): the *least* aligned node, over CPU and all device units together."""

from __future__ import annotations

from .columns import Floats, Ints, NodeColumns, Positive, ShareRequest, fullest


class DotProduct:
    """The node whose free CPU and devices have the smallest inner product with the request, and its fullest devices."""

    name = "dot-product"
    repeatable = True

    def __init__(self, cpu: Positive = 128_000, units: Positive = 8_000) -> None:
        """``cpu`` and ``units``: millicores and device units of the largest node, by which both sides are divided."""
        self._cpu, self._units = cpu, units

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """Whole hundredths."""
        product = nodes.cpu / self._cpu * (request.cpu / self._cpu)
        product = product + nodes.idle() / self._units * (request.total / self._units)
        found: Ints = (100.0 * (1 - product / 2)).astype("int64")
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The fullest that have enough."""
        return fullest(nodes.free[0], request.units, request.devices)
