"""Choices of rows that a whole benchmark does not show: which client is padded, which kernel Orion admits."""

from __future__ import annotations

from tests.runtime.device_model.made import CheckedGpu, chain
from tidewright.runtime.device_model.gpu import GpuModel
from tidewright.runtime.device_model.kernels import CtaKernel, KernelChain
from tidewright.runtime.device_model.published_rows import OrionRow
from tidewright.runtime.device_model.rows import GateMergeRow, GatePaddingRow, ModelClient, SequentialRow
from tidewright.runtime.padding.nvidia_rule import Roofline
from tidewright.runtime.padding.slowdown import DeviceFingerprint, PairSlowdown, SlowdownTable

LONG = chain((500, 1, 50_000))


def padding_row(*pairs: tuple[str, str, int], gpu: GpuModel | None = None) -> GatePaddingRow:
    """Real-time clients r and s, best-effort clients x, y and z; ``pairs`` of (rt, be, share) are admitted."""
    table = SlowdownTable(DeviceFingerprint("d", 32, "0"), tuple(PairSlowdown(*pair, 0.0, 1) for pair in pairs))
    clients = [ModelClient(name, KernelChain(name, LONG.kernels), name in "rs") for name in "rsxyz"]
    return GatePaddingRow(gpu or CheckedGpu(32), clients, table)


def padded(row: GatePaddingRow) -> dict[str, int]:
    """Client to the SMs on which it is padded."""
    shares = {id(partition): share for share, partition in row.partitions.items()}
    return {name: shares[id(stream.padding)] for name, stream in row.be.items() if stream.padding}


def test_the_client_with_the_largest_share_is_padded() -> None:
    row = padding_row(("r", "x", 8), ("r", "y", 16), ("s", "x", 8))
    row.request("r", lambda _: None)
    assert padded(row) == {"y": 16}
    # y is not admitted beside s, which waits behind r; x is beside both.
    row.request("s", lambda _: None)
    assert padded(row) == {"x": 8}


def test_clients_of_equal_share_take_turns() -> None:
    row = padding_row(("r", "x", 8), ("r", "y", 8), ("s", "y", 8), ("s", "z", 8))
    chosen = []
    for name in "rsrsr":
        row.request(name, lambda _: None)
        chosen.append(padded(row))
        row.gpu.run_until(row.gpu.now + 10**7)
    # Kept where the next real-time model admits it, else the one that was chosen least.
    assert chosen == [{"x": 8}, {"y": 8}, {"y": 8}, {"y": 8}, {"y": 8}]


def test_nothing_is_padded_that_no_model_admits() -> None:
    row = padding_row(("r", "x", 8))
    row.request("s", lambda _: None)
    assert padded(row) == {}
    row.request("r", lambda _: None)
    assert padded(row) == {}


def kernel(blocks: int, bound: Roofline, ns: int = 100_000) -> KernelChain:
    return KernelChain(bound.value, (CtaKernel("k", blocks, (ns,), bound, alone_ns=ns),) * 2)


def test_whole_kernels_that_fit_are_merged_into_the_real_time_graph() -> None:
    for blocks, ns, bound, merged in (
        (8, 40_000, Roofline.MEMORY, 2),
        (17, 40_000, Roofline.MEMORY, 0),  # three waves on the 8 SMs that are left: too long to be taken whole
        (8, 200_000, Roofline.MEMORY, 0),
        (8, 40_000, Roofline.COMPUTE, 0),
    ):
        gpu = CheckedGpu(16)
        real_time = ModelClient("r", kernel(6, Roofline.COMPUTE), True)
        row = GateMergeRow(gpu, [real_time, ModelClient("b", kernel(blocks, bound, ns), False)])
        row.request("r", lambda _: None)
        row.request("b", lambda _: None)
        gpu.run_until(190_000)
        head = row.be["b"].head
        assert (head.at if head is not None else 2) == merged, (blocks, ns, bound)
        gpu.run_until(10**7)
        assert row.be["b"].head is None, "what was merged in part never ended"


def test_orion_admits_small_kernels_of_the_opposite_profile() -> None:
    for blocks, bound, admitted in (
        (2, Roofline.MEMORY, True),
        (2, Roofline.COMPUTE, False),
        (3, Roofline.MEMORY, False),
    ):
        gpu = CheckedGpu(8)
        row = OrionRow(
            gpu, [ModelClient("r", kernel(6, Roofline.COMPUTE), True), ModelClient("b", kernel(blocks, bound), False)]
        )
        row.request("r", lambda _: None)
        gpu.run_until(20_000)
        row.request("b", lambda _: None)
        gpu.run_until(60_000)
        assert (gpu.streams[1].executed + len(gpu.streams[1].cohorts) > 0) is admitted
        gpu.run_until(10**6)
        # Without real-time work everything is admitted.
        assert gpu.streams[1].head is None


def test_the_sequential_row_runs_real_time_requests_first_and_interrupts_none() -> None:
    clients = [ModelClient("r", chain((1, 1, 10_000)), True), ModelClient("b", chain((1, 1, 50_000)), False)]
    row = SequentialRow(CheckedGpu(4), clients)
    done: list[str] = []
    for name in "bbrr":
        row.request(name, lambda _, name=name: done.append(name))
    row.gpu.run_until(10**6)
    assert done == ["b", "r", "r", "b"]
