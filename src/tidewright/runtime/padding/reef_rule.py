"""REEF's dynamic kernel padding: which best-effort blocks share a launch with one real-time kernel.

The selection of ``REEFScheduler::dynamic_kernel_padding`` (server/scheduler.cpp), step by step, for any number of compute
units. Two properties of the original are kept: the first fitting queue wins even when no compute unit is left for it (its
blocks are then 0, and the merged kernel is launched for nothing), and its blocks count as done when the real-time kernel is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .occupancy import Occupancy, reef_occupancy
from .reef_models import REEF_UNITS, ProfiledKernel


@dataclass(frozen=True, slots=True)
class WaitingKernel:
    """The kernel at the head of a best-effort queue, of which the first ``done`` blocks have run."""

    kernel: ProfiledKernel
    done: int = 0

    @property
    def remaining(self) -> int:
        return self.kernel.blocks - self.done


@dataclass(frozen=True, slots=True)
class ReefPadding:
    """What runs in the merged launch: ``be_blocks`` of queue ``queue`` on the units that the real-time kernel leaves."""

    queue: int
    rt_units: int
    rt_occupancy: int
    be_occupancy: int
    be_iterations: int
    be_blocks: int
    merged_occupancy: int

    @property
    def workers(self) -> int:
        """Resident workers of the merged kernel on each unit (``final_occupancy``)."""
        return max(self.rt_occupancy, self.be_occupancy)


def min_occupancy(kernel: ProfiledKernel, units: int = REEF_UNITS, occupancy: Occupancy = reef_occupancy) -> int:
    """Resident blocks on each unit with which the kernel runs as fast as alone: its layers, if so many fit."""
    return min(layers(kernel.blocks, units), occupancy(kernel.resources, kernel.threads))


def layers(blocks: int, units: int) -> int:
    """Blocks of the fullest unit when they are spread evenly."""
    return -(-blocks // units)


def rt_units(blocks: int, units: int) -> int:
    """``cu_partition``: the fewest units on which the blocks need no more layers than on all of them."""
    return -(-blocks // layers(blocks, units))


def select_padding(
    rt: ProfiledKernel,
    queues: Sequence[WaitingKernel | None],
    units: int = REEF_UNITS,
    occupancy: Occupancy = reef_occupancy,
) -> ReefPadding | None:
    """The first queue whose kernel fits beside ``rt``, or None: ``rt`` is launched alone. None in ``queues`` is an empty one."""
    for at, head in enumerate(queues):
        if head is not None and (found := _fit(rt, head, at, units, occupancy)):
            return found
    return None


def _fit(rt: ProfiledKernel, head: WaitingKernel, at: int, units: int, occupancy: Occupancy) -> ReefPadding | None:
    be = head.kernel
    required = min_occupancy(rt, units, occupancy)
    merged = occupancy(rt.resources.merged(be.resources), max(rt.threads, be.threads))
    if merged < required:
        return None
    resident = be_occupancy(be, merged, rt.total_us)
    if not resident:
        return None
    iterations = rt.total_us // be.latency_us[resident - 1]
    partition = rt_units(rt.blocks, units)
    blocks = min((units - partition) * iterations * resident, head.remaining)
    return ReefPadding(at, partition, required, resident, iterations, blocks, merged)


def be_occupancy(kernel: ProfiledKernel, merged: int, rt_us: int) -> int:
    """The largest occupancy up to ``merged`` at which the kernel's blocks take no longer than ``rt_us``; 0 for none."""
    at_most = min(merged, len(kernel.latency_us))
    return next((count for count in range(at_most, 0, -1) if kernel.latency_us[count - 1] <= rt_us), 0)
