"""Time slices of several ranks on one device: no deadlock, no two ranks compute at once, no file stays open."""

from __future__ import annotations

import ast
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidewright.launch.inject._tidewright import splice
from tidewright.launch.inject._tidewright.splice import LockShare, SwapShare

from ..sizes import examples

INJECT = Path(splice.__file__).parents[1]
LOCKED = {"devices": [0], "share": 2, "turns": "lock"}


@pytest.fixture(autouse=True)
def no_time_slices():
    """Every test begins and ends without time slices."""
    splice.reset({})
    yield
    splice.reset({})


def open_below(directory: Path) -> list[str]:
    """Files that this process has open below ``directory``."""
    links = [f"/proc/self/fd/{number}" for number in os.listdir("/proc/self/fd")]
    return [
        found for link in links if os.path.lexists(link) and (found := os.readlink(link)).startswith(str(directory))
    ]


class Deadlock(Exception):
    """Every rank waits."""


class Stage:
    """Runs ranks one at a time, in an order drawn by ``rng``; one that waits is asked again until it need not."""

    def __init__(self, rng: random.Random, patch: pytest.MonkeyPatch) -> None:
        self._rng = rng
        self._mine = threading.local()
        self._said = threading.Semaphore(0)
        self.waiting: dict[int, bool] = {}
        self.errors: list[BaseException] = []
        self.over = False
        patch.setattr(splice, "_await", lambda ready, until, over: self.wait(ready))

    def wait(self, ready) -> bool:
        """In a rank: other ranks may run now and until ``ready()``."""
        number = self._mine.number
        self._pause(number, False)
        while not ready():
            self._pause(number, True)
        return True

    def _pause(self, number: int, waits: bool) -> None:
        self.waiting[number] = waits
        self._said.release()
        self._go[number].acquire()
        if self.over:
            raise Deadlock

    def run(self, programs) -> None:
        """Until all have ended. Raises Deadlock when every one that has not waits, with no way on."""
        self._go = [threading.Semaphore(0) for _ in programs]
        threads = [threading.Thread(target=self._rank, args=each, daemon=True) for each in enumerate(programs)]
        for thread in threads:
            thread.start()
        for _ in threads:
            self._said.acquire()
        stale: set[int] = set()
        while self.waiting and not self.errors:
            number = self._rng.choice(sorted(set(self.waiting) - stale))
            self._go[number].release()
            self._said.acquire()
            stale = stale | {number} if self.waiting.get(number) else set()
            if self.waiting and stale >= set(self.waiting):
                self.errors.append(Deadlock(f"ranks {sorted(self.waiting)} all wait"))
        self.over = True
        for go in self._go:
            go.release()
        for thread in threads:
            thread.join(5)
        if self.errors:
            raise self.errors[0]

    def _rank(self, number: int, program) -> None:
        self._mine.number = number
        try:
            self._pause(number, False)
            program()
        except Deadlock:
            pass
        except BaseException as error:
            self.errors.append(error)
        finally:
            self.waiting.pop(number, None)
            self._said.release()


class Job:
    """Ranks that compute and meet in groups. ``held``: the rank that computes on a device now."""

    def __init__(self, stage: Stage, directory: Path, seats: list[list[int]], plan, *, polite: bool = True) -> None:
        self._stage, self._plan, self._polite = stage, plan, polite
        self._shares = [LockShare(str(directory), devices, float("inf")) for devices in seats]
        self._seats, self.held, self.arrived = seats, {}, {}

    def programs(self):
        """One for each rank."""
        return [lambda rank=rank: self._live(rank) for rank in range(len(self._shares))]

    def _live(self, rank: int) -> None:
        share = self._shares[rank]
        for step, group in enumerate(self._plan):
            assert share.acquire()
            self._compute(rank)
            if rank in group:
                if self._polite:
                    share.release()
                self.arrived[step, rank] = True
                self._stage.wait(lambda step=step, group=group: all((step, peer) in self.arrived for peer in group))
        share.release()

    def _compute(self, rank: int) -> None:
        for device in self._seats[rank]:
            assert self.held.setdefault(device, rank) == rank, f"two ranks compute on device {device}"
        self._stage.wait(lambda: True)
        for device in self._seats[rank]:
            del self.held[device]


@settings(max_examples=examples(80), deadline=None)
@given(seed=st.integers(0, 2**32), ranks=st.integers(2, 5), devices=st.integers(1, 3), steps=st.integers(1, 5))
def test_no_rank_deadlocks_and_no_two_compute_at_once(tmp_path_factory, seed, ranks, devices, steps):
    rng = random.Random(seed)
    seats = [rng.sample(range(devices), rng.randint(1, devices)) for _ in range(ranks)]
    plan = [sorted(rng.sample(range(ranks), rng.randint(2, ranks))) for _ in range(steps)]
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(rng, patch)
        job = Job(stage, tmp_path_factory.mktemp("slots"), seats, plan)
        stage.run(job.programs())
    assert not job.held


def test_the_stage_sees_a_deadlock(tmp_path):
    """A rank that waits for others during its time slice keeps them from coming."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Deadlock):
        stage = Stage(random.Random(1), patch)
        stage.run(Job(stage, tmp_path, [[0], [0]], [[0, 1]], polite=False).programs())


@pytest.mark.parametrize("seed", range(20))
def test_a_rank_that_releases_for_an_instant_does_not_overtake_a_waiting_one(tmp_path, seed):
    order: list[str] = []
    shares = {name: LockShare(str(tmp_path), [0], float("inf")) for name in ("eager", "patient")}
    with pytest.MonkeyPatch.context() as patch:
        stage = Stage(random.Random(seed), patch)

        def in_the_queue() -> bool:
            file = os.open(tmp_path / "0.door", os.O_RDWR | os.O_CREAT)
            try:
                return not splice._try(file)
            finally:
                os.close(file)

        def eager() -> None:
            assert shares["eager"].acquire()
            stage.wait(in_the_queue)
            for _ in range(5):
                shares["eager"].release()
                assert shares["eager"].acquire()
                order.append("eager")

        def patient() -> None:
            stage.wait(lambda: shares["eager"].held)
            assert shares["patient"].acquire()
            order.append("patient")
            shares["patient"].release()

        stage.run([eager, patient])
    assert order[0] == "patient"


def holder(tmp_path: Path) -> subprocess.Popen:
    """A process that acquires the time slice and keeps it."""
    code = (
        "import sys, time; from _tidewright import splice;"
        f"splice.reset({LOCKED!r}, {{'TIDE_SLOTS': {str(tmp_path)!r}}}); splice.acquire(); print('mine', flush=True);"
        "time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(INJECT)}, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"mine\n"
    return process


@pytest.mark.processes
def test_the_time_slice_of_a_killed_rank_passes_on(tmp_path):
    process, share = holder(tmp_path), LockShare(str(tmp_path), [0], 30.0)
    taken = threading.Thread(target=share.acquire)
    taken.start()
    time.sleep(0.05)
    assert not share.held
    process.kill()
    taken.join(10)
    assert share.held and share.timeouts == 0
    process.wait()
    share.release()


@pytest.mark.processes
def test_a_stopped_rank_blocks_others_only_until_their_patience_ends(tmp_path):
    process = holder(tmp_path)
    try:
        process.send_signal(signal.SIGSTOP)
        share = LockShare(str(tmp_path), [0], 0.2)
        assert not share.acquire() and share.timeouts == 1 and not share.held
        assert open_below(tmp_path) == [], "nor is the queue locked"
    finally:
        process.kill()
        process.wait()
    assert share.acquire()
    share.release()


@pytest.mark.processes
def test_a_forked_child_has_no_part_in_the_time_slice(tmp_path):
    splice.reset(LOCKED, {"TIDE_SLOTS": str(tmp_path)})
    splice.acquire()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, repr((splice.active(), open_below(tmp_path))).encode())
        time.sleep(5)
        os._exit(0)
    try:
        assert os.read(read, 1000) == b"(False, [])"
        splice.release()
        assert LockShare(str(tmp_path), [0], 0.0).acquire(), "the child does not keep it"
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_files_are_open_only_during_a_time_slice(tmp_path):
    splice.reset(LOCKED, {"TIDE_SLOTS": str(tmp_path)})
    assert splice.active() and open_below(tmp_path) == []
    splice.acquire()
    assert open_below(tmp_path) == [str(tmp_path / "0")]
    splice.acquire()
    splice.release()
    splice.release()
    assert open_below(tmp_path) == []
    splice.acquire()
    splice.reset({"devices": [0], "share": 1}, {"TIDE_SLOTS": str(tmp_path)})
    assert open_below(tmp_path) == [] and not splice.active(), "alone again: the time slice has ended"


def test_a_thread_that_waits_for_a_time_slice_goes_on_when_the_rank_quiesces(tmp_path):
    """A thread that waits would keep a queue's file open in the image, and bring its lock to another node."""
    other = LockShare(str(tmp_path), [0])
    assert other.acquire()
    splice.reset(LOCKED, {"TIDE_SLOTS": str(tmp_path)})
    waiting = threading.Thread(target=splice.acquire)
    waiting.start()
    while str(tmp_path / "0.door") not in open_below(tmp_path):
        time.sleep(0.001)
    splice.quiesce()
    assert open_below(tmp_path) == [str(tmp_path / "0")], "the other's, and nothing else"
    waiting.join(10)
    assert not waiting.is_alive() and not splice.active()
    other.release()


def test_an_ended_share_is_not_acquired_again(tmp_path):
    (tmp_path / "turn").write_bytes(b"1")
    for share in (LockShare(str(tmp_path), [0]), SwapShare(str(tmp_path))):
        assert share.acquire()
        share.end()
        assert not share.acquire() and not share.held and open_below(tmp_path) == []
    assert (tmp_path / "wants").read_bytes() == b"0"


@pytest.mark.parametrize(
    ("reach", "environ", "mode"),
    [
        ({}, {}, ""),
        ({"devices": [0]}, {}, ""),
        ({"devices": [0], "share": 1}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, ""),
        ({"devices": [], "share": 4}, {}, ""),
        ({"devices": [0], "share": 2}, {}, "os"),
        ({"devices": [0], "share": 2}, {"CUDA_VISIBLE_DEVICES": ""}, "os"),
        ({"devices": [0], "share": 2}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, "lock"),
        ({"devices": [0], "share": 2, "turns": "swap"}, {"CUDA_VISIBLE_DEVICES": "GPU-1"}, "swap"),
        ({"devices": [0], "share": 2, "turns": "lock"}, {}, "lock"),
        ({"devices": [0], "share": 2, "turns": "dice"}, {}, "os"),
    ],
)
def test_how_devices_are_shared(reach, environ, mode):
    assert splice.share_mode_of(reach, environ) == mode


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '{"share": 1}'])
def test_without_reach_json_there_are_no_time_slices(tmp_path, content):
    if content is not None:
        (tmp_path / "reach.json").write_text(content)
    splice.reset(environ={"TIDE_BOX": str(tmp_path), "TIDE_SLOTS": str(tmp_path)})
    splice.acquire()
    assert not splice.active()


def test_reach_json_is_read_again(tmp_path):
    environ = {"TIDE_BOX": str(tmp_path), "TIDE_SLOTS": str(tmp_path)}
    for share, active in ((2, True), (1, False), (3, True)):
        (tmp_path / "reach.json").write_text(f'{{"devices": [1, 0], "share": {share}, "turns": "lock"}}')
        splice.reset(environ=environ)
        splice.acquire()
        assert splice.active() is active
    assert open_below(tmp_path) == [str(tmp_path / "0"), str(tmp_path / "1")]


def test_a_swapped_rank_requests_a_time_slice_and_waits_for_its_grant(tmp_path):
    share = SwapShare(str(tmp_path), 0.05)
    assert not share.acquire() and share.timeouts == 1
    assert (tmp_path / "wants").read_bytes() == b"1"
    (tmp_path / "turn").write_bytes(b"1")
    assert share.acquire() and share.held
    share.release()
    assert not share.held and (tmp_path / "wants").read_bytes() == b"0"


class Recorder:
    """A share that notes what is done with it."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def acquire(self) -> None:
        self.notes.append("acquire")

    def release(self) -> None:
        self.notes.append("release")

    end = release


def test_the_time_slice_is_acquired_again_when_waiting_fails(monkeypatch):
    share = Recorder()
    monkeypatch.setattr(splice, "_share", share)
    with pytest.raises(ZeroDivisionError):
        splice.release_while(lambda: 1 / 0)
    assert share.notes == ["release", "acquire"]


@pytest.mark.processes
def test_one_release_for_each_backward_pass(monkeypatch):
    torch = pytest.importorskip("torch")
    share = Recorder()
    monkeypatch.setattr(splice, "_share", share)
    assert not splice.after_backward(lambda: None), "outside of a backward pass the caller uses release_while"
    weights = [torch.ones(2, requires_grad=True) for _ in range(3)]

    def hook(_) -> None:
        splice.after_backward(lambda: share.notes.append("wait"))

    for weight in weights:
        weight.register_hook(hook)
    for _ in range(2):
        sum((weight * weight).sum() for weight in weights).backward()
    assert share.notes == ["release", "wait", "acquire"] * 2
    splice.reset({})
    weights[0].sum().backward()
    assert len(share.notes) == 6 + 1, "reset released, and without time slices there is nothing to release"


def test_it_runs_in_the_oldest_python_of_users():
    ast.parse(Path(splice.__file__).read_text(), feature_version=(3, 9))
