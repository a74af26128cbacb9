"""State of one stream of the device model: its chains in order, and the exact progress of the first.

A chain is a linear sequence of kernels; at most one kernel of a stream is partly done. It refuses to know time and other streams.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from .kernels import CtaKernel, KernelChain

OnDone = Callable[[int], None]
"""Called with the nanosecond at which a chain is complete."""


class ChainState(enum.Enum):
    """STARTING: a node start is on its way. READY: CTAs may start. CLOSED: no CTA starts until relaunched, residents run on.
    PARKED: closed, and nothing of it is on the device. HELD: waits at a kernel boundary."""

    STARTING = "starting"
    READY = "ready"
    CLOSED = "closed"
    PARKED = "parked"
    HELD = "held"


@dataclass(slots=True, eq=False)
class ChainRun:
    """One inference. ``started`` and ``finished`` count CTAs of kernel ``at``; ``base`` is where its segment begins."""

    chain: KernelChain
    on_done: OnDone
    state: ChainState = ChainState.PARKED
    at: int = 0
    started: int = 0
    finished: int = 0
    padded: int = 0
    """Cohorts of other streams that share the launch of kernel ``at`` and must end with it."""
    base: int = 0
    floor: int = 0
    """Kernel at which a killed chain was last resumed: earlier ones are never run again."""
    generation: int = 0
    """Raised by every launch and close, so that a node start on its way from before is ignored."""
    ctas_done: list[int] = field(default_factory=list)
    """CTAs that ran to their end, by kernel; re-execution makes it exceed the grid."""
    work: list[int] = field(default_factory=list)
    """Capacity times nanoseconds spent on each kernel since it was last (re)started."""

    @property
    def kernel(self) -> CtaKernel:
        return self.chain.kernels[self.at]

    @property
    def waiting(self) -> int:
        """CTAs of the present kernel that have not started."""
        return self.kernel.blocks - self.started

    @property
    def resident(self) -> int:
        return self.started - self.finished


@dataclass(slots=True, eq=False)
class SmPartition:
    """Some of the SMs, of ``capacity`` in all, to which streams are confined. Streams without one may use them as well."""

    capacity: int
    used: int = 0


@dataclass(slots=True, eq=False)
class ModelStream:
    """``priority``: higher goes first. ``gated``: its CTAs read the flag. ``partition``: where it is confined to, if it is."""

    name: str
    priority: int = 0
    gated: bool = False
    partition: SmPartition | None = None
    kernel_gap_ns: int = 0
    """What the host adds before every kernel of this stream."""
    padding: SmPartition | None = None
    """Where a gated stream goes on while the flag is up; None: it waits."""
    stopped: bool = False
    """Whether chains that come to the head are parked instead of launched."""
    limit: int | None = None
    """The first kernel that the host does not issue while the stream is held; None when it is not held."""
    ready_since: int = 0
    chains: deque[ChainRun] = field(default_factory=deque)
    cohorts: list[Cohort] = field(default_factory=list)
    executed: int = 0
    """Capacity times nanoseconds of all CTAs, the wasted ones included."""
    wasted: int = 0
    """That of CTAs that were killed, and of those whose work is done again."""

    @property
    def head(self) -> ChainRun | None:
        return self.chains[0] if self.chains else None


@dataclass(slots=True, eq=False)
class Cohort:
    """CTAs of one kernel that started in the same instant and end together; ``capacity`` is what they take of the device."""

    stream: ModelStream
    run: ChainRun
    ctas: int
    capacity: int
    began: int
    partition: SmPartition | None
    host: tuple[ModelStream, ChainRun] | None = None
    """The chain in whose launch these CTAs run as padding."""
    killed: bool = False
    watchers: list[PreemptionWatch] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class PreemptionWatch:
    """A raised flag that waits for the last of ``left`` cohorts to leave the device."""

    raised: int
    left: int
