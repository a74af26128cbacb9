"""A plan: moves proposed against one revision of the book, and when another planning round could be worth it."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from ..model.view import View
from .moves import Move
from .reasons import Blocked


class ArrivalDelay(Struct, frozen=True, array_like=True):
    """Arrivals for which no plan need be made at once: jobs of this tier that ask for more devices than are free beside ``kept``
    ones. A plan is due for them within ``within_us``, and within ``share * expected - less_us`` for each pair of ``due``, where
    their users expect them to run for ``expected`` (microseconds).

    Those without such an estimate or with a deadline, replicas, and jobs that ask for shares of devices are not among them.
    """

    tier: int
    kept: int
    within_us: int
    due: tuple[tuple[float, int], ...] = ()


class Wake(Struct, frozen=True, omit_defaults=True):
    """What makes another planning round worthwhile. Node changes, user holds and settings always wake.

    ``at`` is an absolute time in microseconds (zero: none); ``min_free`` skips freed devices until that many are free;
    ``behind`` skips arrivals of jobs with greater ids before ``behind_until`` (zero: none), for policies that would not look at
    them. ``after_run`` (microseconds): another plan is due so long after a job has begun to run, since it may be preempted then
    (0: at once; -1: that is no reason). When a job of ``on_end`` releases its devices, that always wakes. ``arrival_delay``:
    which arrivals may wait for their plan, where arrivals wake.
    """

    on_arrival: bool = True
    on_free: bool = True
    min_free: int = 0
    at: int = 0
    behind: int = 0
    behind_until: int = 0
    after_run: int = -1
    on_end: tuple[int, ...] = ()
    arrival_delay: ArrivalDelay | None = None


class PolicyState(Struct, frozen=True):
    """What a policy remembers from one plan to the next: the MessagePack of the Struct that it declares as ``state_type``.

    It is part of the plan, hence of the journal, of snapshots and of forks; a planner itself remembers nothing.
    """

    policy: str
    data: bytes


class Plan(Struct, frozen=True, omit_defaults=True):
    """``moves`` land in order. ``gangs`` are runs (start, stop) of moves that land together or not at all.

    ``blocked`` says why the jobs the planner looked at could not start; others wait behind them in ``order``.
    """

    basis: int
    moves: tuple[Move, ...] = ()
    gangs: tuple[tuple[int, int], ...] = ()
    wake: Wake = Wake()
    blocked: tuple[Blocked, ...] = ()
    state: PolicyState | None = None
    """What the planner is to be shown with the next view; None: what it was shown with this one."""


class Planner(Protocol):
    """Anything that turns a view into a plan: same view, same plan, no clock, no I/O."""

    name: str

    def plan(self, view: View) -> Plan: ...
