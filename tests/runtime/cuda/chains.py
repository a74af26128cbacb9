"""A model of one stream's chain at the gate: CTAs of one kernel interleaved step by step, real-time work at any moment.

``gate`` and ``relaunch`` are arguments, so that known-wrong ones can be put in their place.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tidewright.runtime.cuda.control import (
    ABORTED,
    CLOSED,
    GATE,
    MARKS,
    START,
    ControlBlock,
    CtaDecision,
    GateSteps,
    gate_steps,
)

Gate = Callable[[list[int], int, int], GateSteps]


@dataclass
class Chain:
    """``grids[k-1]`` is the grid of kernel k. ``ran`` lists (kernel, CTA) in the order in which bodies were entered."""

    grids: Sequence[int]
    seed: int
    gate: Gate = gate_steps
    toggle_chance: float = 0.05
    """That real-time work begins or ends between two steps."""
    width: int = 4
    """CTAs of a kernel that are resident at once."""
    ran: list[tuple[int, int]] = field(default_factory=list)
    launches: int = 0
    partial: int = 0
    """Launches that ended with some CTAs of a kernel run and others not."""

    def __post_init__(self) -> None:
        self.block = ControlBlock(max(self.grids))
        self.random = random.Random(self.seed)

    def launch(self) -> None:
        """Every kernel once, to its end."""
        self.launches += 1
        before = len(self.ran)
        for kernel, grid in enumerate(self.grids, 1):
            self._kernel(kernel, grid)
        total = Counter(kernel for kernel, _ in self.ran)
        self.partial += any(total[kernel] < self.grids[kernel - 1] for kernel, _ in self.ran[before:])

    def _kernel(self, kernel: int, grid: int) -> None:
        waiting, resident = list(range(grid)), {}
        while waiting or resident:
            self._real_time()
            while waiting and len(resident) < self.width:
                cta = waiting.pop(0)
                resident[cta] = self.gate(self.block.words, kernel, cta)
            cta = self.random.choice(list(resident))
            try:
                next(resident[cta])
            except StopIteration as done:
                del resident[cta]
                if done.value is CtaDecision.RUN:
                    self.ran.append((kernel, cta))

    def _real_time(self) -> None:
        if self.random.random() < self.toggle_chance:
            self.block.release() if self.block.words[1] else self.block.preempt()

    def finish(self, most_launches: int = 200) -> None:
        """Launch and resume until the chain is complete. Real-time work stays away after ``most_launches``; a chain that
        is not complete after twice as many never is, and is left as it is."""
        self.launch()
        while not self.block.completed and self.launches < 2 * most_launches:
            self.block.resume()
            if self.launches >= most_launches:
                self.toggle_chance = 0
                while self.block.words[1]:
                    self.block.release()
            self.launch()

    @property
    def expected(self) -> list[tuple[int, int]]:
        return [(kernel, cta) for kernel, grid in enumerate(self.grids, 1) for cta in range(grid)]

    @property
    def exact(self) -> bool:
        """Whether each CTA ran exactly once, and none before all of the kernels before its own."""
        return sorted(self.ran) == self.expected and [kernel for kernel, _ in self.ran] == [k for k, _ in self.expected]


def not_sticky(words: list[int], kernel: int, cta: int) -> GateSteps:
    """The gate without the write that closes it: real-time work shorter than the drain opens it in the middle of the chain."""
    yield
    gate, rt_active = words[GATE], words[1]
    if kernel > gate and not rt_active:
        return CtaDecision.RUN
    if kernel < words[START]:
        return CtaDecision.SKIP
    if rt_active:
        yield
        previous, words[ABORTED] = words[ABORTED], min(words[ABORTED], kernel)
        if previous >= kernel > words[START]:
            words[MARKS + cta] = 1
        return CtaDecision.ABORT
    missing, words[MARKS + cta] = words[MARKS + cta], 0
    return CtaDecision.RUN if missing else CtaDecision.SKIP


def whole_kernels(words: list[int], kernel: int, cta: int) -> GateSteps:
    """The resumed kernel runs from its beginning, as if kernels were idempotent."""
    decision = yield from gate_steps(words, kernel, cta)
    if decision is CtaDecision.SKIP and kernel == words[START] and words[GATE] != CLOSED and not words[1]:
        return CtaDecision.RUN
    return decision


def marks_again(words: list[int], kernel: int, cta: int) -> GateSteps:
    """A resumed kernel that is aborted again marks all of its CTAs, also those that have run."""
    decision = yield from gate_steps(words, kernel, cta)
    if decision is CtaDecision.ABORT and kernel == words[START]:
        words[MARKS + cta] = 1
    return decision
