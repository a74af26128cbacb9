"""The device by itself: time, capacity, priorities, partitions."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device_model.made import COSTS, CheckedGpu, alone_ns, chain, chains, grids, run_all
from tidewright.runtime.device_model.gpu import GpuModel
from tidewright.runtime.device_model.kernels import CtaKernel, KernelChain

from ...sizes import examples

LAUNCH, NODE = COSTS.graph_launch_ns, COSTS.node_start_ns


def test_one_wave_and_several() -> None:
    # 4 SMs of 2 CTAs: 8 at once.
    assert alone_ns(chain((8, 2, 10_000)), 4) == LAUNCH + 10_000
    assert alone_ns(chain((9, 2, 10_000)), 4) == LAUNCH + 20_000
    assert alone_ns(chain((9, 2, 10_000), (1, 1, 5_000)), 4) == LAUNCH + 20_000 + NODE + 5_000


def test_times_follow_the_fullness_of_the_sms() -> None:
    kernel = CtaKernel("k", 5, (10_000, 16_000))
    # 5 CTAs on 4 SMs: one SM has two of them.
    assert alone_ns(KernelChain("c", (kernel,)), 4) == LAUNCH + 16_000
    assert alone_ns(KernelChain("c", (kernel,)), 8) == LAUNCH + 10_000


def test_a_partition_holds_its_streams_together_to_its_size() -> None:
    gpu = CheckedGpu(8)
    half = gpu.partition(2)
    ends: list[int] = []
    for name in "ab":
        gpu.submit(gpu.stream(name, partition=half), chain((4, 2, 10_000)), ends.append)
    gpu.run_until(10**6)
    assert ends == [LAUNCH + 10_000, LAUNCH + 20_000]


def test_confined_work_does_not_slow_work_that_fits_beside_it() -> None:
    kernel = KernelChain("k", (CtaKernel("k", 6, (10_000, 90_000)),))
    for sms, confined, end in ((8, True, 10_000), (8, False, 90_000)):
        gpu = CheckedGpu(sms)
        beside = gpu.stream("be", partition=gpu.partition(2) if confined else None)
        gpu.submit(beside, chain((4, 2, 10**6)), lambda _: None)
        gpu.run_until(LAUNCH)
        ends: list[int] = []
        gpu.submit(gpu.stream("rt"), kernel, ends.append)
        gpu.run_until(10**6)
        assert ends == [2 * LAUNCH + end]


def test_higher_priority_takes_what_becomes_free() -> None:
    gpu = CheckedGpu(2)
    low, high = gpu.stream("low"), gpu.stream("high", 1)
    _, low_ends = run_all(gpu, low, [chain((6, 1, 100_000))])
    gpu.run_until(LAUNCH + 50_000)
    _, high_ends = run_all(gpu, high, [chain((2, 1, 10_000))])
    gpu.run_until(10**7)
    # The first wave runs out, then the real-time kernel, then the other two waves.
    assert high_ends == [LAUNCH + 110_000]
    assert low_ends == [LAUNCH + 310_000]


def test_a_small_cta_does_not_overtake_a_large_one_of_higher_priority() -> None:
    gpu = CheckedGpu(1)
    run_all(gpu, gpu.stream("first"), [chain((2, 4, 10_000))])
    gpu.run_until(5_000)
    _, low_ends = run_all(gpu, gpu.stream("low"), [chain((4, 4, 10_000))])
    gpu.run_until(6_000)
    _, high_ends = run_all(gpu, gpu.stream("high", 1), [chain((1, 1, 7_000))])
    gpu.run_until(10**7)
    # Half of the SM is free after 10 us, and stays so until the other half is: the high kernel needs all of it.
    assert high_ends == [LAUNCH + 15_000 + 7_000]
    assert low_ends == [LAUNCH + 22_000 + 10_000]


def test_work_that_spills_into_a_partition_slows_what_is_confined_there() -> None:
    gpu = CheckedGpu(2)
    confined = gpu.stream("be", partition=gpu.partition(1))
    for ctas, end in ((2, 10_000), (3, 90_000)):
        run_all(gpu, gpu.stream("rt"), [chain((ctas, 2, 10**6))])
        gpu.run_until(gpu.now + LAUNCH)
        began = gpu.now
        _, ends = run_all(gpu, confined, [KernelChain("k", (CtaKernel("k", 1, (10_000, 90_000)),))])
        gpu.run_until(gpu.now + 2 * 10**6)
        assert ends == [began + LAUNCH + end]


def test_the_next_chain_of_a_stream_follows_the_first() -> None:
    gpu = CheckedGpu(4)
    _, ends = run_all(gpu, gpu.stream("s"), [chain((4, 1, 10_000)), chain((4, 1, 10_000))])
    gpu.run_until(10**6)
    assert ends == [LAUNCH + 10_000, 2 * (LAUNCH + 10_000)]


jobs = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400_000), chains()), min_size=1, max_size=6)


def play(sms: int, work: list[tuple[int, int, KernelChain]]) -> tuple[list[int], int]:
    gpu = CheckedGpu(sms)
    ends: list[int] = []
    runs = []
    for at, (priority, when, made) in enumerate(work):
        stream = gpu.stream(str(at), priority)
        gpu.at(when, lambda stream=stream, made=made: runs.append(gpu.submit(stream, made, ends.append)))
    gpu.run_until(10**9)
    assert len(ends) == len(work) and gpu.used == 0
    assert sorted(run.ctas_done for run in runs) == sorted(grids(made) for _, _, made in work)
    assert gpu.busy == sum(stream.executed for stream in gpu.streams)
    return ends, gpu.busy


@settings(derandomize=True, max_examples=examples(60))
@given(st.integers(1, 12), jobs)
def test_no_capacity_is_idle_while_work_waits_and_every_cta_runs_once(
    sms: int, work: list[tuple[int, int, KernelChain]]
) -> None:
    assert play(sms, work) == play(sms, work)


@settings(derandomize=True, max_examples=examples(60))
@given(st.integers(1, 12), chains())
def test_alone_a_chain_takes_between_its_fastest_and_its_slowest(sms: int, work: KernelChain) -> None:
    costs = LAUNCH + NODE * (len(work.kernels) - 1)
    waves = [-(-kernel.blocks // (sms * kernel.occupancy)) for kernel in work.kernels]
    fast = sum(count * kernel.cta_ns[0] for count, kernel in zip(waves, work.kernels, strict=True))
    slow = sum(count * kernel.cta_ns[-1] for count, kernel in zip(waves, work.kernels, strict=True))
    assert costs + fast <= alone_ns(work, sms) <= costs + slow


def test_times_are_whole_nanoseconds() -> None:
    gpu = GpuModel(4)
    ends: list[int] = []
    gpu.submit(gpu.stream("s"), chain((3, 3, 1_001)), ends.append)
    gpu.run_until(10**6)
    assert ends == [9_001] and type(ends[0]) is int
