"""What becomes of an agent, and of the ranks that it has, when its state directory is removed or replaced under it.

It ends: it could record nothing, and the next agent of that directory would know of none of its attempts. Ranks run on where the
controller's directory went as well (as they do whenever daemons end). Where the controller is still there it takes them for lost
and starts their jobs again: they are killed first, or two copies of a job would write to the same files.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from ..wire.holder import Process, end
from ..wire.own_directory import OwnDirectory
from .processes.attempt import Attempt
from .processes.rank import Rank

log = logging.getLogger(__name__)


class DirectoryWatch:
    """``own``: the agent's directory; ``controller``: that of its controller, empty where it has none on this machine."""

    def __init__(self, own: OwnDirectory, controller: str) -> None:
        self._own = own
        self._controller = None if not controller or _same(controller, own.state) else Path(controller)
        self._shared = bool(controller) and self._controller is None
        self._identity = _identity(self._controller)

    async def until_lost(self, attempts: Mapping[tuple[int, int], Attempt]) -> str:
        """Wait for it, and do with the ranks of these attempts what is to be done. What has become of the directory."""
        why = await self._own.until_lost()
        left = [(key[0], rank) for key, one in attempts.items() for rank in one.ranks if rank.shim_alive()]
        if names := ", ".join(
            f"job {job} rank {rank.number} (shim {rank.shim.pid})" for job, rank in left if rank.shim
        ):
            what = "their controller starts them anew, so these are killed" if self._goes_on() else "these run on"
            log.error("%s: this agent ends; %s: %s", why, what, names)
        else:
            log.error("%s: this agent ends; it had no ranks", why)
        if self._goes_on():
            for _, rank in left:
                _kill(rank)
        return why

    def _goes_on(self) -> bool:
        """Whether there is still a controller that knows of the ranks; one on another machine is taken to be there."""
        return not self._shared and _identity(self._controller) == self._identity


def _kill(rank: Rank) -> None:
    """The shim first, which then reports nothing; a rank dies with it, and its init where it has one."""
    for identity in (rank.shim, rank.main):
        if identity is not None:
            end(Process(identity.pid, identity.start), signal.SIGKILL)


def _same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False


def _identity(path: Path | None) -> tuple[int, int]:
    try:
        found = os.stat(path) if path is not None else None
    except OSError:
        found = None
    return (found.st_dev, found.st_ino) if found is not None else (0, 0)
