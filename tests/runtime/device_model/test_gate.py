"""The CTA gate: exactly once, preemption bounded by the longest CTA, sticky until relaunched, padding in a partition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device_model.made import COSTS, CheckedGpu, chain, chains, grids, run_all
from tidewright.runtime.device_model.kernels import KernelChain
from tidewright.runtime.device_model.streams import ChainState

from ...sizes import examples

LAUNCH, NODE, FLAG, DRAIN = COSTS.graph_launch_ns, COSTS.node_start_ns, COSTS.flag_ns, COSTS.drain_node_ns


def test_a_case_by_hand() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be", gated=True)
    (run,), ends = run_all(gpu, stream, [chain((6, 1, 100_000), (2, 1, 50_000))])
    gpu.run_until(LAUNCH + 20_000)
    gpu.raise_flag()
    gpu.run_until(LAUNCH + 150_000)
    # The resident wave ran to its end, the other four CTAs are missing; two nodes returned at once.
    assert run.state is ChainState.PARKED
    assert (run.at, run.finished, run.ctas_done) == (0, 2, [2, 0])
    assert gpu.preemption_ns == [80_000]
    gpu.clear_flag()
    gpu.run_until(10**7)
    assert ends == [LAUNCH + 150_000 + LAUNCH + 200_000 + NODE + 50_000]
    assert run.ctas_done == [6, 2]
    assert gpu.restore_ns == [LAUNCH]


def test_complete_nodes_are_skipped_on_resume() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be", gated=True)
    (run,), ends = run_all(gpu, stream, [chain(*[(2, 1, 10_000)] * 4)])
    gpu.run_until(LAUNCH + 2 * (10_000 + NODE) + 5_000)
    gpu.raise_flag()
    gpu.run_until(10**6)
    assert (run.at, run.state) == (3, ChainState.PARKED)
    gpu.clear_flag()
    gpu.run_until(10**7)
    assert gpu.restore_ns == [LAUNCH + 3 * DRAIN]
    assert ends == [10**6 + LAUNCH + 3 * DRAIN + 10_000]


def test_only_nodes_of_the_present_segment_are_drained_and_skipped() -> None:
    gpu = CheckedGpu(2, segment_kernels=2)
    stream = gpu.stream("be", gated=True)
    (run,), ends = run_all(gpu, stream, [chain(*[(2, 1, 10_000)] * 6)])
    third = LAUNCH + 2 * (10_000 + NODE)
    gpu.run_until(third + 5_000)
    gpu.raise_flag()
    gpu.run_until(third + 10_000 + DRAIN - 1)
    # The third node is complete; the fourth returns at once, and the other segment was not issued.
    assert (run.at, run.state) == (3, ChainState.CLOSED)
    gpu.run_until(third + 10_000 + DRAIN)
    assert run.state is ChainState.PARKED
    gpu.clear_flag()
    gpu.run_until(10**7)
    assert gpu.restore_ns == [LAUNCH + DRAIN] and run.ctas_done == [2] * 6
    assert ends == [third + 10_000 + DRAIN + LAUNCH + DRAIN + 3 * 10_000 + 2 * NODE]


def test_the_gate_is_sticky_when_the_flag_is_cleared_before_the_chain_is_drained() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be", gated=True)
    (run,), ends = run_all(gpu, stream, [chain((6, 1, 100_000), (2, 1, 10_000))])
    gpu.run_until(LAUNCH + 50_000)
    gpu.raise_flag()
    gpu.run_until(LAUNCH + 60_000)
    gpu.clear_flag()
    gpu.run_until(LAUNCH + 99_999)
    assert run.state is ChainState.CLOSED and run.started == 2
    gpu.run_until(10**7)
    # Drained after the wave and two nodes, then launched again: 4 CTAs are left, not 6.
    assert ends == [LAUNCH + 100_000 + 2 * DRAIN + LAUNCH + 200_000 + NODE + 10_000]
    assert run.ctas_done == [6, 2]


def test_a_flag_that_is_cleared_before_it_is_visible_closes_nothing() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be", gated=True)
    _, ends = run_all(gpu, stream, [chain((4, 1, 10_000))])
    gpu.run_until(LAUNCH + 1)
    gpu.raise_flag()
    gpu.run_until(LAUNCH + FLAG)
    gpu.clear_flag()
    gpu.run_until(10**6)
    assert ends == [LAUNCH + 20_000] and gpu.preemption_ns == []


def test_what_is_submitted_under_the_flag_waits() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be", gated=True)
    gpu.raise_flag()
    gpu.run_until(10_000)
    (run,), ends = run_all(gpu, stream, [chain((2, 1, 10_000))])
    gpu.run_until(10**6)
    assert run.ctas_done == [0]
    gpu.clear_flag()
    gpu.run_until(2 * 10**6)
    assert ends == [10**6 + LAUNCH + 10_000] and gpu.restore_ns == []


def test_padding_goes_on_in_its_partition_and_returns_to_the_whole_device() -> None:
    gpu = CheckedGpu(4)
    stream = gpu.stream("be", gated=True)
    gpu.pad_beside(stream, gpu.partition(1))
    (run,), ends = run_all(gpu, stream, [chain((40, 1, 10_000))])
    gpu.run_until(LAUNCH + 5_000)
    gpu.raise_flag()
    # 4 CTAs end at 10 us, one node drains, relaunched on one SM.
    padded = LAUNCH + 10_000 + DRAIN + LAUNCH
    gpu.run_until(padded + 25_000)
    assert run.ctas_done == [4 + 2] and run.started == 7
    gpu.clear_flag()
    gpu.run_until(10**7)
    again = padded + 30_000 + DRAIN + LAUNCH
    # 33 CTAs are left: 9 waves of four SMs.
    assert ends == [again + 90_000] and run.ctas_done == [40]


def test_padding_may_begin_and_end_while_the_flag_is_up() -> None:
    gpu = CheckedGpu(4)
    stream = gpu.stream("be", gated=True)
    (run,), ends = run_all(gpu, stream, [chain((40, 1, 10_000))])
    gpu.run_until(LAUNCH + 5_000)
    gpu.raise_flag()
    gpu.run_until(100_000)
    assert run.ctas_done == [4]
    gpu.pad_beside(stream, gpu.partition(1))
    gpu.run_until(100_000 + LAUNCH + 25_000)
    assert run.ctas_done == [4 + 2]
    gpu.pad_beside(stream, None)
    gpu.run_until(10**6)
    assert run.ctas_done == [4 + 3] and run.state is ChainState.PARKED and not ends
    gpu.clear_flag()
    gpu.run_until(2 * 10**6)
    assert ends == [10**6 + LAUNCH + 90_000] and run.ctas_done == [40]


bursts = st.lists(st.tuples(st.integers(1_000, 300_000), st.integers(1_000, 300_000)), max_size=6)


@settings(max_examples=examples(60), derandomize=True)
@given(st.integers(1, 8), st.lists(chains(), min_size=1, max_size=3), bursts, st.integers(0, 2), st.integers(1, 5))
def test_every_cta_runs_exactly_once_whenever_the_flag_is_raised_and_cleared(
    sms: int, works: list[KernelChain], times: list[tuple[int, int]], share: int, segment: int
) -> None:
    gpu = CheckedGpu(sms, segment_kernels=segment)
    partition = gpu.partition(min(share, sms)) if share else None
    runs, ends = [], []
    for at, work in enumerate(works):
        stream = gpu.stream(str(at), gated=True)
        if at == 0:
            gpu.pad_beside(stream, partition)
        found, done = run_all(gpu, stream, [work, work])
        runs, ends = runs + found, [*ends, done]
    for open_ns, closed_ns in times:
        gpu.run_until(gpu.now + open_ns)
        gpu.raise_flag()
        gpu.run_until(gpu.now + closed_ns)
        gpu.clear_flag()
    gpu.run_until(gpu.now + 10**9)
    assert [len(done) for done in ends] == [2] * len(works) and gpu.used == 0
    assert [run.ctas_done for run in runs] == [grids(run.chain) for run in runs]
    assert all(stream.wasted == 0 for stream in gpu.streams)
    longest = max(kernel.cta_ns[-1] for work in works for kernel in work.kernels)
    assert all(FLAG <= ns <= longest + FLAG for ns in gpu.preemption_ns)


@settings(max_examples=examples(60), derandomize=True)
@given(st.integers(1, 8), st.lists(chains(), min_size=1, max_size=3), chains(), st.integers(0, 400_000))
def test_real_time_work_waits_for_no_more_than_one_best_effort_cta(
    sms: int, works: list[KernelChain], rt: KernelChain, when: int
) -> None:
    gpu = CheckedGpu(sms)
    for at, work in enumerate(works):
        run_all(gpu, gpu.stream(str(at), gated=True), [work] * 3)
    gpu.run_until(when)
    gpu.raise_flag()
    _, ends = run_all(gpu, gpu.stream("rt", 1), [rt])
    gpu.run_until(when + 10**9)
    longest = max(kernel.cta_ns[-1] for work in works for kernel in work.kernels)
    # Once the last best-effort CTA is gone, real-time kernels have the device; CTAs that started among others may lag by one.
    full = sum(-(-kernel.blocks // (sms * kernel.occupancy)) * kernel.cta_ns[-1] for kernel in rt.kernels)
    lag = max(kernel.cta_ns[-1] for kernel in rt.kernels)
    assert ends[0] - when <= LAUNCH + NODE * (len(rt.kernels) - 1) + full + lag + longest + FLAG
