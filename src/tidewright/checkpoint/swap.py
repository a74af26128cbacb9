"""Turns of ranks on a GPU whose memory does not hold all of them: device memory is swapped out and in between turns.

The ranks ask in their boxes (``_tidewright.splice.SwapTurn``); this is the agent's side, for the ranks of one device. A
rank that computes without having the turn is held back by the driver, so a late word costs time, never results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ..base.errors import WorldError
from ..base.units import SECOND
from .cuda import CudaCheckpoint, DeviceStateLost

QUANTUM_US = 30 * SECOND
"""A turn ends by force when others want theirs for that long: the holder may wait for them where nobody sees it."""
IDLE_US = SECOND // 20
"""When nobody wants a turn for that long, all have one in order: a collective may have device work left to do."""
LOOK_S = 0.001
CONTEXT_SHARE = 20
"""One part in so many of the device's memory is left for what the driver keeps besides allocations."""


class Sharer(NamedTuple):
    """A rank that shares the device: its processes that use CUDA, its box, and the device memory it needs, bytes."""

    rank: int
    pids: tuple[int, ...]
    box: Path
    need: int


def way(needs: Sequence[int], memory: int) -> str:
    """``lock`` when the device's memory holds all of ``needs`` (bytes) at once, else ``swap``; for reach.json."""
    return "lock" if sum(needs) <= memory - memory // CONTEXT_SHARE else "swap"


class SwapTurns:
    """Passes the turn on. ``clock`` counts microseconds. One thread at a time may use it.

    As many ranks as fit stay on the device. Who must make room is the one that had its turn last: turns go round, so
    of all it is the one that is needed again last.
    """

    def __init__(
        self,
        cuda: CudaCheckpoint,
        sharers: Sequence[Sharer],
        memory: int,
        clock: Callable[[], int],
    ) -> None:
        self._cuda, self._clock = cuda, clock
        self._room = memory - memory // CONTEXT_SHARE
        self._ring = list(sharers)
        self._inside = list(sharers)
        """On the device, those that had the turn most recently last."""
        self._holder: Sharer | None = None
        self._since = self._quiet_since = clock()

    @property
    def holder(self) -> int | None:
        """The rank whose turn it is."""
        return self._holder.rank if self._holder is not None else None

    def begin(self, *, saved: bool = False) -> None:
        """Make room until what is inside fits. ``saved``: all are out already, as after a restore.

        Raises WorldError, as ``step`` does: the ranks can then not share the device in turns.
        """
        for sharer in self._ring:
            say(sharer.box / "turn", False)
        if saved:
            self._inside = []
        while sum(each.need for each in self._inside) > self._room:
            self._put_out(self._inside[-1])

    def step(self) -> None:
        """Look once, and pass the turn on when it is due."""
        now = self._clock()
        wanting = [each for each in self._ring if wants(each)]
        if wanting:
            self._quiet_since = now
        holder = self._holder
        if holder is not None and holder in wanting and (now - self._since < QUANTUM_US or wanting == [holder]):
            return
        if not wanting and now - max(self._quiet_since, self._since) < IDLE_US:
            return
        successor = self._after(holder, wanting or self._ring)
        if successor is not None and successor is not holder:
            self._pass(successor, now)

    def _after(self, holder: Sharer | None, among: Sequence[Sharer]) -> Sharer | None:
        """The next in the ring."""
        start = self._ring.index(holder) + 1 if holder is not None else 0
        order = self._ring[start:] + self._ring[:start]
        return next((each for each in order if each in among), None)

    def _pass(self, successor: Sharer, now: int) -> None:
        if self._holder is not None:
            say(self._holder.box / "turn", False)
        if successor not in self._inside:
            while self._inside and sum(each.need for each in self._inside) + successor.need > self._room:
                self._put_out(self._inside[-1])
            self._bring_in(successor)
        else:
            self._inside.remove(successor)
        self._inside.append(successor)
        self._holder, self._since = successor, now
        say(successor.box / "turn", True)

    def _bring_in(self, sharer: Sharer) -> None:
        """Somebody may need more than was measured: then everybody else makes room."""
        try:
            self._cuda.resume(sharer.pids)
        except DeviceStateLost:
            raise
        except WorldError:
            if not self._inside:
                raise
            while self._inside:
                self._put_out(self._inside[-1])
            self._cuda.resume(sharer.pids)

    def _put_out(self, sharer: Sharer) -> None:
        self._cuda.suspend(sharer.pids)
        self._inside.remove(sharer)

    def end(self, rank: int) -> None:
        """A rank has ended, or left the device."""
        self._ring = [each for each in self._ring if each.rank != rank]
        self._inside = [each for each in self._inside if each.rank != rank]
        if self._holder is not None and self._holder.rank == rank:
            self._holder = None

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. Raises WorldError as ``step`` does."""
        self.begin()
        while not stop.wait(LOOK_S):
            self.step()


def wants(sharer: Sharer) -> bool:
    """Whether a rank has asked for its turn."""
    try:
        return (sharer.box / "wants").read_bytes()[:1] == b"1"
    except FileNotFoundError:
        return False


def say(path: Path, word: bool) -> None:
    """One byte, replaced in place: the rank looks at it all the time."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(handle, b"1" if word else b"0", 0)
    finally:
        os.close(handle)
