"""Our padding rule for NVIDIA devices: what may run on the multiprocessors (SMs) that a real-time kernel leaves.

Three conditions: SMs are left, the best-effort part ends no later than the real-time kernel, and the two are bound by different
resources (Orion, EuroSys'24). SMs on NVIDIA share L2 and memory, so that REEF's two conditions alone would not hold its bound.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

GPU_SHARES = (8, 16, 32, 64)
"""Multiprocessors that best-effort work is tried with beside real-time work, as a GPU of compute capability 9.0 can split
them."""
BY_PROFILE = 1
"""The share that a queue is granted where kernels are chosen one by one (Orion's policy): no number of multiprocessors."""


class Roofline(enum.Enum):
    """What bounds a kernel: arithmetic, memory, or it is not known."""

    COMPUTE = "compute"
    MEMORY = "memory"
    UNKNOWN = "unknown"


def roofline(flops: float, traffic_bytes: float, peak_flops: float, peak_bytes: float) -> Roofline:
    """The class of a kernel by its arithmetic intensity against the device's ridge (both peaks per second).

    UNKNOWN within a factor of 1.25 of the ridge, where neither resource is idle, and where nothing was counted.
    """
    if flops <= 0 and traffic_bytes <= 0:
        return Roofline.UNKNOWN
    if traffic_bytes <= 0:
        return Roofline.COMPUTE
    ratio = (flops / traffic_bytes) / (peak_flops / peak_bytes)
    if 0.8 <= ratio <= 1.25:
        return Roofline.UNKNOWN
    return Roofline.COMPUTE if ratio > 1 else Roofline.MEMORY


def opposite(one: Roofline, other: Roofline) -> bool:
    """Whether the two are bound by different resources. Orion also admits unknown kernels; here they are refused."""
    return Roofline.UNKNOWN not in (one, other) and one is not other


@dataclass(frozen=True, slots=True)
class GridKernel:
    """A kernel on an NVIDIA device: CTAs of its grid, resident CTAs of one SM, and times in nanoseconds.

    ``cta_ns`` is the time of one CTA with ``occupancy`` of them on its SM; ``total_ns`` that of the kernel alone on the device.
    """

    grid: int
    occupancy: int
    cta_ns: int
    total_ns: int
    bound: Roofline = Roofline.UNKNOWN

    @property
    def sms(self) -> int:
        """That it fills at its occupancy."""
        return -(-self.grid // self.occupancy)


@dataclass(frozen=True, slots=True)
class SmPadding:
    """``ctas`` of the head of queue ``queue`` on ``sms`` SMs, done after ``time_ns``."""

    queue: int
    sms: int
    ctas: int
    time_ns: int


def leftover_sms(rt: GridKernel, sms: int) -> int:
    """SMs that the real-time kernel does not need when its CTAs are packed at its occupancy."""
    return max(sms - rt.sms, 0)


def orion_admits(rt: GridKernel, be: GridKernel, sms: int) -> bool:
    """Orion's condition (EuroSys'24, section 5.2): the best-effort kernel fits on what the real-time one leaves, and is bound by
    another resource, or it is not known by which."""
    known = Roofline.UNKNOWN not in (rt.bound, be.bound)
    return be.sms <= leftover_sms(rt, sms) and not (known and rt.bound is be.bound)


def time_on(be: GridKernel, ctas: int, sms: int) -> int:
    """Nanoseconds for ``ctas`` CTAs on ``sms`` SMs, wave by wave."""
    return -(-ctas // (sms * be.occupancy)) * be.cta_ns


def select_on_leftover(
    rt: GridKernel,
    heads: Sequence[tuple[GridKernel, int] | None],
    sms: int,
    *,
    granularity: int = 8,
    whole: bool = False,
) -> SmPadding | None:
    """The first queue whose head, a kernel and its CTAs still to run, fits beside ``rt``; None where none does.

    ``granularity``: SMs are split by so many (8 on compute capability 9.0). With ``whole`` a kernel is taken only if all that is
    left of it fits, for nodes of a graph cannot be cut; otherwise as many whole waves as end in time.
    """
    share = leftover_sms(rt, sms) // granularity * granularity
    if not share:
        return None
    for at, head in enumerate(heads):
        if head is None or not opposite(rt.bound, head[0].bound):
            continue
        be, remaining = head
        ctas = min(rt.total_ns // be.cta_ns * share * be.occupancy, remaining)
        if ctas and (not whole or ctas == remaining):
            return SmPadding(at, share, ctas, time_on(be, ctas, share))
    return None
