"""Time slices of ranks on a GPU whose memory does not hold all of them: device memory is swapped out and in between slices.

The ranks request them in their rank directories (``_tidewright.splice.SwapShare``); this is the agent's side, for the ranks of
one device. The driver blocks the CUDA calls of a rank without the time slice, so a late grant costs time, never results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from ...base.errors import WorldError
from ...base.units import SECOND
from .checkpoint import CudaCheckpoint, DeviceStateLost

QUANTUM_US = 30 * SECOND
"""A time slice ends after this long when others request one: its rank may wait for them unseen."""
IDLE_US = SECOND // 20
"""Without a request for this long, all get a time slice in order: a collective may have device work left to do."""
LOOK_S = 0.001
CONTEXT_SHARE = 20
"""One part in so many of the device's memory is left for what the driver keeps besides allocations."""


class DeviceSharer(NamedTuple):
    """A rank that shares the device: its processes that use CUDA, its directory, and the device memory it needs, bytes."""

    rank: int
    pids: tuple[int, ...]
    rank_dir: Path
    need: int


def share_mode(needs: Sequence[int], memory: int) -> str:
    """``lock`` when the device's memory holds all of ``needs`` (bytes) at once, else ``swap``; for reach.json."""
    return "lock" if sum(needs) <= memory - memory // CONTEXT_SHARE else "swap"


class SwapTimeSlicer:
    """Grants the time slices, one rank at a time. ``clock`` counts microseconds. One thread at a time may use it.

    As many ranks as fit stay on the device. The one with the most recent time slice is swapped out first: slices go round, so
    of all it is the one that is needed again last.
    """

    def __init__(
        self,
        cuda: CudaCheckpoint,
        sharers: Sequence[DeviceSharer],
        memory: int,
        clock: Callable[[], int],
    ) -> None:
        self._cuda, self._clock = cuda, clock
        self._room = memory - memory // CONTEXT_SHARE
        self._ring = list(sharers)
        self._resident = list(sharers)
        """On the device, the one with the most recent time slice last."""
        self._holder: DeviceSharer | None = None
        self._since = self._quiet_since = clock()

    @property
    def holder(self) -> int | None:
        """The rank with the time slice."""
        return self._holder.rank if self._holder is not None else None

    def begin(self, *, saved: bool = False) -> None:
        """Swap out until the resident ranks fit. ``saved``: all are swapped out already, as after a restore.

        Raises WorldError, as ``step`` does: the ranks can then not share the device by swapping.
        """
        for sharer in self._ring:
            write_flag(sharer.rank_dir / "turn", False)
        if saved:
            self._resident = []
        while sum(each.need for each in self._resident) > self._room:
            self._swap_out(self._resident[-1])

    def step(self) -> None:
        """Look once, and grant the next time slice when it is due."""
        now = self._clock()
        wanting = [each for each in self._ring if is_requesting(each)]
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

    def _after(self, holder: DeviceSharer | None, among: Sequence[DeviceSharer]) -> DeviceSharer | None:
        """The next in the ring."""
        start = self._ring.index(holder) + 1 if holder is not None else 0
        order = self._ring[start:] + self._ring[:start]
        return next((each for each in order if each in among), None)

    def _pass(self, successor: DeviceSharer, now: int) -> None:
        if self._holder is not None:
            write_flag(self._holder.rank_dir / "turn", False)
        if successor not in self._resident:
            while self._resident and sum(each.need for each in self._resident) + successor.need > self._room:
                self._swap_out(self._resident[-1])
            self._swap_in(successor)
        else:
            self._resident.remove(successor)
        self._resident.append(successor)
        self._holder, self._since = successor, now
        write_flag(successor.rank_dir / "turn", True)

    def _swap_in(self, sharer: DeviceSharer) -> None:
        """A rank may need more than was measured: then all others are swapped out."""
        try:
            self._cuda.resume(sharer.pids)
        except DeviceStateLost:
            raise
        except WorldError:
            if not self._resident:
                raise
            while self._resident:
                self._swap_out(self._resident[-1])
            self._cuda.resume(sharer.pids)

    def _swap_out(self, sharer: DeviceSharer) -> None:
        self._cuda.suspend(sharer.pids)
        self._resident.remove(sharer)

    def end(self, rank: int) -> None:
        """A rank has ended, or left the device."""
        self._ring = [each for each in self._ring if each.rank != rank]
        self._resident = [each for each in self._resident if each.rank != rank]
        if self._holder is not None and self._holder.rank == rank:
            self._holder = None

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. Raises WorldError as ``step`` does."""
        self.begin()
        while not stop.wait(LOOK_S):
            self.step()


def is_requesting(sharer: DeviceSharer) -> bool:
    """Whether a rank requests a time slice."""
    try:
        return (sharer.rank_dir / "wants").read_bytes()[:1] == b"1"
    except FileNotFoundError:
        return False


def write_flag(path: Path, word: bool) -> None:
    """One byte, replaced in place: the rank polls it."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(handle, b"1" if word else b"0", 0)
    finally:
        os.close(handle)
