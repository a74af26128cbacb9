"""What becomes of an agent, and of the ranks that it has, when its state directory is removed or replaced under it.

It ends: it could record nothing, and the next agent of that directory would know of none of its attempts. Ranks run on where the
controller's directory went as well (as they do whenever daemons end). Where the controller is still there it takes them for lost
and starts their jobs again: they are killed first, or two copies of a job would write to the same files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from ..base.paths import inode
from ..wire.holder import CONTROLLER_LOCK, Process, alive, end
from ..wire.own_directory import DirectoryLost, OwnDirectory, agent_lost_error, lost_error
from .processes.attempt import Attempt
from .processes.rank import Identity

log = logging.getLogger(__name__)
REMOVAL_S = 5.0
"""How long a removal of the controller's directory may take after that of the agent's. The controller, to which it is still
connected meanwhile, starts nothing anew."""
_LOOK_S = 0.1


class DirectoryWatch:
    """``own``: the agent's directory; ``controller``: that of its controller, empty where it has none on this machine."""

    def __init__(self, own: OwnDirectory, controller: str) -> None:
        self._own = own
        self._controller = None if not controller or _same(controller, own.state) else Path(controller)
        self._shared = bool(controller) and self._controller is None
        self._inode = inode(self._controller) if self._controller is not None else (0, 0)

    async def until_lost(self, attempts: Mapping[tuple[int, int], Attempt]) -> DirectoryLost:
        """Wait for it, and do with the ranks of these attempts what is to be done. What the agent ends with."""
        why = await self._own.until_lost()
        # Noted at once: what is looked up again meanwhile finds no records.
        ranks = [(key[0], rank.number, rank.shim, rank.main) for key, one in attempts.items() for rank in one.ranks]
        kills = await self._goes_on()
        left = [(job, number, shim, main) for job, number, shim, main in ranks if shim is not None and _alive(shim)]
        if names := ", ".join(f"job {job} rank {number} (shim {shim.pid})" for job, number, shim, _ in left):
            what = "their controller starts them anew, so these are killed" if kills else "these run on"
            log.error("%s: this agent ends; %s: %s", why, what, names)
        else:
            log.error("%s: this agent ends; it had no ranks", why)
        if kills:
            for _, _, shim, main in left:
                _kill(shim, main)
        return agent_lost_error(why) if kills else lost_error(why)

    async def _goes_on(self) -> bool:
        """Whether there is still a controller that knows of the ranks; one on another machine is taken to be there. Looked at for
        a while: a removal of the controller's directory takes some time, and may begin with this agent's."""
        if self._shared:
            return False
        until = time.monotonic() + REMOVAL_S
        while self._controller is not None and time.monotonic() < until:
            if inode(self._controller) != self._inode or not (self._controller / CONTROLLER_LOCK).exists():
                return False
            await asyncio.sleep(_LOOK_S)
        return True


def _alive(shim: Identity) -> bool:
    return alive(Process(shim.pid, shim.start))


def _kill(shim: Identity, main: Identity | None) -> None:
    """The shim first, which then reports nothing; a rank dies with it, and its init where it has one."""
    for identity in (shim, main):
        if identity is not None:
            end(Process(identity.pid, identity.start), signal.SIGKILL)


def _same(one: str, other: Path) -> bool:
    try:
        return os.path.samefile(one, other)
    except OSError:
        return False
