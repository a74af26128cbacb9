"""The consistent cut: all ranks of a gang stand still between the same operations, with nothing on its way.

To cut: *hold*, read what was issued, and let ranks go on as far as ``cutter`` finds. When every member of every group has
issued the same, all is *drained*, and when all is complete on every rank, connections are *dropped*. What happens when is
decided by ``machine``; here it is carried out on the nodes.

Refuses to know what a page looks like in memory, and where its node is.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence

import msgspec

from ...base.errors import WorldError
from . import machine as cm
from .cutter import LONGEST_STEP_US, UNHURRIED_STEP_US, Cutter, Key
from .machine import CutReport
from .pages import DROP, CutOrder, Cuts, Pages, PageState

__all__ = [
    "LONGEST_STEP_US",
    "UNHURRIED_STEP_US",
    "CutReport",
    "Cutter",
    "Cuts",
    "PageState",
    "Pages",
    "cut",
    "release",
]


def cut(parties: Sequence[Pages], *, timeout_us: int, longest_step_us: int = LONGEST_STEP_US) -> CutReport:
    """Bring all processes on all nodes to a standstill. Blocks; polls.

    Ranks whose training steps take no longer than ``longest_step_us`` go on to where one begins, two steps at most.
    Raises ``WorldError``, with all of them running on, when that takes longer than ``timeout_us``: it says which rank
    does not come. Without any control page there is nothing to cut, and a process that makes one now begins held.
    """
    machine = cm.CutMachine(secrets.randbits(62) + 1, timeout_us, longest_step_us)
    try:
        return _run(machine, parties)
    except WorldError:
        raise
    except BaseException:
        release(parties)
        raise


def _run(machine: cm.CutMachine, parties: Sequence[Pages]) -> CutReport:
    action = machine.begin(_now_us())
    cause: WorldError | None = None
    while not isinstance(action, cm.Finished):
        if isinstance(action, cm.CutFailed):
            raise WorldError(action.why) from cause
        event: cm.Event
        try:
            event = _do(action, parties)
        except WorldError as error:
            cause, event = cause or error, cm.Broke(str(error))
        action = machine.handle(event, _now_us())
    return action.report


def _now_us() -> int:
    return int(time.monotonic() * 1e6)


def _do(action: cm.Action, parties: Sequence[Pages]) -> cm.Event:
    """Carry it out on each node. Raises WorldError when one could not."""
    if isinstance(action, cm.Read):
        if action.after_us:
            time.sleep(action.after_us / 1e6)
        return cm.PagesRead({(at, p.job_rank, p.name): p for at, party in enumerate(parties) for p in party.read()})
    if isinstance(action, cm.ReleasePages):
        release(parties)
    for at, party in enumerate(parties):
        if isinstance(action, cm.HoldPages):
            party.hold()
        elif isinstance(action, cm.PublishLevel):
            party.publish(msgspec.structs.replace(action.cuts, orders=_orders(action.orders, at)))
    return cm.ActionDone()


def _orders(orders: Mapping[Key, Mapping[int, int]], at: int) -> tuple[CutOrder, ...]:
    """Those for one node."""
    return tuple(
        CutOrder(job_rank, name, index, number)
        for (party, job_rank, name), numbers in orders.items()
        if party == at
        for index, number in numbers.items()
    )


def release(parties: Sequence[Pages]) -> None:
    """Release all ranks. One that has dropped its connections reads reach.json again, and builds them anew.

    Every party is tried; the first failure is raised at the end.
    """
    failure: Exception | None = None
    dropped = False
    for party in parties:
        try:
            dropped = dropped or any(page.phase == DROP for page in party.read() if not page.closed)
        except Exception as error:
            failure = failure or error
    for party in parties:
        try:
            if dropped:  # at one end: those that have drained at the other drop theirs, too, and build them anew
                party.publish(Cuts(DROP))
            party.release()
        except Exception as error:
            failure = failure or error
    if failure is not None:
        raise failure
