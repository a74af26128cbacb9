"""What the supervisor's steps have in common: the host's clocks, a node's equipment, and errors as the machine knows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from ..base.errors import TideError
from ..checkpoint.criu import DamagedImage, RanksLost
from ..checkpoint.cuda import DeviceStateLost
from ..checkpoint.space import is_full
from .attempt import Attempt
from .gang import Gangs
from .images import Images
from .in_flight import Unneeded
from .machine import actions as do
from .machine.scripts import Instant
from .rendezvous.coordinator import RendezvousCoordinator
from .saves import Saves

log = logging.getLogger(__name__)


def boottime() -> float:
    """Seconds since boot, sleep included: the only clock that means the same to the next agent."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def now() -> Instant:
    """By the clocks of this host."""
    return Instant(time.monotonic_ns() // 1000, time.time(), boottime())


@dataclass(frozen=True)
class Services:
    """What a node has beyond processes: gangs over several nodes, a place where ranks meet, full images."""

    gangs: Gangs
    meeting: RendezvousCoordinator
    saves: Saves | None = None
    images: Images | None = None


async def nothing(attempt: Attempt | None, step: do.Step) -> None:
    """What is to be done needs something that this node has not, and then there is nothing to be done."""


async def logged(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception:
        log.exception("images could not be removed")


def failure(error: Exception) -> do.ActionFailed:
    """An error as the machine knows it; one that is nobody's fault is logged."""
    if isinstance(error, do.ActionFailed):
        return error
    if not isinstance(error, TideError | OSError):
        log.error("a step failed in an unforeseen way", exc_info=error)
    kinds: tuple[tuple[type[Exception], do.Failure], ...] = (
        (DamagedImage, "damaged image"),
        (DeviceStateLost, "device state lost"),
        (RanksLost, "ranks lost"),
        (Unneeded, "unneeded"),
    )
    kind: do.Failure = next((name for each, name in kinds if isinstance(error, each)), "")
    return do.ActionFailed(
        str(error) or type(error).__name__,
        kind,
        no_room=is_full(error),
        ranks=tuple(error.ranks) if isinstance(error, RanksLost) else (),
        cause=error if isinstance(error, TideError) else None,
    )
