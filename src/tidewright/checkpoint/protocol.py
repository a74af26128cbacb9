"""What every checkpoint driver can do: save, restore and discard, on this node or another.

A driver acts on the ranks of one attempt that are on this node. Its methods block and may be called from any thread,
for different attempts at once. Implementations pass ``tidewright.testing.checkpoint``.
"""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..base.units import SECOND
from ..model.job import Level
from .verdict import DriverVerdict

GANG_FREEZE_BOUND_US = 60 * SECOND
"""Longest hold of a gang without a barrier: far below torch's 30 minutes for gloo (10 for NCCL) process groups."""

EXIT_REQUEUE = 75
"""EX_TEMPFAIL of sysexits.h: a program that has saved itself on SIGTERM asks to be started again."""


class RankHandle(Struct, frozen=True, kw_only=True):
    """A running rank: its main process (pid and start time), its shim, and the marks its descendants bear."""

    rank: int
    pid: int
    start: int
    shim: int = 0
    init: int = 0
    """Host pid of the first process of the rank's own pid namespace; 0: it has none."""
    marker: str = ""
    """``NAME=value`` in the environment of everything the rank started."""
    cgroups: tuple[str, ...] = ()
    """Directories of the freezer groups made for this rank alone."""


class Gang(Struct, frozen=True, kw_only=True):
    """The ranks of one attempt on this node. ``world_size`` counts those elsewhere too."""

    job: int
    attempt: int
    world_size: int
    ranks: tuple[RankHandle, ...]
    grace_us: int = 30 * SECOND
    bounded: bool = False
    """The hold ends by itself within ``GANG_FREEZE_BOUND_US``; the caller of ``save`` ensures that."""


class GangImage(Struct, frozen=True, kw_only=True):
    """What a save left. ``home``: the only node it can be restored on (memory stayed there); empty: any node."""

    driver: str
    job: int
    attempt: int
    home: str = ""
    location: str = ""
    """Where its bytes are, a path or URL; empty when they are still in memory."""
    size_bytes: int = 0
    ranks: tuple[RankHandle, ...] = ()


class RestorePlacement(Struct, frozen=True, kw_only=True):
    """Where to restore: the node, and for each rank the cores it may use (missing or empty: as before)."""

    node: str
    cpus: dict[int, tuple[int, ...]] = {}


class Driver(Protocol):
    """One way to make ranks release their devices."""

    name: str
    level: Level

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        """Whether this gang on devices of ``kind`` can be saved now. Touches nothing."""
        ...

    def save(self, gang: Gang) -> GangImage | None:
        """Make the gang release its devices. None: it ends by itself within its grace, which its supervisor enforces.

        Raises WorldError, with the gang running as before.
        """
        ...

    def restore(self, image: GangImage, placement: RestorePlacement) -> None:
        """Resume the saved gang. No effect when it runs already. Raises WorldError; the image then stays good."""
        ...

    def discard(self, image: GangImage) -> None:
        """The image will never be restored: release what it holds. Idempotent."""
        ...
