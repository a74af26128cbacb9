"""How many CTAs of a kernel one multiprocessor holds: the rule of NVIDIA's occupancy calculator, as plain arithmetic.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability", and the CUDA Occupancy Calculator's
allocation units.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MultiprocessorLimits:
    """Sizes in bytes, registers in 32-bit words."""

    registers: int
    register_unit: int
    """Registers are allocated to a warp in multiples of this."""
    warp_unit: int
    """Warps that fit are rounded down to this: one for each of the four schedulers."""
    warps: int
    ctas: int
    shared_bytes: int
    shared_unit: int
    shared_reserved: int
    """Taken by the system for each CTA."""


SM_90 = MultiprocessorLimits(65536, 256, 4, 64, 32, 233472, 128, 1024)


def ctas_per_multiprocessor(registers: int, warps: int, shared_bytes: int, limits: MultiprocessorLimits = SM_90) -> int:
    """For kernels of ``registers`` per thread, ``warps`` and ``shared_bytes`` per CTA; 0 where it does not fit at all."""
    per_warp = _up(max(registers, 1) * 32, limits.register_unit)
    by_registers = limits.registers // per_warp // limits.warp_unit * limits.warp_unit // warps
    by_shared = limits.shared_bytes // _up(shared_bytes + limits.shared_reserved, limits.shared_unit)
    return min(by_registers, limits.warps // warps, by_shared, limits.ctas)


def _up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
