"""The queues of a device's worker over a device of numbers: which launches they make, at which gates, and when they stop them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from tidewright.runtime.cuda.worker.queues import ChainQueue
from tidewright.runtime.transport.messages import RunTask, StoppedAtGate, TaskEnded

SHARES = (8, 16)


@dataclass
class Gates:
    """``real_time`` closes those of launches that have all of the device; ``closed`` those of the queue."""

    real_time: bool = False
    closed: bool = False


@dataclass
class NumberedModel:
    """A task is ``work`` units, of which each tick of an open gate does one. At a closed gate it drains after two ticks."""

    gates: Gates
    work: int
    shares: tuple[int, ...] = SHARES
    share: int = 0
    left: int = 0
    on_device: bool = False
    draining: int = 0
    slots: list[int] = field(default_factory=list)
    beside: int = 0
    """Units that were done while real-time work ran."""

    def begin(self, slot: int, share: int) -> None:
        assert self.complete, "a task was begun on top of another"
        self.slots.append(slot)
        self.left = self.work
        self.go_on(share)

    def go_on(self, share: int) -> None:
        assert not self.on_device
        assert not share or share in self.shares
        self.share, self.on_device, self.draining = share, True, 0

    def tick(self) -> None:
        if not self.on_device:
            return
        if self.draining or self.gates.closed or (self.gates.real_time and not self.share):
            self.draining += 1  # sticky
        else:
            self.left -= 1
            self.beside += self.gates.real_time
        self.on_device = self.left > 0 and self.draining < 2

    def drained(self, more: bool) -> bool:
        return not self.on_device

    @property
    def complete(self) -> bool:
        return not self.on_device and self.left == 0

    def deliver(self, slot: int) -> None:
        assert self.complete and self.slots[-1] == slot

    def delivered(self) -> bool:
        return True

    def discard(self) -> None:
        assert not self.on_device and self.left
        self.left, self.on_device, self.draining = 0, True, 2  # it is on the device for a moment, too


def made(work: int = 20, shares: tuple[int, ...] = SHARES) -> tuple[ChainQueue, NumberedModel, Gates]:
    gates = Gates()
    queue = ChainQueue(lambda closed: setattr(gates, "closed", closed))
    model = NumberedModel(gates, work, shares)
    queue.models[1] = model
    return queue, model, gates


def turns(queue: ChainQueue, model: NumberedModel, gates: Gates, count: int) -> None:
    for _ in range(count):
        queue.turn(gates.real_time)
        model.tick()


def test_beside_real_time_work_it_goes_on_with_its_share_and_has_all_again_afterwards() -> None:
    queue, model, gates = made()
    queue.run(RunTask(7, 1, 0))
    turns(queue, model, gates, 5)
    assert (model.share, model.left) == (0, 15)
    gates.real_time = True
    queue.pad(16)
    turns(queue, model, gates, 6)
    assert model.share == 16 and model.beside > 0
    gates.real_time = False
    turns(queue, model, gates, 6)
    assert model.share == 0 and model.on_device and not gates.closed
    turns(queue, model, gates, 20)
    assert queue.out == [TaskEnded(7)]


@pytest.mark.parametrize("granted", [0, 32])
def test_without_a_share_that_the_model_has_it_waits(granted: int) -> None:
    queue, model, gates = made()
    gates.real_time = True
    queue.pad(granted)
    queue.run(RunTask(7, 1, 0))
    turns(queue, model, gates, 5)
    assert not model.slots
    gates.real_time = False
    turns(queue, model, gates, 30)
    assert queue.out == [TaskEnded(7)] and not model.beside


def test_a_stop_closes_its_gate_also_beside_real_time_work() -> None:
    queue, model, gates = made()
    gates.real_time = True
    queue.pad(8)
    queue.run(RunTask(7, 1, 0))
    turns(queue, model, gates, 3)
    assert model.on_device and model.share == 8
    queue.stop(1)
    turns(queue, model, gates, 6)
    assert not model.on_device and queue.out == [StoppedAtGate(7, 0, 1)]
    queue.resume()
    turns(queue, model, gates, 40)
    assert queue.out[-1] == TaskEnded(7)


@pytest.mark.parametrize("real_time", [False, True])
def test_a_task_that_has_begun_is_cut_short_when_it_is_cancelled(real_time: bool) -> None:
    queue, model, gates = made(1000)
    queue.pad(16)
    queue.run(RunTask(7, 1, 0))
    queue.run(RunTask(8, 1, 1))
    turns(queue, model, gates, 5)
    gates.real_time = real_time
    turns(queue, model, gates, 5)
    queue.skip(7)
    model.work = 3
    turns(queue, model, gates, 20)
    assert queue.out == [TaskEnded(7, skipped=True), TaskEnded(8)] and model.slots == [0, 1]


def test_whatever_comes_each_task_is_done_once_and_never_beside_what_it_may_not() -> None:
    for seed in range(300):
        _story(random.Random(seed))


def _story(dice: random.Random) -> None:
    queue, model, gates = made(dice.choice((1, 4, 15)), dice.choice(((), (8,), SHARES)))
    granted = stopped = number = 0
    ended: list[int] = []
    for task in range(12):
        queue.run(RunTask(task, 1, task))
    for _ in range(400):
        what = dice.random()
        if what < 0.05:
            gates.real_time = not gates.real_time
        elif what < 0.15:
            granted = dice.choice((0, 8, 16, 32))
            queue.pad(granted)
        elif what < 0.20:
            number += 1
            stopped = number
            queue.stop(number)
        elif what < 0.30:
            stopped = 0
            queue.resume()
        before = (model.on_device, model.share)
        queue.turn(gates.real_time)
        if model.on_device and (model.on_device, model.share) != before:
            assert not stopped, "launched in spite of a stop"
            assert model.share == (granted if gates.real_time else 0), "launched on a share that was not granted"
        model.tick()
        for report in queue.out:
            if isinstance(report, TaskEnded):
                ended.append(report.task)
            elif isinstance(report, StoppedAtGate):
                assert not model.on_device, "acknowledged while it runs"
        queue.out.clear()
    queue.resume()
    gates.real_time = False
    turns(queue, model, gates, 600)
    ended += [report.task for report in queue.out if isinstance(report, TaskEnded)]
    assert ended == list(range(12)) == model.slots
