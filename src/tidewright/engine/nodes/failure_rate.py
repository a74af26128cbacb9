"""How often the world fails: what is believed beforehand, corrected by what is seen."""

from __future__ import annotations

from msgspec import Struct


class Failures(Struct):
    """Failures counted over the time that nodes were up; node-microseconds outgrow 64 bits only after centuries."""

    nodes_up: int = 0
    at: int = 0
    node_us: int = 0
    count: int = 0

    def advance(self, now: int) -> None:
        """Count the node-time until ``now``."""
        self.node_us += self.nodes_up * (now - self.at)
        self.at = now

    def nodes(self, now: int, up: int) -> None:
        """So many nodes are up from ``now`` on."""
        self.advance(now)
        self.nodes_up = up

    def mtbf_us(self, now: int, nodes: int, prior_us: int) -> int:
        """Mean time between failures of something on ``nodes`` nodes, microseconds.

        ``prior_us``, the believed mean time of one node, counts as one failure seen in that much node-time (the mean of a
        gamma-distributed rate); so a young pool goes by its prior and an old one by its own record.
        """
        self.advance(now)
        return (prior_us + self.node_us) // ((1 + self.count) * max(nodes, 1))
