"""Time slices of ranks on a device whose memory does not hold all of them."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.base.errors import WorldError
from tidewright.checkpoint.cuda.checkpoint import CudaCheckpoint, CudaState
from tidewright.checkpoint.cuda.fake import FakeCuda
from tidewright.checkpoint.cuda.swap import (
    IDLE_US,
    QUANTUM_US,
    DeviceSharer,
    SwapTimeSlicer,
    is_requesting,
    share_mode,
    write_flag,
)
from tidewright.launch.inject._tidewright.splice import SwapShare

from ..sizes import examples

GIB = 2**30


class Device:
    """A device, the ranks on it (100 + rank are their pids) and a clock that only the test moves."""

    def __init__(self, directory, needs: list[int], memory: int) -> None:
        self.now, self.needs = 0, needs
        self.api = FakeCuda(memory=memory)
        sharers = []
        for rank, need in enumerate(needs):
            (directory / str(rank)).mkdir()
            self.api.start(100 + rank, need=need)
            sharers.append(DeviceSharer(rank, (100 + rank,), directory / str(rank), need))
        self.sharers = sharers
        self.slicer = SwapTimeSlicer(CudaCheckpoint(self.api), sharers, memory, lambda: self.now)

    def want(self, *ranks: int) -> None:
        """These, and no others."""
        for sharer in self.sharers:
            write_flag(sharer.rank_dir / "wants", sharer.rank in ranks)

    def granted(self) -> list[int]:
        """The ranks with a time slice."""
        return [each.rank for each in self.sharers if (each.rank_dir / "turn").read_bytes() == b"1"]

    def inside(self) -> list[int]:
        """Whose memory is on the device."""
        return [each.rank for each in self.sharers if self.api.state(each.pids[0]) is CudaState.RUNNING]

    def step(self, us: int = 1) -> None:
        self.now += us
        self.slicer.step()


def test_resident_when_memory_allows():
    assert share_mode([4 * GIB, 4 * GIB], 16 * GIB) == "lock"
    assert share_mode([8 * GIB, 8 * GIB], 16 * GIB) == "swap", "the driver needs some itself"


def test_the_time_slice_goes_to_a_rank_that_requests_it(tmp_path):
    device = Device(tmp_path, [6 * GIB] * 3, 10 * GIB)
    device.slicer.begin()
    assert device.inside() == [0], "no more than fit"
    device.want(1, 2)
    device.step()
    assert (device.slicer.holder, device.granted(), device.inside()) == (1, [1], [1])
    device.step()
    assert device.slicer.holder == 1, "while it computes it keeps the time slice"
    device.want(0, 2)
    device.step()
    assert (device.slicer.holder, device.granted(), device.inside()) == (2, [2], [2]), "in order"
    device.want(2, 0)
    device.step()
    assert device.slicer.holder == 2
    device.want(0)
    device.step()
    assert device.granted() == device.inside() == [0]


def test_as_few_swaps_as_going_round_allows(tmp_path):
    """Three ranks, room for two: half of all time slices need no swap, where putting out the oldest would always need one."""
    device = Device(tmp_path, [4 * GIB] * 3, 10 * GIB)
    device.slicer.begin()
    device.api.calls.clear()
    for number in range(60):
        device.want(number % 3)
        device.step()
        assert device.slicer.holder == number % 3
    assert sum(call == "restore" for call, _ in device.api.calls) <= 31


def test_no_rank_keeps_the_time_slice_beyond_the_quantum(tmp_path):
    device = Device(tmp_path, [6 * GIB] * 2, 10 * GIB)
    device.slicer.begin()
    device.want(0, 1)
    device.step()
    first = device.slicer.holder
    device.step(QUANTUM_US - 1)
    assert device.slicer.holder == first
    device.step(1)
    assert device.slicer.holder == 1 - first
    device.want(1 - first)
    device.step(2 * QUANTUM_US)
    assert device.slicer.holder == 1 - first, "alone it may stay"


def test_without_requests_all_get_a_time_slice_in_order(tmp_path):
    """Each may have device work of a collective left to do, for which it cannot ask."""
    device = Device(tmp_path, [6 * GIB] * 3, 10 * GIB)
    device.slicer.begin()
    device.want()
    had = set()
    for _ in range(6):
        device.step(IDLE_US)
        had.add(device.slicer.holder)
    assert had == {0, 1, 2}


def test_after_a_restore_memory_is_swapped_in_with_the_time_slice(tmp_path):
    device = Device(tmp_path, [6 * GIB] * 2, 10 * GIB)
    CudaCheckpoint(device.api).suspend([100, 101])
    device.slicer.begin(saved=True)
    assert device.inside() == []
    device.want(1)
    device.step()
    assert device.granted() == device.inside() == [1]


def test_a_rank_that_ends_releases_its_time_slice(tmp_path):
    device = Device(tmp_path, [6 * GIB] * 2, 10 * GIB)
    device.slicer.begin()
    device.want(0)
    device.step()
    device.api.end(100)
    device.slicer.end(0)
    assert device.slicer.holder is None
    device.want(1)
    device.step()
    assert device.slicer.holder == 1


def test_without_host_memory_the_time_slice_stays_where_it_is(tmp_path):
    device = Device(tmp_path, [6 * GIB] * 2, 10 * GIB)
    device.slicer.begin()
    device.want(0)
    device.step()
    device.api.host_full.add(100)
    device.want(1)
    with pytest.raises(WorldError, match="not enough memory"):
        device.step()
    assert device.inside() == [0]


def test_who_needs_more_than_was_measured_gets_the_room(tmp_path):
    device = Device(tmp_path, [4 * GIB, 4 * GIB, 4 * GIB], 10 * GIB)
    device.slicer.begin()
    assert device.inside() == [0, 1]
    device.api.start(102, need=8 * GIB)
    device.api.lock(102, 0)
    device.api.checkpoint(102)
    device.want(2)
    device.step()
    assert device.granted() == device.inside() == [2]


@settings(max_examples=examples(60), deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 5), room=st.integers(1, 3))
def test_each_request_is_granted_and_memory_never_runs_out(tmp_path_factory, seed, ranks, room):
    rng = random.Random(seed)
    needs = [rng.randint(1, 4) * GIB for _ in range(ranks)]
    device = Device(tmp_path_factory.mktemp("device"), needs, 5 * GIB * room)
    device.slicer.begin()
    waited = dict.fromkeys(range(ranks), 0)
    wanting: set[int] = set()
    for _ in range(80):
        holder = device.slicer.holder
        if holder in wanting and rng.random() < 0.5:
            wanting.discard(holder)
        wanting |= {rank for rank in range(ranks) if rank != holder and rng.random() < 0.3}
        device.want(*wanting)
        device.step(rng.choice([1, IDLE_US, QUANTUM_US]))
        holder = device.slicer.holder
        assert device.granted() == ([] if holder is None else [holder])
        assert holder is None or holder in device.inside()
        for rank in range(ranks):
            waited[rank] = 0 if rank == holder or rank not in wanting else waited[rank] + 1
            assert waited[rank] <= 20 * ranks


@pytest.mark.processes
def test_ranks_and_agent_understand_each_other(tmp_path):
    """The rank's side of launch and the agent's side here, over the files of the rank directories, in threads."""
    memory, counts, stop = 10 * GIB, [0, 0, 0], threading.Event()
    device = Device(tmp_path, [6 * GIB] * 3, memory)
    device.slicer = SwapTimeSlicer(
        CudaCheckpoint(device.api), device.sharers, memory, lambda: time.monotonic_ns() // 1000
    )
    agent = threading.Thread(target=device.slicer.run, args=(stop,))
    meet = threading.Barrier(3)

    def rank(number: int) -> None:
        share = SwapShare(str(tmp_path / str(number)))
        for _ in range(5):
            assert share.acquire()
            counts[number] += 1
            share.release()
            meet.wait(30)

    agent.start()
    ranks = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(60)
    stop.set()
    agent.join(10)
    assert counts == [5, 5, 5]
    assert not any(is_requesting(each) for each in device.sharers)
