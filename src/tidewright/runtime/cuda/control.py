"""The control block of one best-effort queue, and what the gate does with it, as plain Python.

``gate_steps`` is the reference of the Triton source in ``gate`` and of the PTX in ``ptx``: it yields before every access
to memory, so that tests and models of a device can interleave CTAs and real-time work as they like. Knows no device;
the owner of the memory passes the words.

    word  name       written by
    0     GATE       relaunch: the start index. A CTA that aborts: CLOSED, which is sticky until the next relaunch
    1     RT_ACTIVE  real-time work: how many requests are under way. Nothing else writes it
    2     ABORTED    relaunch: CLOSED. A CTA that aborts: the smallest kernel index that was aborted
    3     START      relaunch: index of the first kernel that is not complete
    4+c   MARKS      1: CTA c of the partial kernel has not run

Kernels of a chain are numbered from 1 in launch order; a chain is one stream's launches, in order, each complete before
the next begins.
"""

from __future__ import annotations

from collections.abc import Generator, MutableSequence
from dataclasses import dataclass, field
from enum import Enum

GATE, RT_ACTIVE, ABORTED, START, MARKS = range(5)
CLOSED = 2**31 - 1
"""Largest int32: above every kernel index."""
WORD_BYTES = 4


class CtaDecision(Enum):
    """What a CTA does, decided once, at its entry."""

    RUN = "run"
    SKIP = "skip"
    """It has run before the preemption."""
    ABORT = "abort"
    """Its kernel is run again after the preemption."""


def words_needed(largest_grid: int) -> int:
    """int32 words of a control block for kernels of up to ``largest_grid`` CTAs. Raises ValueError below 1."""
    if largest_grid < 1:
        raise ValueError(f"a grid has at least one CTA, not {largest_grid}")
    return MARKS + largest_grid


GateSteps = Generator[None, None, CtaDecision]
"""One CTA at the gate: runs up to its next access to memory each time that it is advanced."""


def gate_steps(words: MutableSequence[int], kernel: int, cta: int) -> GateSteps:
    """The gate of CTA ``cta`` (its linear index) of ``kernel`` (from 1).

    The first access reads words 0 and 1 as one 64-bit load, which is why they are adjacent and lie on an 8-byte boundary.
    """
    yield
    gate, rt_active = words[GATE], words[RT_ACTIVE]
    if kernel > gate and not rt_active:
        return CtaDecision.RUN
    yield
    start = words[START]
    if kernel < start:
        return CtaDecision.SKIP
    if gate == CLOSED or rt_active:
        yield
        words[GATE] = CLOSED
        yield
        previous, words[ABORTED] = words[ABORTED], min(words[ABORTED], kernel)
        # Marks belong to the first aborted kernel. The kernel of a resumption keeps those that it came with.
        if previous >= kernel > start:
            yield
            words[MARKS + cta] = 1
        return CtaDecision.ABORT
    yield
    missing, words[MARKS + cta] = words[MARKS + cta], 0
    return CtaDecision.RUN if missing else CtaDecision.SKIP


def decide(words: MutableSequence[int], kernel: int, cta: int) -> CtaDecision:
    """``gate_steps`` without anything in between."""
    return finish(gate_steps(words, kernel, cta))


def finish(steps: GateSteps) -> CtaDecision:
    """Advance ``steps`` to its decision."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            decision: CtaDecision = done.value
            return decision


@dataclass(slots=True)
class ControlBlock:
    """A control block in host memory, and the operations of its queue. On a device the same words are written by graph nodes.

    ``relaunch`` and ``discard`` need a drained chain: no CTA of this queue is at the gate or running.
    """

    largest_grid: int
    words: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.words = [0] * words_needed(self.largest_grid)
        self.relaunch(0)

    def preempt(self) -> None:
        """Real-time work begins: CTAs abort from now on, also those of later kernels."""
        self.words[RT_ACTIVE] += 1

    def release(self) -> None:
        """Real-time work ends. A chain that has begun to abort goes on doing so until it is drained."""
        self.words[RT_ACTIVE] -= 1

    def relaunch(self, start: int) -> None:
        """Open the gate for a chain that resumes at kernel ``start``; 0 for a new one. Harmless while real-time work is
        active."""
        self.words[ABORTED] = CLOSED
        self.words[START] = start
        self.words[GATE] = start  # last: it is what opens the gate

    def resume(self) -> None:
        """Relaunch the drained chain where it was aborted. Raises ValueError for a chain that is complete."""
        if self.completed:
            raise ValueError("the chain is complete; relaunch(0) begins a new one")
        self.relaunch(self.words[ABORTED])

    def discard(self) -> None:
        """Forget a partial chain (its task was cancelled) and open the gate for a new one.

        Its marks must go: a later chain would take them for CTAs of its own partial kernel, and run those twice.
        """
        self.words[MARKS:] = [0] * self.largest_grid
        self.relaunch(0)

    @property
    def completed(self) -> bool:
        """Whether every CTA of the drained chain has run."""
        return self.words[ABORTED] == CLOSED

    @property
    def resume_index(self) -> int:
        """First kernel of the drained chain that is not complete; CLOSED where there is none."""
        return self.words[ABORTED]
