"""What the supervisor's steps have in common: the host's clocks, a node's services, and errors as the machine knows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ..base.errors import TideError
from ..checkpoint.criu.driver import DamagedImage, RanksLost
from ..checkpoint.cuda.checkpoint import DeviceStateLost
from ..checkpoint.files.space import is_full
from .checkpointing.checkpoint_io import CheckpointIO
from .checkpointing.gang import Gangs
from .checkpointing.images import Images
from .checkpointing.in_flight import ImageNotNeeded
from .machine import actions as do
from .machine.scripts import Instant
from .processes.attempt import Attempt
from .rendezvous.coordinator import RendezvousCoordinator

log = logging.getLogger(__name__)


def boottime() -> float:
    """Seconds since boot, sleep included: the only clock that means the same to the next agent."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> Instant:
    """By the clocks of this host."""
    return Instant(time.monotonic_ns() // 1000, time.time(), boottime())


@dataclass(frozen=True)
class Services:
    """What a node has beyond processes: gangs over several nodes, a rendezvous, full images."""

    gangs: Gangs
    rendezvous: RendezvousCoordinator
    checkpoint_io: CheckpointIO | None = None
    images: Images | None = None


async def nothing(attempt: Attempt | None, step: do.ActionStep) -> None:
    """What is to be done needs something that this node has not, and then there is nothing to be done."""


async def logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        log.exception("images could not be removed")


def failure(error: Exception) -> do.ActionFailed:
    """An error as the machine knows it; an unexpected one is logged."""
    if isinstance(error, do.ActionFailed):
        return error
    if not isinstance(error, TideError | OSError):
        log.error("a step failed with an unexpected error", exc_info=error)
    kinds: tuple[tuple[type[Exception], do.Failure], ...] = (
        (DamagedImage, "damaged image"),
        (DeviceStateLost, "device state lost"),
        (RanksLost, "ranks lost"),
        (ImageNotNeeded, "unneeded"),
    )
    kind: do.Failure = next((name for each, name in kinds if isinstance(error, each)), "")
    return do.ActionFailed(
        str(error) or type(error).__name__,
        kind,
        no_room=is_full(error),
        ranks=tuple(error.ranks) if isinstance(error, RanksLost) else (),
        cause=error if isinstance(error, TideError) else None,
    )
