"""Resident blocks of one compute unit: REEF's formula, its mistake, and the corrected one."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.runtime.padding.occupancy import KernelResources, occupancy, reef_occupancy, registers_for

from ...sizes import examples

resources = st.builds(
    KernelResources,
    vgprs=st.integers(1, 256),
    sgprs=st.integers(1, 104),
    lds_bytes=st.integers(0, 64 * 1024),
    stack_bytes=st.integers(0, 4096),
)


def test_registers_bind() -> None:
    # 64 registers: 256 // 64 = 4 waves on each of 4 SIMDs, 16 waves; a block of 256 threads has 4.
    assert reef_occupancy(KernelResources(vgprs=64), 256) == 4
    # 65 are allocated as 68: 3 waves a SIMD, 12 in all.
    assert reef_occupancy(KernelResources(vgprs=65), 256) == 3
    # 96 scalar registers: 8 waves a SIMD, 32 in all.
    assert reef_occupancy(KernelResources(vgprs=4, sgprs=96), 256) == 8


def test_threads_bind_and_are_rounded_to_waves() -> None:
    assert reef_occupancy(KernelResources(vgprs=4), 256) == 8
    assert reef_occupancy(KernelResources(vgprs=4), 65) == 16
    assert reef_occupancy(KernelResources(vgprs=4), 1024) == 2


def test_reef_divides_shared_memory_by_the_block_size() -> None:
    large = KernelResources(vgprs=4, lds_bytes=33 * 1024)
    assert reef_occupancy(large, 256) == 8
    assert occupancy(large, 256) == 1
    assert occupancy(KernelResources(vgprs=4, lds_bytes=8 * 1024), 256) == 8
    assert occupancy(KernelResources(vgprs=4, lds_bytes=8 * 1024 + 1), 256) == 7
    # LDS is allocated by 256 bytes: 6,553 are 6,656, of which 9 fit.
    assert occupancy(KernelResources(vgprs=4, lds_bytes=6553), 64) == 9


@settings(derandomize=True, max_examples=examples(60))
@given(resources, st.integers(1, 1024))
def test_the_corrected_occupancy_is_never_larger_and_fits_the_shared_memory(
    need: KernelResources, threads: int
) -> None:
    resident = occupancy(need, threads)
    assert 0 <= resident <= reef_occupancy(need, threads)
    assert resident * need.lds_bytes <= 64 * 1024


@settings(derandomize=True, max_examples=examples(60))
@given(resources, resources, st.integers(1, 1024))
def test_a_merged_kernel_is_resident_no_more_often_than_either(
    one: KernelResources, other: KernelResources, threads: int
) -> None:
    merged = one.merged(other)
    assert merged == other.merged(one)
    assert occupancy(merged, threads) <= min(occupancy(one, threads), occupancy(other, threads))


@settings(derandomize=True, max_examples=examples(60))
@given(st.integers(1, 32), st.integers(1, 1024))
def test_inferred_registers_are_the_most_that_allow_the_profile(resident: int, threads: int) -> None:
    count = registers_for(resident, threads)
    if reef_occupancy(KernelResources(vgprs=4), threads) < resident:
        assert count == 4
        return
    assert reef_occupancy(KernelResources(vgprs=count), threads) >= resident
    assert count == 256 or reef_occupancy(KernelResources(vgprs=count + 4), threads) < resident
