"""Best-effort work launched kernel by kernel, a few at once: what is launched runs to its end, the rest is held back. No device
here: kernels are launched, and heard of, by the caller.

The policies are those of published systems, written again: REEF-N (OSDI'22, its version for NVIDIA) holds everything back
while real-time work runs; Orion (EuroSys'24, section 5) goes on with kernels that leave the real-time kernel its
multiprocessors and are bound by another resource, as long as they are short.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..padding.nvidia_rule import GridKernel, orion_admits

DEPTH = 2
"""Kernels of a queue on the device at once (REEF's cap for NVIDIA)."""
ORION_SHARE = 0.025
"""Of the real-time model's time, that best-effort kernels may take at once beside it (Orion's DUR_THRESHOLD)."""


@dataclass(slots=True)
class RealTimeProgress:
    """The real-time task on the device: its kernels and their times alone, from which follows which of them runs now."""

    sms: int
    clock: Callable[[], int] = time.monotonic_ns
    kernels: Sequence[GridKernel] = ()
    active: bool = False
    _ends: list[int] = field(default_factory=list)
    _at: int = 0

    def begin(self, kernels: Sequence[GridKernel]) -> None:
        """A task was launched."""
        self.kernels, self.active, self._at = kernels, True, 0
        self._ends, now = [], self.clock()
        for kernel in kernels:
            now += kernel.total_ns
            self._ends.append(now)

    def end(self) -> None:
        """It is over."""
        self.active = False

    def admits(self, kernel: GridKernel, beside_ns: int) -> bool:
        """Whether Orion would launch a best-effort kernel now, with others of ``beside_ns`` in all on the device."""
        if not self.active:
            return True
        now = self.clock()
        while self._at < len(self._ends) and self._ends[self._at] <= now:
            self._at += 1
        if self._at == len(self.kernels):
            return False  # later than when it was alone: what it runs is not known
        whole_ns = sum(one.total_ns for one in self.kernels)
        short = not beside_ns or beside_ns + kernel.total_ns <= ORION_SHARE * whole_ns
        return short and orion_admits(self.kernels[self._at], kernel, self.sms)


class ThrottledChain:
    """A task of a model: its ``kernels`` launched in order by ``launch(at)``, which returns what is asked whether it has ended.
    ``by_profile``: Orion's policy while real-time work runs, else REEF-N's."""

    def __init__(
        self, kernels: Sequence[GridKernel], launch: Callable[[int], Callable[[], bool]], progress: RealTimeProgress
    ) -> None:
        self._kernels, self._launch, self._progress = kernels, launch, progress
        self._next = len(kernels)
        self._flight: deque[tuple[Callable[[], bool], int]] = deque()
        """What asks whether a kernel has ended, and its time alone."""
        self.by_profile = False

    def begin(self) -> None:
        """A task from its first kernel."""
        self._next = 0

    def discard(self) -> None:
        """Forget the task. Nothing of it is on the device."""
        self._next = len(self._kernels)

    @property
    def complete(self) -> bool:
        """Whether all kernels have run."""
        return self._next == len(self._kernels) and not self._flight

    def pump(self, held: bool) -> bool:
        """Launch what may be launched now; ``held``: nothing. Returns whether nothing of it is on the device."""
        while self._flight and self._flight[0][0]():
            self._flight.popleft()
        while not held and self._next < len(self._kernels) and len(self._flight) < DEPTH and self._admitted():
            kernel = self._kernels[self._next]
            self._flight.append((self._launch(self._next), kernel.total_ns))
            self._next += 1
        return not self._flight

    def _admitted(self) -> bool:
        if not self.by_profile:
            return not self._progress.active
        beside_ns = sum(took for _, took in self._flight)
        return self._progress.admits(self._kernels[self._next], beside_ns)
