"""How many blocks of a kernel are resident on one compute unit: REEF's formula, and the same with its mistake corrected.

The numbers are those of AMD's GCN5 (MI50, the device of REEF's evaluation). On NVIDIA the driver is asked instead.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

LDS_BYTES = 64 * 1024
"""Local data share of one GCN compute unit."""
MAX_WAVES = 40
"""4 SIMDs of 10 waves each."""
MAX_THREADS = 2048
"""REEF's limit per compute unit. The hardware allows 2,560; profiles were taken under REEF's limit, so it is kept."""
WAVE = 64


@dataclass(frozen=True, slots=True)
class KernelResources:
    """What one thread (registers, stack) and one block (LDS) of a kernel need; bytes for LDS and stack."""

    vgprs: int = 24
    sgprs: int = 16
    lds_bytes: int = 0
    stack_bytes: int = 0

    def merged(self, other: KernelResources) -> KernelResources:
        """What a kernel needs that may branch into either: the larger of everything."""
        return KernelResources(
            max(self.vgprs, other.vgprs),
            max(self.sgprs, other.sgprs),
            max(self.lds_bytes, other.lds_bytes),
            max(self.stack_bytes, other.stack_bytes),
        )


Occupancy = Callable[[KernelResources, int], int]
"""(resources, threads of a block) to resident blocks of one compute unit; 0 where not even one fits."""


def align_up(value: int, unit: int) -> int:
    """The smallest multiple of ``unit`` that is at least ``value``."""
    return -(-value // unit) * unit


def reef_occupancy(resources: KernelResources, threads: int) -> int:
    """``GPUConfig::calculate_occupancy`` of REEF (executor/hip/hip_impl.cpp), its mistake included.

    The term for shared memory divides the 64 KiB by the *block size in threads* and not by the LDS bytes of a block, so that it
    never binds: a kernel of 33 KiB LDS gets occupancy 4 where one block fits. REEF's own profiles were taken with it.
    """
    size = align_up(threads, WAVE)
    return min(_register_waves(resources) * WAVE // size, LDS_BYTES // size, MAX_THREADS // size)


def occupancy(resources: KernelResources, threads: int) -> int:
    """The same with the LDS of a block where REEF divides by the block size."""
    size = align_up(threads, WAVE)
    blocks = min(_register_waves(resources) * WAVE // size, MAX_THREADS // size)
    if resources.lds_bytes:
        blocks = min(blocks, LDS_BYTES // align_up(resources.lds_bytes, 256))
    return blocks


def _register_waves(resources: KernelResources) -> int:
    # Registers are allocated by 4 and 8, and every SIMD has 256 vector and 800 scalar ones for each lane or wave.
    vector = 256 // max(align_up(resources.vgprs, 4), 4) * 4
    scalar = 800 // max(align_up(resources.sgprs, 8), 8) * 4
    return min(vector, scalar, MAX_WAVES)


def registers_for(resident: int, threads: int) -> int:
    """The most vector registers with which ``resident`` blocks are still resident: what a profile's length says about registers.

    256 where even that many allow more blocks: something else limited the profile (a grid of few blocks).
    """
    fitting = (
        count for count in range(256, 0, -4) if reef_occupancy(KernelResources(vgprs=count), threads) >= resident
    )
    return next(fitting, 4)
