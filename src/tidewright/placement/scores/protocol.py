"""What a placement score is. Third parties write one, run ``tidewright.testing.placements`` on it and register it."""

from __future__ import annotations

from typing import Protocol

from .columns import Floats, Ints, NodeColumns, ShareRequest


class PlacementScore(Protocol):
    """How good each node is for a request, and which devices of a node it gets. Pure: nothing is kept between calls."""

    @property
    def name(self) -> str:
        """Under which it is registered."""
        ...

    @property
    def repeatable(self) -> bool:
        """Whether a node's score follows from its row and the request alone, so that it may be kept until the row changes."""
        ...

    def score(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> Ints | Floats:
        """[N] higher is better, finite where the request fits; other rows may hold anything.

        The node with the highest one is taken, the first row among equals. ``draw`` is another number in each call of one run,
        for scores that are not repeatable. A row's score does not depend on which other rows are given.
        """
        ...

    def pick(self, nodes: NodeColumns, request: ShareRequest, draw: int) -> tuple[int, ...]:
        """``request.devices`` devices of the one node given, by index, ascending. It is only asked where the request fits."""
        ...
