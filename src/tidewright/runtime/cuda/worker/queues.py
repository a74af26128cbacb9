"""What clients' queues do on a CUDA device: tasks in order, stops and resumptions, cancels. Polled, never waiting.

Real-time work closes the gate of all queues itself (its graph's first node); what a queue does about it is to launch nothing
until it is over. A stop of one queue closes the gate of that queue alone, and only if its launch does not drain by itself.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ...transport.messages import RunTask, StoppedAtGate, TaskEnded


class PreemptibleModel(Protocol):
    """A model of a best-effort queue: a chain, and the slots that its tasks read and write."""

    shares: tuple[int, ...]
    """Multiprocessors with which it can go on while real-time work runs."""

    @property
    def share(self) -> int:
        """With which it was launched last; 0: with all of them, at gates that real-time work closes."""

    def begin(self, slot: int, share: int) -> None:
        """Copy the inputs, and launch."""

    def drained(self, more: bool) -> bool:
        """Whether nothing of it is on the device. ``more``: it may go on (launch the next kernels, where they are launched one by
        one)."""

    @property
    def complete(self) -> bool:
        """Whether the task, which has drained, ran to its end."""

    def go_on(self, share: int) -> None:
        """Launch what is left of the task."""

    def deliver(self, slot: int) -> None:
        """Begin to copy the outputs."""

    def delivered(self) -> bool:
        """Whether they are there."""

    def discard(self) -> None:
        """Forget a task that was cut short and has drained. It is done when that has drained, too."""


class RealTimeModel(Protocol):
    """A model of a real-time queue."""

    closes_gates: bool
    """Whether it stops best-effort work; else it has the priority of its stream alone."""

    def begin(self, slot: int) -> None:
        """Copy the inputs, run, copy the outputs: all in order on its stream."""

    def delivered(self) -> bool:
        """Whether the outputs are there."""


@dataclass(slots=True)
class _Running:
    task: RunTask
    model: Any
    delivering: bool = False
    abandoned: bool = False
    discarded: bool = False


class ClientQueue(ABC):
    """Tasks of one client, run in the order in which they came. ``out``: reports that are to be sent."""

    def __init__(self) -> None:
        self.models: dict[int, Any] = {}
        self.waiting: deque[RunTask] = deque()
        self.running: _Running | None = None
        self.out: list[Any] = []
        self.loading = 0
        """Models that are being made, or are to be."""
        self.gone = False

    @property
    def idle(self) -> bool:
        """Whether it has nothing to do."""
        return self.running is None and not self.waiting

    def run(self, task: RunTask) -> None:
        """Take a task in. One of a model that is gone has failed."""
        if task.model in self.models:
            self.waiting.append(task)
        else:
            self.out.append(TaskEnded(task.task, f"there is no model {task.model}"))

    def skip(self, task: int) -> None:
        """Do not begin a task; one that has begun goes on to its end."""
        found = next((one for one in self.waiting if one.task == task), None)
        if found is not None:
            self.waiting.remove(found)
            self.out.append(TaskEnded(task, skipped=True))

    def abandon(self) -> None:
        """Its client is gone: begin nothing more."""
        self.gone = True
        self.waiting.clear()

    @abstractmethod
    def turn(self, real_time: bool) -> None:
        """Do what can be done now. ``real_time``: real-time work is on the device."""


class UnplacedQueue(ClientQueue):
    """A best-effort queue without models: it takes nothing of the device."""

    def turn(self, real_time: bool) -> None:
        """Nothing is ever waiting."""


class GraphQueue(ClientQueue):
    """A real-time queue: its tasks are launched at once, one after the other."""

    def turn(self, real_time: bool) -> None:
        """Launch the next task when the one before has delivered. ``real_time``: work of a client that is gone is on the device;
        its graph would open the gates under this one's."""
        if self.running is not None and self.running.model.delivered():
            self.out.append(TaskEnded(self.running.task.task))
            self.running = None
        if self.running is None and self.waiting and not real_time:
            task = self.waiting.popleft()
            self.running = _Running(task, self.models[task.model])
            self.running.model.begin(task.slot)


class ChainQueue(ClientQueue):
    """A best-effort queue. ``close_gate``: close the gates of this queue on the device (True), or no longer.

    A share of the device that it was granted (``pad``) counts while real-time work runs: its chain, which that work has cut
    short, goes on there, and is cut short once more when the device is its own again."""

    def __init__(self, close_gate: Callable[[bool], None]) -> None:
        super().__init__()
        self._close_gate = close_gate
        self._closed = False
        self._stop = 0
        """The number of the stop in force."""
        self._acknowledged = 0
        self._share = 0

    def pad(self, share: int) -> None:
        """Go on with so many multiprocessors while real-time work runs; 0: no more."""
        self._share = share

    def skip(self, task: int) -> None:
        """Also one that has begun: it is cut short and forgotten."""
        if self.running is not None and self.running.task.task == task and not self.running.delivering:
            self.running.abandoned = True
        else:
            super().skip(task)

    def stop(self, number: int) -> None:
        """Launch nothing until ``resume``; acknowledged when nothing is on the device."""
        self._stop = number

    def resume(self) -> None:
        """The stop is over."""
        self._stop = 0

    def abandon(self) -> None:
        """Its client is gone: the task that has begun is cut short and forgotten, if it is not complete already."""
        super().abandon()
        if self.running is not None:
            self.running.abandoned = True

    def close(self) -> None:
        """Nothing of it is on the device any more: its gate is left open, for the queue that gets its control block."""
        self._open()

    def turn(self, real_time: bool) -> None:
        """Go on with the task, or begin the next."""
        if self.running is not None:
            self._go_on(self.running, real_time)
        if self.running is None:
            self._acknowledge(0)
            if self.waiting:
                self._begin(real_time)

    def _begin(self, real_time: bool) -> None:
        task = self.waiting[0]
        model = self.models[task.model]
        share = self._share_now(model, real_time)
        if share is not None:
            self._open()
            self.waiting.popleft()
            self.running = _Running(task, model)
            model.begin(task.slot, share)

    def _share_now(self, model: PreemptibleModel, real_time: bool) -> int | None:
        """With which it may be launched; None: not now."""
        if self._stop:
            return None
        if real_time:
            return self._share if self._share in model.shares else None
        return 0

    def _go_on(self, running: _Running, real_time: bool) -> None:
        model = running.model
        share = self._share_now(model, real_time)
        if running.delivering:
            if model.delivered():
                self._end(running)
        elif running.discarded:
            if model.drained(False):
                self._end(running, skipped=True)
        elif not model.drained(share == model.share and not running.abandoned):
            # Real-time work closes the gates of those that have all of the device, and opens them.
            closing = not model.share and real_time
            if (running.abandoned or share != model.share) and not closing and not self._closed:
                self._closed = True
                self._close_gate(True)
        elif model.complete:
            running.delivering = True
            model.deliver(running.task.slot)
        elif running.abandoned:
            model.discard()
            running.discarded = True
        elif share is None:
            self._acknowledge(running.task.task)
        else:
            self._open()
            model.go_on(share)

    def _end(self, running: _Running, skipped: bool = False) -> None:
        self.running = None
        self.out.append(TaskEnded(running.task.task, skipped=skipped))

    def _open(self) -> None:
        if self._closed:
            self._closed = False
            self._close_gate(False)

    def _acknowledge(self, task: int) -> None:
        """Nothing of the queue is on the device."""
        if self._stop and self._stop != self._acknowledged:
            self._acknowledged = self._stop
            self.out.append(StoppedAtGate(task, 0, self._stop))
