"""Watching shims: a pidfd each in the event loop (no polling), and a check now and then for what slipped through."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from .attempt import Attempt
from .rank import Rank

OnGone = Callable[[Attempt, Rank], None]


class ShimWatch:
    """Calls ``on_gone`` once for each shim that is no more; must live in a running event loop."""

    def __init__(self, on_gone: OnGone) -> None:
        self._on_gone = on_gone
        self._watched: dict[Rank, Attempt] = {}

    def add(self, attempt: Attempt, rank: Rank) -> None:
        """Watch a rank's shim; one that is gone already is reported soon."""
        loop = asyncio.get_running_loop()
        if rank in self._watched:
            return
        self._watched[rank] = attempt
        pidfd = self._open(rank)
        if pidfd is None:
            loop.call_soon(self._gone, rank)
            return
        rank.pidfd = pidfd
        loop.add_reader(pidfd, self._gone, rank)

    @staticmethod
    def _open(rank: Rank) -> int | None:
        """A pidfd of the very shim: opened first, then checked, so that the pid cannot be reused in between."""
        if rank.shim is None:
            return None
        try:
            pidfd = os.pidfd_open(rank.shim.pid)
        except OSError:
            return None
        if not rank.shim_alive():
            os.close(pidfd)
            return None
        return pidfd

    def drop(self, rank: Rank) -> None:
        """Watch a rank's shim no more."""
        if self._watched.pop(rank, None) is not None and rank.pidfd is not None:
            asyncio.get_running_loop().remove_reader(rank.pidfd)
            rank.close()

    def _gone(self, rank: Rank) -> None:
        attempt = self._watched.pop(rank, None)
        if rank.pidfd is not None:
            asyncio.get_running_loop().remove_reader(rank.pidfd)
        if attempt is not None:
            self._on_gone(attempt, rank)

    def check(self) -> None:
        """Find shims whose end the kernel did not announce."""
        for rank in [rank for rank in self._watched if not rank.shim_alive()]:
            self._gone(rank)

    def close(self) -> None:
        """Watch nothing any more."""
        for rank in list(self._watched):
            if rank.pidfd is not None:
                asyncio.get_running_loop().remove_reader(rank.pidfd)
            rank.close()
        self._watched.clear()
