"""Device memory out and in, against a driver without devices that keeps the real one's states."""

from __future__ import annotations

import contextlib
import ctypes
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stub_libcuda import stub_libcuda
from tidewright.base.errors import WorldError
from tidewright.checkpoint import cgroup
from tidewright.checkpoint.cuda import checkpoint as cuda
from tidewright.checkpoint.cuda.checkpoint import (
    BindingsApi,
    CudaCheckpoint,
    CudaError,
    CudaState,
    DeviceStateLost,
    pairing,
)
from tidewright.checkpoint.cuda.driver import DeviceSeat, GpuDriver, facts_of, seat_of
from tidewright.checkpoint.cuda.fake import FakeCuda
from tidewright.checkpoint.freeze import FreezeDriver
from tidewright.checkpoint.processes import members, send, stat
from tidewright.checkpoint.protocol import Gang, RankHandle, RestorePlacement
from tidewright.checkpoint.verdict import DriverVerdict
from tidewright.testing.checkpoint import check_driver

A, B, C = (f"GPU-{UUID(int=number)}" for number in (1, 2, 3))
TROUBLES = ("stuck", "unsavable", "host_full", "broken")


def users(*pids: int, **how) -> tuple[FakeCuda, CudaCheckpoint]:
    """Processes that use CUDA."""
    api = FakeCuda((A, B), **how)
    for pid in pids:
        api.start(pid, (A,))
    return api, CudaCheckpoint(api)


def test_everybody_is_locked_before_anybody_is_saved():
    api, both = users(7, 8)
    both.suspend([7, 8, 9])
    assert sorted(api.calls[:2]) == [("lock", 7), ("lock", 8)]
    assert sorted(api.calls[2:]) == [("checkpoint", 7), ("checkpoint", 8)]
    api.calls.clear()
    both.suspend([7, 8])
    assert api.calls == [], "harmless when repeated"
    both.resume([7, 8, 9])
    assert sorted(api.calls[:2]) == [("restore", 7), ("restore", 8)], "no process runs before all have their memory"
    assert sorted(api.calls[2:]) == [("unlock", 7), ("unlock", 8)]
    both.resume([7, 8])
    assert len(api.calls) == 4


@given(
    pids=st.lists(st.integers(1, 6), min_size=1, unique=True),
    trouble=st.sampled_from(TROUBLES),
    hit=st.sets(st.integers(1, 6)),
    second=st.sets(st.integers(1, 6)),
)
def test_whatever_fails_all_are_in_one_state_or_said_to_be_lost(pids, trouble, hit, second):
    api, both = users(*pids)
    setattr(api, trouble, hit)
    api.broken |= second
    for act, good, undone in (
        (both.suspend, CudaState.CHECKPOINTED, CudaState.RUNNING),
        (both.resume, CudaState.RUNNING, CudaState.CHECKPOINTED),
    ):
        lost: tuple[int, ...] = ()
        try:
            act(pids)
            expected = good
        except DeviceStateLost as error:
            lost = error.pids
            assert lost
            expected = undone
        except WorldError:
            expected = undone
        states = {pid: api.state(pid) for pid in pids if pid not in lost}
        assert all(state is expected for state in states.values()), (act.__name__, states)
        if lost or expected is not good:
            return


def test_a_timeout_is_reported_in_words():
    api, both = users(7, 8)
    api.stuck.add(8)
    with pytest.raises(WorldError, match=r"process 8 within 10s.*come out of its CUDA calls.*all run on"):
        both.suspend([7, 8])
    assert [api.state(7), api.state(8)] == [CudaState.RUNNING, CudaState.RUNNING]


def test_what_the_driver_loses_is_named():
    api, both = users(7, 8)
    api.unsavable.add(8)
    with pytest.raises(DeviceStateLost, match="process 8") as caught:
        both.suspend([7, 8])
    assert caught.value.pids == (8,)
    assert api.state(7) is CudaState.RUNNING, "the other one runs on"


def test_an_ended_process_uses_no_cuda():
    api, both = users(7, 8)
    both.suspend([7, 8])
    api.end(8)
    both.resume([7, 8])
    assert api.state(7) is CudaState.RUNNING


def test_onto_another_device():
    api, both = users(7)
    both.suspend([7])
    both.resume([7], {7: pairing({A: B}, (A, B), (A, B))})
    assert api.on(7) == (B,)


def test_a_device_that_is_not_there_leaves_the_image_good():
    api, both = users(7, 8)
    both.suspend([7, 8])
    with pytest.raises(WorldError, match="does not accept the devices"):
        both.resume([7, 8], {8: {A: C}})
    assert [api.state(7), api.state(8)] == [CudaState.CHECKPOINTED, CudaState.CHECKPOINTED]
    both.resume([7, 8])
    assert [api.on(7), api.on(8)] == [(A,), (A,)]


def test_an_old_driver_does_not_move():
    _, both = users(7, version=12_080)
    both.suspend([7])
    with pytest.raises(WorldError, match="580"):
        both.resume([7], {7: {A: B}})
    both.resume([7], {7: {}})
    assert both.can().ok
    older = CudaCheckpoint(FakeCuda((A,), version=12_040))
    assert not older.can().ok and "CUDA 12.4" in older.can().reason and "570" in older.can().reason


ids = st.integers(0, 5).map(lambda number: f"GPU-{UUID(int=number)}")


@given(st.data(), st.lists(ids, min_size=1, unique=True), st.lists(ids, min_size=1, unique=True))
def test_pairs_are_one_to_one_and_complete(data, before, now):
    had = data.draw(st.lists(st.sampled_from(before), min_size=1, max_size=len(now), unique=True))
    gets = data.draw(st.permutations(now))[: len(had)]
    wanted = dict(zip(had, gets, strict=True))
    pairs = pairing(wanted, before, now)
    if had == gets:
        assert pairs == {}, "nothing moves: nothing to tell the driver"
        return
    assert {old: pairs[old] for old in had} == wanted
    assert len(set(pairs.values())) == len(pairs)
    if set(before) == set(now):
        assert set(pairs) == set(pairs.values()) == set(before), "a permutation of the node's devices"


@pytest.mark.parametrize(
    ("wanted", "what"), [({C: A}, "no device"), ({A: C}, "no device"), ({A: A, B: A}, "two devices of one process")]
)
def test_impossible_pairs_are_refused(wanted, what):
    with pytest.raises(WorldError, match=what):
        pairing(wanted, (A, B), (A, B))


def test_a_part_of_a_device_is_refused():
    with pytest.raises(WorldError, match="part of a device"):
        cuda.uuid_bytes("MIG-00000000-0000-0000-0000-000000000001")
    with pytest.raises(WorldError, match="not the UUID"):
        cuda.uuid_bytes("0")


class Bindings:
    """Answers as the module cuda.bindings.driver does, with the names and fields of cuda-bindings 13."""

    CUcheckpointLockArgs = CUcheckpointRestoreArgs = CUcheckpointGpuPair = SimpleNamespace

    class CUuuid:
        def __init__(self) -> None:
            self.held = ctypes.create_string_buffer(16)

        def getPtr(self) -> int:  # noqa: N802
            return ctypes.addressof(self.held)

    def __init__(self, version: int = 13_000, **results: int) -> None:
        self.calls: list[tuple] = []
        self._version, self._results = version, results

    def __getattr__(self, name: str):
        def call(*args):
            self.calls.append((name, *args))
            values = {"cuDriverGetVersion": (self._version,), "cuCheckpointProcessGetState": (2,)}.get(name, ())
            code = self._results.get(name, 0)
            return (Result(code), *values)

        return call


class Result(int):
    """A CUresult."""

    @property
    def name(self) -> str:
        return {1: "CUDA_ERROR_INVALID_VALUE", 100: "CUDA_ERROR_NO_DEVICE", 600: "CUDA_ERROR_NOT_READY"}[self]


def test_the_bindings_are_called_with_what_they_expect():
    driver = Bindings()
    api = BindingsApi(driver)
    assert driver.calls == [("cuInit", 0), ("cuDriverGetVersion",)] and api.version == 13_000
    driver.calls.clear()
    api.lock(5, 250)
    api.checkpoint(5)
    assert api.state(5) is CudaState.CHECKPOINTED
    api.restore(5, {})
    api.restore(5, {A: B, B: A})
    api.unlock(5)
    lock, checkpoint, state, plain, moved, unlock = driver.calls
    assert lock[:2] == ("cuCheckpointProcessLock", 5) and lock[2].timeoutMs == 250
    assert checkpoint == ("cuCheckpointProcessCheckpoint", 5, None)
    assert state == ("cuCheckpointProcessGetState", 5)
    assert plain == ("cuCheckpointProcessRestore", 5, None)
    assert moved[2].gpuPairsCount == 2
    pairs = [(pair.oldUuid.held.raw, pair.newUuid.held.raw) for pair in moved[2].gpuPairs]
    assert pairs == [(UUID(int=1).bytes, UUID(int=2).bytes), (UUID(int=2).bytes, UUID(int=1).bytes)]
    assert unlock == ("cuCheckpointProcessUnlock", 5, None)


@pytest.mark.parametrize(
    ("names", "version"),
    [
        ((), 0),
        (("cuCheckpointProcessLock",), 12_080),
        (("cuCheckpointProcessLock", "CUcheckpointGpuPair"), 13_000),
    ],
)
def test_old_bindings_do_no_more_than_they_know(names, version):
    known = {"cuInit": lambda flags: (Result(0),), "cuDriverGetVersion": lambda: (Result(0), 13_000)}
    api = BindingsApi(SimpleNamespace(**known, **dict.fromkeys(names)))
    assert api.version == version
    assert CudaCheckpoint(api).can().ok is bool(version)


def test_refusals_of_the_bindings_have_names():
    api = BindingsApi(Bindings(cuCheckpointProcessLock=600, cuCheckpointProcessGetState=1))
    assert api.state(5) is None, "no CUDA in there"
    with pytest.raises(CudaError, match="cuCheckpointProcessLock: CUDA_ERROR_NOT_READY"):
        api.lock(5, 1)


def missing(name: str):
    """In the place of importlib: the bindings are not installed."""
    raise ImportError(name)


def no_library(name: str) -> Bindings:
    """The bindings are there, libcuda is not."""
    driver = Bindings()

    def init(flags: int):
        raise RuntimeError("libcuda.so.1")

    driver.cuInit = init
    return driver


@pytest.mark.parametrize(
    ("module", "sentence"),
    [
        (missing, r"tidewright\[cuda\]"),
        (no_library, "no NVIDIA driver"),
        (lambda name: Bindings(cuInit=100), "no usable CUDA device .*NO_DEVICE"),
    ],
)
def test_what_is_missing_is_said_in_one_line(monkeypatch, module, sentence):
    monkeypatch.setattr(cuda, "import_module", module)
    with pytest.raises(WorldError, match=sentence) as caught:
        cuda.open_api()
    assert "\n" not in str(caught.value)
    driver = GpuDriver(FreezeDriver("n1", reserve=0), lambda: (A,))
    verdict = driver.can(gang(), "h100")
    assert not verdict.ok and verdict.reason == str(caught.value)
    assert driver.can(gang(), "cpu").ok, "on CPU slots the driver is not asked"


def gang(*handles: RankHandle) -> Gang:
    return Gang(job=1, attempt=0, world_size=max(1, len(handles)), ranks=handles, bounded=True)


def progress(handles: list[RankHandle]) -> float:
    """Clock ticks of all members."""
    total = 0
    for pid in (pid for handle in handles for pid in members(handle)):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total


@pytest.fixture
def ranks():
    """Two busy processes, each with a busy child that does not use CUDA."""
    busy = "import os\nos.fork()\nwhile True: pass"
    started, handles = [], []
    for number in range(2):
        process = subprocess.Popen([sys.executable, "-c", busy], start_new_session=True)
        started.append(process)
        handles.append(RankHandle(rank=number, pid=process.pid, start=stat(process.pid).start))
    assert cgroup.wait_until(lambda: all(len(members(handle)) == 2 for handle in handles), 10)
    yield handles
    for handle, process in zip(handles, started, strict=True):
        send(members(handle), signal.SIGCONT)
        send(members(handle), signal.SIGKILL)
        process.wait()


def on_gpu(handles: list[RankHandle], **how) -> tuple[FakeCuda, GpuDriver]:
    """The driver over one that stops the processes, and a fake device memory."""
    api = FakeCuda((A, B))
    for handle in handles:
        api.start(handle.pid, (A,))
    how = {"api": lambda: api, **how}
    return api, GpuDriver(FreezeDriver("n1", reserve=0), lambda: api.devices, **how)


@pytest.mark.processes
def test_the_gpu_driver_passes_the_kit(ranks):
    api, driver = on_gpu(ranks)
    check_driver(driver, gang(*ranks), "n1", lambda: progress(ranks), "h100")
    per_rank = [[call for call, pid in api.calls if pid == handle.pid] for handle in ranks]
    assert per_rank == [["lock", "checkpoint", "restore", "unlock"]] * 2


@pytest.mark.processes
def test_processes_are_stopped_after_their_memory_is_out_and_run_before_it_is_in(ranks):
    api, driver = on_gpu(ranks)
    seen: list[tuple[str, str]] = []

    def spy_on(name: str) -> None:
        real = getattr(api, name)

        def spy(pid, *rest):
            seen.append((name, stat(pid).state))
            return real(pid, *rest)

        setattr(api, name, spy)

    for name in ("lock", "checkpoint", "restore", "unlock"):
        spy_on(name)
    image = driver.save(gang(*ranks))
    assert {state for _, state in seen} <= {"R", "S"}, "the driver works through a thread of the process"
    assert all(stat(pid).state == "T" for handle in ranks for pid in members(handle))
    driver.restore(image, RestorePlacement(node="n1"))
    assert {state for _, state in seen} <= {"R", "S"} and len(seen) == 8


@pytest.mark.processes
def test_when_the_processes_cannot_be_saved_they_get_their_devices_back(ranks, monkeypatch):
    api, driver = on_gpu(ranks)

    def fail(self, gang):
        raise WorldError("the disk is full")

    monkeypatch.setattr(FreezeDriver, "save", fail)
    with pytest.raises(WorldError, match="disk is full"):
        driver.save(gang(*ranks))
    assert [api.state(handle.pid) for handle in ranks] == [CudaState.RUNNING] * 2


@pytest.mark.processes
def test_the_host_must_have_room(ranks):
    _, driver = on_gpu(ranks, in_use=lambda pids: 2**40, available=lambda: 2**33)
    verdict = driver.can(gang(*ranks), "h100")
    assert not verdict.ok and "1.0TiB" in verdict.reason, verdict


class Dumper(FreezeDriver):
    """Dumps nothing, and remembers in which states the devices were."""

    def __init__(self, api: FakeCuda, error: str = "") -> None:
        super().__init__("n1", reserve=0)
        self.api, self.error, self.seen = api, error, []

    def can(self, gang: Gang, kind: str) -> DriverVerdict:
        return DriverVerdict(kind == "cpu", "only without devices")

    def dump(self, handles, directory, *, leave_running):
        self.seen += [self.api.state(handle.pid) for handle in handles]
        if self.error:
            raise WorldError(self.error)
        return str(directory)

    def resume(self, handles):
        """They run."""


@pytest.mark.processes
@pytest.mark.parametrize(
    ("leave_running", "error", "after"),
    [(True, "", CudaState.RUNNING), (False, "", CudaState.CHECKPOINTED), (False, "no room", CudaState.RUNNING)],
)
def test_a_dump_finds_no_device_memory(ranks, tmp_path, leave_running, error, after):
    api, _ = on_gpu(ranks)
    inner = Dumper(api, error)
    driver = GpuDriver(inner, lambda: api.devices, api=lambda: api)
    assert driver.can(gang(*ranks), "h100").ok
    try:
        assert driver.dump(ranks, tmp_path, leave_running=leave_running) == str(tmp_path)
        assert not error
    except WorldError as failure:
        assert str(failure) == error
    assert inner.seen == [CudaState.CHECKPOINTED] * 2
    assert [api.state(handle.pid) for handle in ranks] == [after] * 2


@pytest.mark.processes
@pytest.mark.parametrize("saved", [False, True])
def test_an_agent_that_died_in_the_middle_leaves_nothing_that_cannot_be_undone(ranks, saved):
    api, _ = on_gpu(ranks)
    driver = GpuDriver(Dumper(api), lambda: api.devices, api=lambda: api)
    api.lock(ranks[0].pid, 0)
    if saved:
        api.checkpoint(ranks[0].pid)
    driver.resume(ranks)
    assert [api.state(handle.pid) for handle in ranks] == [CudaState.RUNNING] * 2


@pytest.mark.processes
@pytest.mark.parametrize("error", ["", "disk full"])
def test_time_shared_ranks_are_not_resumed_together(ranks, tmp_path, error):
    api, _ = on_gpu(ranks)
    driver = GpuDriver(Dumper(api, error), lambda: api.devices, api=lambda: api)
    driver.cuda().suspend([ranks[1].pid])
    with contextlib.suppress(WorldError):
        driver.dump(ranks, tmp_path, leave_running=True, time_shared={1})
    assert [api.state(handle.pid) for handle in ranks] == [CudaState.RUNNING, CudaState.CHECKPOINTED]
    api.stuck.add(ranks[0].pid)
    with pytest.raises(WorldError, match="in time"):
        driver.dump(ranks, tmp_path, leave_running=True, time_shared={1})
    assert [api.state(handle.pid) for handle in ranks] == [CudaState.RUNNING, CudaState.CHECKPOINTED], "as before"


@pytest.mark.processes
def test_time_shared_ranks_are_moved_one_by_one_and_stay_suspended(ranks, tmp_path):
    api, _ = on_gpu(ranks)
    api.memory = 10
    for handle in ranks:
        api.start(handle.pid, (A,), need=6)
    driver = GpuDriver(Dumper(api), lambda: api.devices, api=lambda: api)
    driver.dump(ranks, tmp_path, leave_running=False)
    seats = {rank: DeviceSeat(node=(A, B), had=(A,), gets=(B,)) for rank in (0, 1)}
    driver.restore_devices(ranks, seats, time_shared={0, 1})
    assert [api.on(handle.pid) for handle in ranks] == [(B,)] * 2
    assert [api.state(handle.pid) for handle in ranks] == [CudaState.CHECKPOINTED] * 2


@pytest.mark.processes
def test_ranks_that_run_but_cannot_have_their_devices_are_lost(ranks, tmp_path):
    api, _ = on_gpu(ranks)
    driver = GpuDriver(Dumper(api), lambda: api.devices, api=lambda: api)
    api.broken.add(ranks[1].pid)
    with pytest.raises(DeviceStateLost):
        driver.dump(ranks, tmp_path, leave_running=True)


@pytest.mark.processes
def test_restored_ranks_awake_on_their_new_devices(ranks, tmp_path):
    api, _ = on_gpu(ranks)
    driver = GpuDriver(Dumper(api), lambda: api.devices, api=lambda: api)
    driver.dump(ranks, tmp_path, leave_running=False)
    seats = {0: seat_of(facts_of((A, B), (A,)), [B]), 1: DeviceSeat(node=(A, B), had=(A,), gets=(A,))}
    driver.restore_devices(ranks, seats)
    assert [api.on(handle.pid) for handle in ranks] == [(B,), (A,)]
    assert [api.state(handle.pid) for handle in ranks] == [CudaState.RUNNING] * 2
    with pytest.raises(WorldError, match="damaged"):
        seat_of({"node": 5}, [B])


PASSES = """
from tidewright.checkpoint.cuda.checkpoint import CudaCheckpoint, open_api
cuda = CudaCheckpoint(open_api(), lock_us=2_500_000)
assert cuda.users([1, 5]) == [5]
cuda.suspend([1, 5])
cuda.resume([5], {5: {%r: %r, %r: %r}})
try:
    cuda.suspend([9])
except Exception as error:
    print(error)
"""


@pytest.mark.processes
def test_the_bindings_pass_it_all_on_to_the_driver(tmp_path):
    """Through the real bindings into a library that has the driver's interface, and no device."""
    environment = stub_libcuda(Path(__file__).with_name("libcuda.c"), tmp_path)
    ran = subprocess.run(
        [sys.executable, "-c", PASSES % (A, B, B, A)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    one, two = UUID(int=1).hex, UUID(int=2).hex
    assert ran.stderr.splitlines() == [
        "init 0", "lock 5 2500", "checkpoint 5 -", f"restore 5 {one}={two} {two}={one}", "unlock 5 -", "lock 9 2500"
    ]  # fmt: skip
    assert "CUDA_ERROR_NOT_READY" in ran.stdout and "within 2.5s" in ran.stdout


def test_bindings_of_this_machine_have_every_name():
    driver = pytest.importorskip("cuda.bindings.driver", reason="cuda-bindings is not installed")
    if not hasattr(driver, "CUcheckpointGpuPair"):
        pytest.skip("bindings older than 13.0 know no other devices")
    uuid, pair, args = driver.CUuuid(), driver.CUcheckpointGpuPair(), driver.CUcheckpointRestoreArgs()
    pair.oldUuid = uuid
    args.gpuPairs, args.gpuPairsCount = [pair], 1
    driver.CUcheckpointLockArgs().timeoutMs = 5
    assert BindingsApi._uuid(SimpleNamespace(_driver=driver), A).bytes == UUID(int=1).bytes
    for name in ("Lock", "Checkpoint", "Restore", "Unlock", "GetState"):
        assert callable(getattr(driver, f"cuCheckpointProcess{name}"))
    assert [int(each) for each in driver.CUprocessState][:4] == [int(state) for state in CudaState][:4]
