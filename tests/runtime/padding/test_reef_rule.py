"""REEF's selection against cases worked out by hand, and its invariants on all of REEF's profiles."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.reef_data import NAMES, needs_profiles, reef_model
from tidewright.base.errors import UsageError
from tidewright.runtime.padding.occupancy import KernelResources, occupancy, reef_occupancy
from tidewright.runtime.padding.reef_models import ProfiledKernel, load_reef_model
from tidewright.runtime.padding.reef_rule import (
    ReefPadding,
    WaitingKernel,
    layers,
    min_occupancy,
    rt_units,
    select_padding,
)

from ...sizes import examples


def kernel(
    blocks: int = 32, threads: int = 256, total: int = 40, latency: tuple[int, ...] = (30, 36, 42, 50), **need: int
) -> ProfiledKernel:
    return ProfiledKernel("k", blocks, threads, KernelResources(**{"vgprs": 32, **need}), total, latency)


def test_units_of_the_real_time_kernel() -> None:
    assert (layers(32, 60), rt_units(32, 60)) == (1, 32)
    assert (layers(128, 60), rt_units(128, 60)) == (3, 43)  # 43 * 3 = 129
    assert (layers(120, 60), rt_units(120, 60)) == (2, 60)
    assert (layers(1, 60), rt_units(1, 60)) == (1, 1)


def test_a_case_by_hand() -> None:
    # 32 registers: 8 blocks of 256 threads. At 40 us the best-effort kernel may have 2 (36 us), once: 28 units * 2 blocks.
    found = select_padding(kernel(), [WaitingKernel(kernel(blocks=500))])
    assert found == ReefPadding(
        queue=0, rt_units=32, rt_occupancy=1, be_occupancy=2, be_iterations=1, be_blocks=56, merged_occupancy=8
    )
    assert found.workers == 2


def test_short_blocks_run_several_times() -> None:
    short = kernel(blocks=5000, latency=(10, 12, 14, 16))
    found = select_padding(kernel(), [WaitingKernel(short)])
    # The largest occupancy, 4 at 16 us, fits twice in 40 us.
    assert found is not None
    assert (found.be_occupancy, found.be_iterations, found.be_blocks) == (4, 2, 28 * 4 * 2)


def test_no_more_blocks_than_remain() -> None:
    found = select_padding(kernel(), [WaitingKernel(kernel(blocks=100), done=70)])
    assert found is not None and found.be_blocks == 30


def test_the_first_fitting_queue_wins() -> None:
    slow, fits = WaitingKernel(kernel(latency=(41, 50))), WaitingKernel(kernel())
    better = WaitingKernel(kernel(latency=(10, 10, 10, 10)))
    found = select_padding(kernel(), [None, slow, fits, better])
    assert found is not None and found.queue == 2
    assert select_padding(kernel(), [None, slow]) is None
    assert select_padding(kernel(), []) is None


def test_a_merged_kernel_that_would_slow_the_real_time_kernel_is_refused() -> None:
    # 200 blocks need 4 layers; 128 registers leave room for 2 blocks of 256 threads.
    rt, heavy = kernel(blocks=200), kernel(vgprs=128)
    assert min_occupancy(rt) == 4
    assert select_padding(rt, [WaitingKernel(heavy)]) is None


def test_large_blocks_merge_by_the_larger_size() -> None:
    # 1,024 threads: 2 blocks of 32 registers are resident where 3 layers are needed.
    assert select_padding(kernel(blocks=128), [WaitingKernel(kernel(threads=1024))]) is None
    assert select_padding(kernel(blocks=120), [WaitingKernel(kernel(threads=1024))]) is not None


def test_a_queue_is_chosen_even_when_no_unit_is_left() -> None:
    found = select_padding(kernel(blocks=120), [WaitingKernel(kernel())])
    assert found is not None and found.rt_units == 60 and found.be_blocks == 0


def test_the_corrected_occupancy_refuses_what_shared_memory_cannot_hold() -> None:
    rt, large = kernel(blocks=128), kernel(lds_bytes=33 * 1024)
    assert select_padding(rt, [WaitingKernel(large)]) is not None
    assert select_padding(rt, [WaitingKernel(large)], occupancy=occupancy) is None


profiled = st.builds(
    kernel,
    blocks=st.integers(1, 3000),
    threads=st.sampled_from((32, 64, 128, 256, 512, 1024)),
    total=st.integers(1, 700),
    latency=st.lists(st.integers(1, 700), min_size=1, max_size=16).map(lambda found: tuple(sorted(found))),
    vgprs=st.integers(4, 256),
    lds_bytes=st.integers(0, 40_000),
)


@settings(derandomize=True, max_examples=examples(60))
@given(profiled, st.lists(st.none() | profiled.map(WaitingKernel), max_size=4), st.sampled_from((8, 60, 132)))
def test_invariants_of_made_up_kernels(rt: ProfiledKernel, queues: list[WaitingKernel | None], units: int) -> None:
    check(rt, queues, units, select_padding(rt, queues, units))


def check(rt: ProfiledKernel, queues: list[WaitingKernel | None], units: int, found: ReefPadding | None) -> None:
    """What must hold of every selection."""
    if found is None:
        return
    head = queues[found.queue]
    assert head is not None
    be_us = head.kernel.latency_us[found.be_occupancy - 1]
    # Real-time blocks keep their layers, so that the kernel takes its own time; the best-effort part ends within it.
    assert found.rt_units * layers(rt.blocks, units) >= rt.blocks
    assert found.rt_units <= units and found.merged_occupancy >= found.rt_occupancy
    assert be_us * found.be_iterations <= rt.total_us and found.be_iterations >= 1
    assert 0 <= found.be_blocks <= head.remaining
    assert found.be_blocks <= (units - found.rt_units) * found.be_occupancy * found.be_iterations
    # No larger occupancy would have ended in time, and no earlier queue fits.
    more = head.kernel.latency_us[found.be_occupancy : found.merged_occupancy]
    assert all(us > rt.total_us for us in more)
    assert select_padding(rt, queues[: found.queue], units) is None


@needs_profiles
@pytest.mark.parametrize("name", NAMES)
def test_invariants_of_every_kernel_of_resnet152_beside_each_model(name: str) -> None:
    guests = list(dict.fromkeys(reef_model(name).kernels))
    for rt in dict.fromkeys(reef_model("resnet152").kernels):
        for guest in guests:
            queues: list[WaitingKernel | None] = [WaitingKernel(guest)]
            check(rt, queues, 60, select_padding(rt, queues))


@needs_profiles
def test_golden_selections_of_published_profiles() -> None:
    """Worked out by hand from the two JSON files of resnet152 and vgg."""
    rt = next(k for k in reef_model("resnet152").kernels if k.name == "fused_nn_dense_add_kernel0")
    assert (rt.blocks, rt.threads, rt.total_us) == (1000, 64, 56)
    # 1,000 blocks: 17 layers on 59 units. vgg's first kernel: 8 blocks of 256 threads at 14 us, 4 times in 56 us.
    found = select_padding(rt, [WaitingKernel(reef_model("vgg").kernels[0])])
    assert found is None  # merged blocks of 256 threads: 8 resident, fewer than 17
    small = next(k for k in reef_model("resnet152").kernels if k.name == "fused_nn_softmax_kernel0")
    found = select_padding(small, [WaitingKernel(reef_model("vgg").kernels[0])])
    # One block of 24 us on one unit; 256 registers (its profile has one occupancy) leave one block of 256 threads.
    assert found is not None
    assert (found.rt_units, found.be_occupancy, found.be_iterations) == (1, 1, 1)
    assert found.be_blocks == 48


@needs_profiles
def test_profiles_claim_occupancies_that_shared_memory_cannot_hold() -> None:
    """REEF's mistake as its data shows it: kernels profiled at occupancies that 64 KiB of LDS do not allow."""
    beyond = {
        k.name for k in reef_model("vgg").kernels if len(k.latency_us) > max(occupancy(k.resources, k.threads), 1)
    }
    assert len(beyond) == 11
    one = next(k for k in reef_model("vgg").kernels if k.resources.lds_bytes == 33_284)
    assert reef_occupancy(one.resources, one.threads) == 4 and occupancy(one.resources, one.threads) == 1


def test_a_profile_without_a_kernel_of_the_graph_is_refused(tmp_path) -> None:
    graph = '{"kernels": [{"name": "k", "launch_params": [1, 1, 1, 64, 1, 1]}], "shared_memory": {}}'
    (tmp_path / "m.json").write_text(graph)
    with pytest.raises(UsageError):
        load_reef_model(tmp_path, "m")
    (tmp_path / "m.profile.json").write_text('{"model_latency": 1, "kernel_latency": {}}')
    with pytest.raises(UsageError):
        load_reef_model(tmp_path, "m")
