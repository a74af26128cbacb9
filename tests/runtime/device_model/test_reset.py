"""Resets, holds, admission and padding in a launch: what the rows after published systems are made of."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.runtime.device_model.made import COSTS, CheckedGpu, chain, chains, grids, run_all
from tidewright.runtime.device_model.kernels import KernelChain
from tidewright.runtime.device_model.streams import ChainState

from ...sizes import examples

LAUNCH, NODE, RESET = COSTS.graph_launch_ns, COSTS.node_start_ns, COSTS.reset_ns


def test_a_reset_kills_and_resumes_one_kernel_before() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be")
    (run,), ends = run_all(gpu, stream, [chain((2, 1, 50_000), (2, 1, 100_000))])
    began = LAUNCH + 50_000 + NODE
    gpu.run_until(began + 10_000)
    gpu.kill(stream)
    gpu.run_until(began + 10_000 + RESET)
    assert (run.state, run.at, gpu.used) == (ChainState.PARKED, 0, 0)
    assert gpu.preemption_ns == [RESET]
    # Both CTAs of the first kernel and what the second had done are lost.
    whole = gpu.capacity
    assert stream.wasted == 50_000 * whole + (10_000 + RESET) * whole
    gpu.resume(stream)
    resumed = gpu.now
    gpu.run_until(10**7)
    assert ends == [resumed + LAUNCH + 50_000 + NODE + 100_000]
    assert run.ctas_done == [4, 2]


def test_a_kernel_before_the_last_resume_is_not_run_again() -> None:
    gpu = CheckedGpu(1)
    stream = gpu.stream("be")
    (run,), ends = run_all(gpu, stream, [chain(*[(1, 1, 100_000)] * 4)])

    def kill_after(time: int) -> None:
        gpu.run_until(gpu.now + time)
        gpu.kill(stream)
        gpu.run_until(gpu.now + RESET)
        gpu.resume(stream)

    kill_after(LAUNCH + 2 * (100_000 + NODE) + 10_000)
    assert run.at == 1  # killed in kernel 2
    kill_after(LAUNCH + 10_000)
    assert run.at == 1  # killed in kernel 1, where it was resumed
    gpu.run_until(10**7)
    assert run.ctas_done == [1, 2, 1, 1] and len(ends) == 1


def test_a_held_stream_runs_what_was_issued_and_no_more() -> None:
    gpu = CheckedGpu(1)
    stream = gpu.stream("be")
    quiet: list[int] = []
    gpu.on_quiet = lambda _: quiet.append(gpu.now)
    (run,), ends = run_all(gpu, stream, [chain(*[(1, 1, 10_000)] * 5)])
    gpu.run_until(LAUNCH + 5_000)
    gpu.hold(stream, 2)
    assert not gpu.is_quiet(stream)
    gpu.run_until(10**6)
    assert run.ctas_done == [1, 1, 0, 0, 0] and gpu.is_quiet(stream)
    assert quiet == [LAUNCH + 2 * (10_000 + NODE)]
    gpu.release(stream)
    gpu.run_until(2 * 10**6)
    assert len(ends) == 1 and run.ctas_done == [1] * 5


def test_a_chain_that_begins_under_a_hold_waits() -> None:
    gpu = CheckedGpu(1)
    stream = gpu.stream("be")
    gpu.hold(stream, 2)
    (run,), ends = run_all(gpu, stream, [chain((1, 1, 10_000))])
    gpu.run_until(10**6)
    assert run.ctas_done == [0]
    gpu.release(stream)
    gpu.run_until(2 * 10**6)
    assert len(ends) == 1


def test_the_chain_after_a_held_one_waits_too() -> None:
    gpu = CheckedGpu(1)
    stream = gpu.stream("be")
    runs, ends = run_all(gpu, stream, [chain((1, 1, 10_000)), chain((1, 1, 10_000))])
    gpu.run_until(LAUNCH + 5_000)
    gpu.hold(stream, 2)
    gpu.run_until(10**6)
    assert [run.ctas_done for run in runs] == [[1], [0]] and gpu.is_quiet(stream)
    gpu.release(stream)
    gpu.run_until(2 * 10**6)
    assert len(ends) == 2


def test_kernels_that_are_not_admitted_are_asked_about_again() -> None:
    gpu = CheckedGpu(2)
    stream = gpu.stream("be")
    open_ = [False]
    gpu.admit = lambda _, run: open_[0] or run.at == 0
    (run,), ends = run_all(gpu, stream, [chain((1, 1, 10_000), (1, 1, 10_000))])
    gpu.run_until(10**6)
    assert run.ctas_done == [1, 0]
    open_[0] = True
    gpu.reconsider()
    gpu.run_until(2 * 10**6)
    assert ends == [10**6 + 10_000]


def test_padding_shares_a_launch_and_ends_with_it() -> None:
    gpu = CheckedGpu(4)
    guest, host = gpu.stream("be"), gpu.stream("rt", 1)
    guest.stopped = True
    (parked,), guest_ends = run_all(gpu, guest, [chain((3, 1, 30_000), (1, 1, 10_000))])
    gpu.on_kernel = lambda stream, run: run.at == 0 and gpu.pad(host, guest, 2, 1, 2, 30_000)
    (_,), ends = run_all(gpu, host, [chain((2, 1, 20_000), (2, 1, 20_000))])
    gpu.run_until(10**6)
    # The first launch lasts as long as its padding.
    assert ends == [LAUNCH + 30_000 + NODE + 20_000]
    assert parked.ctas_done == [2, 0] and guest_ends == []
    assert gpu.partitions == []


def test_padding_in_waves_takes_the_room_of_one() -> None:
    gpu = CheckedGpu(4)
    guest, host = gpu.stream("be"), gpu.stream("rt", 1)
    guest.stopped = True
    run_all(gpu, guest, [chain((5, 1, 10_000))])
    gpu.on_kernel = lambda stream, run: gpu.pad(host, guest, 5, 3, 2, 30_000)
    _, ends = run_all(gpu, host, [chain((2, 1, 20_000))])
    gpu.run_until(LAUNCH + 1)
    assert gpu.used == gpu.capacity  # 5 CTAs in 3 waves: 2 at a time, beside 2 of the host
    gpu.run_until(10**6)
    assert ends == [LAUNCH + 30_000]


def test_padding_that_does_not_fit_is_refused() -> None:
    gpu = CheckedGpu(2)
    guest, host = gpu.stream("be"), gpu.stream("rt")
    run_all(gpu, guest, [chain((3, 1, 30_000))])
    run_all(gpu, host, [chain((2, 1, 20_000))])
    gpu.run_until(LAUNCH + 1_000)
    assert not gpu.pad(host, guest, 1, 1, 1, 30_000)  # the guest is running itself
    guest.stopped = True
    (idle,), _ = run_all(gpu, gpu.stream("other"), [chain((3, 1, 30_000))])
    assert idle.state is not ChainState.PARKED


kills = st.lists(st.tuples(st.integers(1_000, 300_000), st.integers(50_000, 300_000)), max_size=5)


@settings(max_examples=examples(60), derandomize=True)
@given(st.integers(1, 8), chains(), kills)
def test_resets_lose_no_work_but_may_repeat_it(sms: int, work: KernelChain, times: list[tuple[int, int]]) -> None:
    gpu = CheckedGpu(sms)
    stream = gpu.stream("be")
    (run,), ends = run_all(gpu, stream, [work])
    for open_ns, closed_ns in times:
        gpu.run_until(gpu.now + open_ns)
        gpu.kill(stream)
        gpu.run_until(gpu.now + closed_ns)
        gpu.resume(stream)
    gpu.run_until(gpu.now + 10**9)
    assert len(ends) == 1 and gpu.used == 0
    assert all(done >= blocks for done, blocks in zip(run.ctas_done, grids(work), strict=True))
    assert 0 <= stream.wasted < stream.executed == gpu.busy
    if run.ctas_done == grids(work) and not gpu.preemption_ns:
        assert stream.wasted == 0
