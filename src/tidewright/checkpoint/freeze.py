"""Freeze in place: the ranks stop, their memory stays, their cores are free for others of the same node."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import psutil

from ..base.errors import WorldError
from ..base.units import format_bytes
from ..model.job import Level
from .cgroup import freezer_of
from .processes import members, set_affinity
from .protocol import Gang, GangImage, RestorePlacement
from .verdict import DriverVerdict

RESERVE_SHARE, RESERVE_LEAST = 20, 512 * 2**20
"""Host memory kept available for those that run on: a twentieth of it, and half a GiB at least."""


def host_reserve() -> int:
    """Bytes that must stay available on this host for a freeze to be allowed."""
    return max(int(psutil.virtual_memory().total) // RESERVE_SHARE, RESERVE_LEAST)


def host_available() -> int:
    """Bytes this host can still give without swapping (MemAvailable of proc(5))."""
    return int(psutil.virtual_memory().available)


class FreezeDriver:
    """``node`` is where this runs and hence the home of every image."""

    name = "freeze"
    level = Level.FREEZE

    def __init__(
        self,
        node: str,
        *,
        reserve: int | None = None,
        available: Callable[[], int] = host_available,
    ) -> None:
        self._node = node
        self._reserve = host_reserve() if reserve is None else reserve
        self._available = available

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        """Refused for accelerators, unbounded gangs, and when the host is short of memory."""
        if kind != "cpu":
            return DriverVerdict(
                False, f"a frozen job keeps its memory on the {kind}; no other job could use the device"
            )
        if gang.world_size > 1 and not gang.bounded:
            return DriverVerdict(False, f"{gang.world_size} ranks: their process group times out while they are frozen")
        free = self._available()
        if free < self._reserve:
            has, least = format_bytes(free), format_bytes(self._reserve)
            return DriverVerdict(False, f"the host has {has} of memory left, under its reserve of {least}")
        return DriverVerdict(True)

    def save(self, gang: Gang) -> GangImage:
        """All ranks stop, or all run on."""
        try:
            for handle in gang.ranks:
                freezer_of(handle).freeze(handle)
        except (OSError, WorldError) as error:
            for handle in gang.ranks:  # all of them: an agent that was killed here may have frozen them before
                with suppress(OSError, WorldError):
                    freezer_of(handle).thaw(handle)
            raise WorldError(f"not frozen: {error}") from error
        return GangImage(driver=self.name, job=gang.job, attempt=gang.attempt, home=self._node, ranks=gang.ranks)

    def restore(self, image: GangImage, placement: RestorePlacement) -> None:
        """Cores first, while no thread can be born that would miss them."""
        if placement.node != image.home:
            raise WorldError(f"frozen on {image.home}: its memory cannot go to {placement.node}")
        for handle in image.ranks:
            if cpus := placement.cpus.get(handle.rank):
                set_affinity(members(handle), cpus)
        for handle in image.ranks:
            freezer_of(handle).thaw(handle)

    def discard(self, image: GangImage) -> None:
        """The memory is the processes' own: thawed, they can be ended."""
        for handle in image.ranks:
            freezer_of(handle).thaw(handle)
