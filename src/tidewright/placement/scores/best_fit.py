"""Best-fit over CPU and devices, as FGD's evaluation runs it (Weng et al., ATC'23, section 6.1; BestFitScore of its artifact)."""

from __future__ import annotations

from .columns import Floats, Ints, NodeColumns, Positive, ShareRequest, fullest


class BestFit:
    """The node with the least left, CPU and devices weighing the same, and its fullest devices."""

    name = "best-fit"
    repeatable = True

    def __init__(self, cpu: Positive = 128_000, units: Positive = 8_000) -> None:
        """``cpu`` and ``units``: millicores and device units of the largest node, by which what is left is divided."""
        self._cpu, self._units = cpu, units

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """Whole hundredths; the artifact's spreading over 0 to 100 keeps their order."""
        left = (nodes.cpu - request.cpu) / self._cpu * 0.5 + (nodes.idle() - request.total) / self._units * 0.5
        found: Ints = ((1.0 - left) * 100.0).astype("int64")
        return found

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """The fullest that have enough."""
        return fullest(nodes.free[0], request.units, request.devices)
