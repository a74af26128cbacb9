"""The contract with programs that save themselves: SIGTERM, a grace period, exit code 75 ("requeue me").

The same signal serves programs that save nothing: they are queued again and start from the beginning.
"""

from __future__ import annotations

import signal

from ..base.errors import WorldError
from ..model.job import Level
from .processes import alive, send
from .protocol import Gang, GangImage, RestorePlacement
from .verdict import DriverVerdict


class CooperativeDriver:
    """``level`` COOPERATIVE, or REQUEUE for programs that promise nothing."""

    name = "cooperative"

    def __init__(self, level: Level = Level.COOPERATIVE) -> None:
        self.level = level

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        return DriverVerdict(True)

    def save(self, gang: Gang) -> GangImage | None:
        """Only main processes get the signal: a data loader that ends first would spoil the save."""
        mains = [handle.pid for handle in gang.ranks if alive(handle.pid, handle.start)]
        send(mains, signal.SIGTERM)
        send(mains, signal.SIGCONT)  # one that has stopped itself would not hear of it
        return None

    def restore(self, image: GangImage, placement: RestorePlacement) -> None:
        raise WorldError("a program that saved itself is restored by starting it again")

    def discard(self, image: GangImage) -> None:
        """What the program saved is its own."""
