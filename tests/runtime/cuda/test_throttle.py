"""Kernels launched one by one, in virtual time: at most two at once, in order, each once, and beside real-time work none (REEF-N)
or only those that Orion's policy admits."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.conftest import Start, children_of
from tidewright.base.errors import UsageError
from tidewright.runtime.cuda.throttle import DEPTH, ORION_SHARE, RealTimeProgress, ThrottledChain
from tidewright.runtime.cuda.worker.queues import ChainQueue
from tidewright.runtime.daemon.main import parser, settings_of
from tidewright.runtime.padding.nvidia_rule import BY_PROFILE, GridKernel, Roofline
from tidewright.runtime.transport.messages import RunTask, StoppedAtGate, TaskEnded

SMS = 100
C, M = Roofline.COMPUTE, Roofline.MEMORY


def kernel(ns: int, bound: Roofline = C, sms: int = 10) -> GridKernel:
    return GridKernel(sms, 1, ns, ns, bound)


@dataclass
class Device:
    """One stream: kernels run one after the other."""

    kernels: list[GridKernel]
    now: int = 0
    free_at: int = 0
    launched: list[tuple[int, int]] = field(default_factory=list)
    """Each with the time at which it ends."""

    def launch(self, at: int) -> Callable[[], bool]:
        self.free_at = ends = max(self.now, self.free_at) + self.kernels[at].total_ns
        self.launched.append((at, ends))
        return lambda: self.now >= ends

    def on_device(self) -> int:
        return sum(ends > self.now for _, ends in self.launched)

    def chain(self, progress: RealTimeProgress) -> ThrottledChain:
        return ThrottledChain(self.kernels, self.launch, progress)

    def progress(self) -> RealTimeProgress:
        return RealTimeProgress(SMS, lambda: self.now)


def test_each_kernel_runs_once_in_order_and_never_while_it_is_held_back() -> None:
    for seed in range(200):
        _held_back_at_random(random.Random(seed))


def _held_back_at_random(dice: random.Random) -> None:
    device = Device([kernel(dice.randrange(1, 50)) for _ in range(30)])
    progress = device.progress()
    chain = device.chain(progress)
    for task in range(1, 4):
        chain.begin()
        while not chain.complete:
            held = dice.random() < 0.3
            if dice.random() < 0.2:
                progress.end() if progress.active else progress.begin([kernel(100)])
            before = len(device.launched)
            quiet = chain.pump(held)
            launched = len(device.launched) > before
            assert not (launched and (held or progress.active)), "launched though it was held back"
            assert device.on_device() <= DEPTH
            assert quiet == (device.now >= device.free_at)
            device.now += dice.randrange(0, 30)
        assert [at for at, _ in device.launched] == list(range(30)) * task


def test_two_kernels_are_on_the_device_at_once() -> None:
    device = Device([kernel(10)] * 6)
    chain = device.chain(device.progress())
    chain.begin()
    chain.pump(False)
    chain.pump(False)
    assert len(device.launched) == DEPTH
    device.now = 10
    chain.pump(False)
    assert len(device.launched) == DEPTH + 1


def test_a_task_that_is_discarded_is_forgotten() -> None:
    device = Device([kernel(10)] * 6)
    chain = device.chain(device.progress())
    chain.begin()
    chain.pump(False)
    device.now = 100
    assert chain.pump(True) and not chain.complete
    chain.discard()
    assert chain.complete


@pytest.mark.parametrize(
    ("one", "launched"),
    [
        (kernel(20, M), True),
        (kernel(20, C), False),  # bound by what the real-time kernel is bound by
        (kernel(20, Roofline.UNKNOWN), True),
        (kernel(20, M, sms=41), False),  # the real-time kernel leaves 40
        (kernel(5000, M), True),  # however long it is, if none is beside it: Orion limits what is outstanding
    ],
)
def test_orion_admits_small_kernels_of_another_profile(one: GridKernel, launched: bool) -> None:
    device = Device([one])
    progress = device.progress()
    progress.begin([kernel(1000, C, sms=60), kernel(1000, M, sms=60)])
    chain = device.chain(progress)
    chain.by_profile = True
    chain.begin()
    chain.pump(False)
    assert bool(device.launched) is launched


def test_orion_follows_the_kernel_that_runs_now() -> None:
    device = Device([kernel(20, C)])
    progress = device.progress()
    progress.begin([kernel(1000, C), kernel(1000, M)])
    chain = device.chain(progress)
    chain.by_profile = True
    chain.begin()
    for now, launched in ((0, 0), (999, 0), (1000, 1)):
        device.now = now
        chain.pump(False)
        assert len(device.launched) == launched
    progress.end()
    assert progress.admits(kernel(10**9, C), 10**9), "without real-time work all is admitted"
    progress.begin([kernel(10)])
    device.now += 10
    assert not progress.admits(kernel(1, M), 0), "it takes longer than alone: what it runs is not known"


def test_orion_limits_what_is_outstanding() -> None:
    whole = 10_000
    device = Device([kernel(int(0.7 * ORION_SHARE * whole), M)] * 4)
    progress = device.progress()
    progress.begin([kernel(whole, C)])
    chain = device.chain(progress)
    chain.by_profile = True
    chain.begin()
    chain.pump(False)
    assert len(device.launched) == 1
    device.now = device.free_at
    chain.pump(False)
    assert len(device.launched) == 2


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--stop", "kernel"], ("never", ())),
        (["--stop", "kernel", "--padding", "profile"], ("always", (1,))),
        (["--stop", "kernel", "--padding", "always"], "no share"),
        (["--padding", "profile"], "--stop kernel"),
        (["--padding", "always", "--padding-sms", "24"], ("always", (24,))),
        (["--stop", "none", "--padding", "always"], "no padding"),
        (["--padding", "always", "--padding-sms", "0"], "give at least 1"),
        (["--padding", "/nowhere"], "tide runtime calibrate"),
        (["--sequential", "--padding", "always"], "no padding"),
    ],
)
def test_profiles_go_with_kernels_that_are_launched_one_by_one(options: list[str], expected: Any) -> None:
    args = parser().parse_args(["--socket", "/s", "--device", "cuda", *options])
    if isinstance(expected, str):
        with pytest.raises(UsageError) as raised:
            settings_of(args)
        assert expected in str(raised.value)
    else:
        found = settings_of(args)
        assert (found.padding, found.shares) == expected


class OneByOne:
    """A model whose kernels are launched one by one, behind the interface of a queue."""

    def __init__(self, chain: ThrottledChain, shares: tuple[int, ...]) -> None:
        self.chain, self.shares, self.share = chain, shares, 0

    def begin(self, slot: int, share: int) -> None:
        self.chain.begin()
        self.go_on(share)

    def go_on(self, share: int) -> None:
        self.share, self.chain.by_profile = share, bool(share)
        self.chain.pump(False)

    def drained(self, more: bool) -> bool:
        return self.chain.pump(not more)

    @property
    def complete(self) -> bool:
        return self.chain.complete

    def deliver(self, slot: int) -> None:
        assert self.complete

    def delivered(self) -> bool:
        return True

    def discard(self) -> None:
        self.chain.discard()


@pytest.mark.parametrize("shares", [(), (BY_PROFILE,)])
def test_no_kernel_is_launched_under_a_stop(shares: tuple[int, ...]) -> None:
    """From the turn on in which it has come, and also when real-time work ends while it is in force."""
    for seed in range(100):
        _stopped_at_random(random.Random(seed), shares)


def _stopped_at_random(dice: random.Random, shares: tuple[int, ...]) -> None:
    device = Device([kernel(dice.randrange(5, 60), dice.choice((C, M))) for _ in range(20)])
    progress = device.progress()
    queue = ChainQueue(lambda closed: None)
    queue.models[1] = OneByOne(device.chain(progress), shares)
    stop = number = 0
    for task in range(5):
        queue.run(RunTask(task, 1, 0))
    for _ in range(600):
        what = dice.random()
        if what < 0.05:
            progress.end() if progress.active else progress.begin([kernel(100, C), kernel(100, M)])
        elif what < 0.10:
            stop = number = number + 1
            queue.stop(number)
        elif what < 0.25:
            stop = 0
            queue.resume()
        elif what < 0.30:
            queue.pad(dice.choice((0, BY_PROFILE)))
        before = len(device.launched)
        queue.turn(progress.active)
        assert not (stop and len(device.launched) > before), "launched under a stop"
        assert not any(isinstance(report, StoppedAtGate) for report in queue.out) or not device.on_device()
        queue.out = [report for report in queue.out if isinstance(report, TaskEnded)]
        device.now += dice.randrange(20)
    queue.resume()
    progress.end()
    for _ in range(1000):
        queue.turn(False)
        device.now += 30
    assert queue.out == [TaskEnded(task) for task in range(5)]
    assert [at for at, _ in device.launched] == list(range(20)) * 5


@pytest.mark.processes
def test_the_device_worker_is_started_with_the_way_to_stop(start_runtime: Start) -> None:
    runtime = start_runtime("--stop", "kernel", "--padding", "profile", module="tests.runtime.cuda.host_daemon")
    (worker,) = children_of(runtime.process.pid)
    command = Path(f"/proc/{worker}/cmdline").read_text().split("\0")
    assert command[command.index("--stop") + 1] == "kernel" and command[command.index("--shares") + 1] == "1"
