"""One client: its connection, its queue, its worker, its models' memory, and the tasks that it waits for."""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass, field

from ..models import ModelRecord
from ..scheduler.tasks import Task
from ..transport import memory
from ..transport.messages import Hello
from ..transport.rings import ENTRIES, RING_BYTES, Completion, RingPair
from .queue_worker import QueueWorker


@dataclass(slots=True)
class ClientSession:
    """``outstanding``: the client's own number of a task to the runtime's. ``slots``: model to the memory of its slots."""

    queue: int
    connection: socket.socket
    hello: Hello
    pid: int
    worker: QueueWorker
    ring_memory: int
    rings: RingPair
    outstanding: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)
    remaking: set[int] = field(default_factory=set)
    """Models that a new worker has not made yet."""
    unloading: set[int] = field(default_factory=set)
    """Models whose unloading the client waits for."""
    running: tuple[int, int] | None = None
    """Task, and ns of device time until its limit, as of ``watched_ns``."""
    making: int = 0
    """The model that the worker of a device makes now, since ``making_ns``."""
    making_ns: int = 0
    cut_off_ns: int = 0
    """When its worker closed the connection, as a rule because it has ended; 0: it has not."""
    losses: int = 0
    """Workers lost in a row, no task done between."""
    broken: str = ""
    """Why its queue takes no tasks any more."""
    began_ns: int = field(default_factory=time.monotonic_ns)
    stop_asked_ns: int = 0
    """Of a stop that is waited for; 0: of none."""
    stopping_ns: int = 0
    """Of the latest stop."""
    done: int = 0
    failed: int = 0
    cancelled: int = 0
    preemptions: int = 0

    @staticmethod
    def open(queue: int, connection: socket.socket, hello: Hello, pid: int, worker: QueueWorker) -> ClientSession:
        """With rings of its own. The caller closes it."""
        ring_memory = memory.create("rings", RING_BYTES)
        submitted = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        completed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        rings = RingPair(memory.attach(ring_memory, RING_BYTES), submitted, completed)
        return ClientSession(queue, connection, hello, pid, worker, ring_memory, rings)

    @property
    def name(self) -> str:
        return self.hello.name or f"client {self.queue}"

    @property
    def full(self) -> bool:
        """Whether it has as many tasks outstanding as its rings have entries."""
        return len(self.outstanding) >= ENTRIES

    def make_slots(self, model: ModelRecord, nbytes: int) -> int:
        """Memory for a model's slots; the session closes it."""
        self.slots[model.id] = memory.create("slots", nbytes)
        return self.slots[model.id]

    def drop_slots(self, model: int) -> None:
        """A model is gone."""
        descriptor = self.slots.pop(model, None)
        if descriptor is not None:
            os.close(descriptor)

    def complete(self, task: Task, error: str) -> None:
        """Tell the client of the end of a task."""
        self.outstanding.pop(task.client_task, None)
        self.preemptions += task.preemptions
        self.rings.complete(
            Completion(
                task.client_task,
                int(task.state),
                task.preemptions,
                task.submitted_ns,
                task.launched_ns,
                task.ended_ns,
                error,
            )
        )

    def close(self) -> None:
        """Everything of it. A worker of its own is killed, not reaped."""
        self.worker.close()
        self.connection.close()
        for descriptor in (self.ring_memory, self.rings.submitted, self.rings.completed, *self.slots.values()):
            os.close(descriptor)
        self.slots.clear()
