"""When clients ask: DISB's closed loop, which drops late launches, and an open loop, which does not.

Pure: the next launch follows from ``now``, the seed and earlier calls. All times are whole nanoseconds since the beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from math import log
from random import Random
from typing import Literal

from ...base.rng import stream
from .workload import DisbLoad, DisbTask

SECOND_NS = 1_000_000_000
_MS_NS = 1_000_000


@dataclass(frozen=True, slots=True)
class IntendedLaunch:
    """``intended`` by the load; made at ``at``, later where the client was still busy."""

    intended: int
    at: int


def intended_times(load: DisbLoad, seed: int, name: str, delay: int = 0) -> Iterator[int]:
    """Every launch that a load intends, ascending: endless for periodic and poisson loads, none for continuous ones."""
    if load.type == "periodic":
        interval = int(SECOND_NS / load.frequency)
        yield from count(delay, interval)
    elif load.type == "poisson":
        yield from _poisson(load.frequency, stream(seed, "arrivals", name))
    elif load.type == "trace":
        yield from (at * _MS_NS for at in sorted(load.trace))


def _poisson(frequency: float, dice: Random) -> Iterator[int]:
    at = 0  # the first launch is at the beginning, as in DISB
    while True:
        yield at
        # DISB cuts intervals to whole microseconds; 1 - u is never 0.
        at += int(-log(1 - dice.random()) / frequency * 1_000_000) * 1_000


class ClosedLoop:
    """DISB's semantics: one request outstanding; a launch whose successor is due as well is dropped.

    Latencies under it hide queueing (coordinated omission): read them together with ``dropped``.
    """

    waits = True
    """Whether the next launch is known only when the client is idle."""

    def __init__(self, task: DisbTask, end: int, seed: int = 0, delay: int = 0) -> None:
        self.dropped = 0
        self._continuous = task.load.type == "continuous"
        self._end = end
        self._times = intended_times(task.load, seed, task.id, delay)
        self._next = next(self._times, None)

    def next_launch(self, now: int) -> IntendedLaunch | None:
        """The launch after the client became idle at ``now``; None when the load has ended."""
        if self._continuous:
            return IntendedLaunch(now, now) if now < self._end else None
        if self._next is None:
            return None
        following = next(self._times, None)
        while following is not None and following < now:
            self.dropped += 1
            self._next, following = following, next(self._times, None)
        launch, self._next = self._next, following
        return IntendedLaunch(launch, max(launch, now)) if launch < self._end else None


class OpenLoop:
    """Every intended launch is made when it is due, however many are outstanding. Closed (continuous) loads stay closed."""

    def __init__(self, task: DisbTask, end: int, seed: int = 0, delay: int = 0) -> None:
        self.dropped = 0
        self.waits = task.load.type == "continuous"
        self._end = end
        self._times = intended_times(task.load, seed, task.id, delay)

    def next_launch(self, now: int) -> IntendedLaunch | None:
        """The launch after that of ``now``; None when the load has ended."""
        intended = now if self.waits else next(self._times, self._end)
        return IntendedLaunch(intended, max(intended, now)) if intended < self._end else None


class DependentLoop:
    """Each request follows one of each of other clients (an inference graph). ``waits``: one request outstanding at a time, as in
    DISB; results that arrive meanwhile are kept, none is dropped."""

    dropped = 0

    def __init__(self, task: DisbTask, end: int, waits: bool) -> None:
        self.waits = waits
        self._end = end
        self._received = dict.fromkeys(task.load.prev_task_ids, 0)
        self._ready: deque[int] = deque()

    def received(self, client: str, now: int) -> None:
        """A request of another client is complete."""
        before = min(self._received.values())
        self._received[client] += 1
        if min(self._received.values()) > before:
            self._ready.append(now)

    def next_launch(self, now: int) -> IntendedLaunch | None:
        """The launch after the client became idle at ``now``; None until it has something to follow."""
        if not self._ready or now >= self._end:
            return None
        intended = self._ready.popleft()
        return IntendedLaunch(intended, max(intended, now))


DisbLoop = ClosedLoop | OpenLoop | DependentLoop


class DisbLoads:
    """The launches of all clients of a workload, and which of them wait for others. ``by_client``: the load of each."""

    def __init__(
        self,
        tasks: Iterable[DisbTask],
        loop: Literal["closed", "open"],
        end: int,
        seed: int = 0,
        delays: Mapping[str, int] = {},
    ) -> None:
        self.by_client: dict[str, DisbLoop] = {}
        self._followers: dict[str, list[str]] = {}
        self._idle: set[str] = set()
        """Clients that have nothing to follow at present."""
        for task in tasks:
            self.by_client[task.id] = _loop_of(task, loop, end, seed, delays.get(task.id, 0))
            for other in task.load.prev_task_ids:
                self._followers.setdefault(other, []).append(task.id)

    def next_launch(self, client: str, now: int) -> IntendedLaunch | None:
        """The next launch of a client that may make one at ``now``; None where it has none, or none yet (``completed``)."""
        launch = self.by_client[client].next_launch(now)
        if launch is None:
            self._idle.add(client)
        return launch

    def completed(self, client: str, now: int) -> list[str]:
        """A request of a client is complete. Returns those that may launch again because of it."""
        freed = []
        for follower in self._followers.get(client, ()):
            load = self.by_client[follower]
            assert isinstance(load, DependentLoop)
            load.received(client, now)
            if follower in self._idle:
                self._idle.discard(follower)
                freed.append(follower)
        return freed


def _loop_of(task: DisbTask, loop: Literal["closed", "open"], end: int, seed: int, delay: int) -> DisbLoop:
    if task.load.type == "dependent":
        return DependentLoop(task, end, loop == "closed")
    return OpenLoop(task, end, seed, delay) if loop == "open" else ClosedLoop(task, end, seed, delay)


def stagger(tasks: Iterable[DisbTask], standalone_ns: Mapping[str, int]) -> dict[str, int]:
    """Delay of each periodic client of priority 0: those of one frequency follow each other by their latencies alone.

    DISB's ``builtinLoadCoordinator``, which compares frequencies cut to whole numbers.
    """
    delays: dict[str, int] = {}
    taken: dict[int, int] = {}
    for task in tasks:
        if task.load.type == "periodic" and task.load.priority <= 0:
            frequency = int(task.load.frequency)
            delays[task.id] = taken.get(frequency, 0)
            taken[frequency] = delays[task.id] + standalone_ns[task.id]
    return delays
