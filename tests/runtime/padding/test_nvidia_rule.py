"""Leftover SMs, time and opposite profiles: the rule for NVIDIA devices."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.runtime.padding.nvidia_rule import (
    GridKernel,
    Roofline,
    SmPadding,
    leftover_sms,
    opposite,
    roofline,
    select_on_leftover,
    time_on,
)

from ...sizes import examples

COMPUTE, MEMORY, UNKNOWN = Roofline.COMPUTE, Roofline.MEMORY, Roofline.UNKNOWN


def rt(grid: int = 160, occupancy: int = 2, total: int = 40_000) -> GridKernel:
    return GridKernel(grid, occupancy, total, total, COMPUTE)


def be(grid: int = 1000, occupancy: int = 4, cta: int = 9_000, bound: Roofline = MEMORY) -> GridKernel:
    return GridKernel(grid, occupancy, cta, 10 * cta, bound)


def test_a_case_by_hand() -> None:
    # 160 CTAs at 2 an SM need 80 of 132 SMs; of 52 left, 48 can be split off. 4 waves of 9 us fit in 40 us.
    assert leftover_sms(rt(), 132) == 52
    found = select_on_leftover(rt(), [(be(), 1000)], 132)
    assert found == SmPadding(queue=0, sms=48, ctas=4 * 48 * 4, time_ns=36_000)


def test_what_does_not_fit_is_refused() -> None:
    assert select_on_leftover(rt(grid=264), [(be(), 1000)], 132) is None
    assert select_on_leftover(rt(grid=252), [(be(), 1000)], 132) is None  # 6 SMs left, fewer than can be split off
    assert select_on_leftover(rt(), [(be(cta=41_000), 1000)], 132) is None
    assert select_on_leftover(rt(), [(be(bound=COMPUTE), 1000), None], 132) is None
    assert select_on_leftover(rt(), [(be(bound=UNKNOWN), 1000)], 132) is None


def test_nodes_of_a_graph_are_taken_whole_or_not_at_all() -> None:
    assert select_on_leftover(rt(), [(be(), 1000)], 132, whole=True) is None
    found = select_on_leftover(rt(), [(be(), 1000), (be(), 300)], 132, whole=True)
    assert found is not None and (found.queue, found.ctas, found.time_ns) == (1, 300, 18_000)


def test_roofline_classes() -> None:
    # H200-like peaks: ridge at about 200 FLOP per byte.
    assert roofline(1e12, 1e9, 9.9e14, 4.8e12) is COMPUTE
    assert roofline(1e9, 1e9, 9.9e14, 4.8e12) is MEMORY
    assert roofline(206e9, 1e9, 9.9e14, 4.8e12) is UNKNOWN
    assert roofline(0, 0, 1, 1) is UNKNOWN
    assert roofline(1, 0, 1, 1) is COMPUTE
    assert roofline(0, 1, 1, 1) is MEMORY


def test_only_known_and_different_profiles_are_opposite() -> None:
    pairs = [(one, other) for one in Roofline for other in Roofline if opposite(one, other)]
    assert pairs == [(COMPUTE, MEMORY), (MEMORY, COMPUTE)]


grids = st.builds(
    GridKernel,
    st.integers(1, 3000),
    st.integers(1, 16),
    st.integers(1, 200_000),
    st.integers(1, 200_000),
    st.sampled_from(Roofline),
)


@settings(derandomize=True, max_examples=examples(60))
@given(grids, st.lists(st.none() | st.tuples(grids, st.integers(1, 3000)), max_size=4), st.booleans())
def test_padding_ends_within_the_real_time_kernel_on_sms_that_it_does_not_need(
    kernel: GridKernel, heads: list[tuple[GridKernel, int] | None], whole: bool
) -> None:
    found = select_on_leftover(kernel, heads, 132, whole=whole)
    if found is None:
        return
    head = heads[found.queue]
    assert head is not None
    guest, remaining = head
    assert found.time_ns == time_on(guest, found.ctas, found.sms) <= kernel.total_ns
    assert 0 < found.ctas <= remaining and (found.ctas == remaining or not whole)
    assert (132 - found.sms) * kernel.occupancy >= kernel.grid and found.sms % 8 == 0
    assert opposite(kernel.bound, guest.bound)
