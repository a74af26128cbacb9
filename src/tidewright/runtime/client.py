"""The client of a runtime: load models, run tasks on them, synchronously or not. An object is a queue, real-time or best-effort.

with RuntimeClient(path, "rt") as client:
    model = client.load("torchvision.models:resnet18", [("float32", (1, 3, 224, 224))])
    (scores,) = model.infer(images)
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import numpy as np

from ..base.errors import Conflict, NotFound, Unreachable, UsageError, WorldError
from .endpoint import FOLLOW_S, endpoint
from .scheduler.tasks import TaskState
from .transport import memory
from .transport import messages as ms
from .transport.rings import ENTRIES, RING_BYTES, Completion, RingPair, Submission
from .transport.tensors import Signature, SlotLayout, TensorSpec

Inputs = Iterable[TensorSpec | tuple[str, Sequence[int]]]


class TaskFailed(WorldError):
    """The model raised, or its worker was lost; the text says which."""


class TaskCancelled(WorldError):
    """It was cancelled before the device began it, or in the midst of it on a GPU."""


class PendingTask:
    """A task that was submitted. ``completion`` is there once it has ended."""

    def __init__(self, model: RemoteModel, key: int, slot: int) -> None:
        self._model, self.key, self._slot = model, key, slot
        self.completion: Completion | None = None
        self._outputs: tuple[Any, ...] = ()

    def done(self) -> bool:
        """Whether it has ended, without waiting."""
        self._model.client.collect(0)
        return self.completion is not None

    def result(self, timeout_s: float | None = None) -> tuple[Any, ...]:
        """Its outputs, numpy arrays of their own (bytes where numpy has no such type). Raises TimeoutError after ``timeout_s``,
        TaskFailed or TaskCancelled; a task that timed out goes on."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self.completion is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise TimeoutError(f"task {self.key} has not ended within {timeout_s:g} s")
            self._model.client.collect(left)
        if self.completion.state == TaskState.FAILED:
            raise TaskFailed(self.completion.error)
        if self.completion.state == TaskState.CANCELLED:
            raise TaskCancelled(f"task {self.key} was cancelled")
        return self._outputs

    def cancel(self) -> bool:
        """Ask for it not to be begun. Returns whether it has ended as cancelled. One that runs goes on to its end; a best-effort
        one on a GPU is cut short, and ends as cancelled soon."""
        if self.completion is None:
            self._model.client.request(ms.CancelTask(self.key))
            self._model.client.collect(0)
        return self.completion is not None and self.completion.state == TaskState.CANCELLED

    def ended(self, completion: Completion) -> None:
        """Called by the client when the runtime says so."""
        if completion.state == TaskState.DONE:
            self._outputs = self._model.take_outputs(self._slot)
        self._model.free_slots.append(self._slot)
        self.completion = completion


class RemoteModel:
    """A model that the runtime has loaded for this client. ``slots`` tasks of it may be outstanding."""

    def __init__(self, client: RuntimeClient, name: str, loaded: ms.ModelLoaded, descriptor: int) -> None:
        self.client, self.name, self.key = client, name, loaded.model
        self.signature: Signature = loaded.signature
        self.nbytes, self.run_ns, self.gates = loaded.nbytes, loaded.run_ns, loaded.gates
        self.shares = loaded.shares
        """Multiprocessors of a GPU on which it can go on beside real-time work."""
        self._layout = SlotLayout.of(loaded.signature)
        self._memory = memory.attach(descriptor, self._layout.nbytes * loaded.slots)
        os.close(descriptor)
        self.slots = loaded.slots
        self.free_slots = list(range(loaded.slots))

    def infer(self, *inputs: Any, timeout_s: float | None = None) -> tuple[Any, ...]:
        """Run it and wait for the outputs (``PendingTask.result``). Raises UsageError for inputs of another type or shape."""
        return self.submit(*inputs).result(timeout_s)

    def submit(self, *inputs: Any) -> PendingTask:
        """Run it without waiting. Where all its slots are in use, this waits for one of its own tasks to end."""
        checked = self._check(inputs)
        with self.client.lock:
            while not self.free_slots:
                self.client.collect(None)
            slot = self.free_slots.pop()
            for array, at in zip(checked, self._layout.inputs, strict=True):
                start = slot * self._layout.nbytes + at
                self._memory[start : start + len(array)] = array
            return self.client.submit(self, slot)

    def unload(self) -> None:
        """Forget it on the device, when its last task has ended."""
        self.client.request(ms.UnloadModel(self.key))

    def _check(self, inputs: Sequence[Any]) -> list[Any]:
        """The bytes of each input."""
        specs = self.signature.inputs
        if len(inputs) != len(specs):
            raise UsageError(
                f"{self.name} takes {len(specs)} inputs, {len(inputs)} were given", f"its signature is {self.signature}"
            )
        return [self._bytes(value, spec) for value, spec in zip(inputs, specs, strict=True)]

    def _bytes(self, value: Any, spec: TensorSpec) -> Any:
        if spec.dtype == "bfloat16":
            import torch  # numpy has no such type: the tensor is torch's

            value = value.view(torch.int16).numpy()
            found, shape = "bfloat16", tuple(value.shape)
        else:
            value = np.asarray(value)
            found, shape = str(value.dtype), tuple(value.shape)
        if found != spec.dtype or shape != spec.shape:
            raise UsageError(
                f"{self.name} takes {spec}, and {found}[{', '.join(map(str, shape))}] was given",
                f"its signature is {self.signature}",
            )
        return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data

    def take_outputs(self, slot: int) -> tuple[Any, ...]:
        """Copies of a slot's outputs."""
        found = []
        for at, spec in zip(self._layout.outputs, self.signature.outputs, strict=True):
            start = slot * self._layout.nbytes + at
            raw = self._memory[start : start + spec.nbytes]
            found.append(raw if spec.dtype == "bfloat16" else np.frombuffer(raw, spec.dtype).reshape(spec.shape))
        return tuple(found)


class RuntimeClient:
    """Connects to the runtime that listens on ``path``. Raises Unreachable where none does.

    In a job that is a client of a runtime (``tide run --runtime``) path and class are the job's, and may be left out. A runtime
    that starts at the same moment is waited for; when it is gone the job is stopped by the scheduler, to follow it.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        kind: Literal["rt", "be"] | None = None,
        *,
        name: str = "",
        weight: int = 1,
        threads: int = 0,
        folder: Path | str | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self._tasks: dict[int, PendingTask] = {}
        self._next = 1
        found = endpoint(path, kind, name)
        self._follows = found.path if found.of_job else None
        """The socket of the runtime that this process's job is a client of, until that was gone once."""
        self._connection = _connect_patiently(found.path) if found.of_job else connect(found.path)
        hello = ms.Hello(found.kind, found.name, weight, threads, str(folder or Path.cwd()))
        welcome, descriptors = self._ask(hello)
        ring_memory, submitted, completed = descriptors
        self.queue, self.device, self.level = welcome.queue, welcome.device, welcome.level
        mapped: mmap.mmap = memory.attach(ring_memory, RING_BYTES)
        os.close(ring_memory)
        self._rings = RingPair(mapped, submitted, completed)
        self._poll = select.poll()
        self._poll.register(completed, select.POLLIN)
        self._poll.register(self._connection, select.POLLHUP)

    def load(
        self,
        factory: str,
        inputs: Inputs,
        *,
        arguments: dict[str, Any] | None = None,
        state: str = "",
        name: str = "",
        slots: int = 2,
    ) -> RemoteModel:
        """Load what ``factory`` makes (``module:function`` or ``/path/file.py:function``) and wait until it can run. ``inputs``:
        element type and shape of each. ``state``: a file of weights. Raises UsageError with what the runtime says."""
        specs = tuple(one if isinstance(one, TensorSpec) else TensorSpec(one[0], tuple(one[1])) for one in inputs)
        name = name or factory
        message = ms.LoadModel(name, ms.ModelSource(factory, arguments or {}, state), specs, slots)
        loaded, descriptors = self._ask(message)
        return RemoteModel(self, name, loaded, descriptors[0])

    @property
    def doorbell(self) -> int:
        """A descriptor that is readable when a task has ended: for a loop that then calls ``collect(0)``."""
        return self._rings.completed

    def set_weight(self, weight: int) -> None:
        """A best-effort queue's share of device time, against others': 1 to 1000."""
        self.request(ms.SetWeight(weight))

    def stats(self) -> dict[str, Any]:
        """What the runtime has done."""
        answer: ms.Stats = self.request(ms.GetStats())
        return answer.stats

    def request(self, message: Any) -> Any:
        """Send a request and wait for its answer. Raises UsageError as the runtime refuses it."""
        answer, _ = self._ask(message)
        return answer

    def _ask(self, message: Any) -> tuple[Any, list[int]]:
        try:
            with self.lock:
                return ask(self._connection, message)
        except Unreachable:
            self._await_stop()
            raise

    def _await_stop(self) -> None:
        """The runtime is gone: its job was suspended, moved or ended, for which the scheduler stops this job, too. It is given
        the time to, once, lest the job fail first with an error that is not its own."""
        if self._follows is not None and not _listens(self._follows):
            self._follows = None
            time.sleep(FOLLOW_S)

    def submit(self, model: RemoteModel, slot: int) -> PendingTask:
        """Used by models. Waits while as many tasks are outstanding as the rings hold."""
        with self.lock:
            while len(self._tasks) >= ENTRIES:
                self.collect(None)
            task = PendingTask(model, self._next, slot)
            self._next += 1
            self._tasks[task.key] = task
            self._rings.submit(Submission(task.key, model.key, slot))
            return task

    def collect(self, timeout_s: float | None) -> None:
        """Take in what has ended, waiting up to ``timeout_s`` (None: without a limit) for something to. Raises Unreachable
        where the runtime is gone."""
        if not self._collect(timeout_s):
            if timeout_s != 0:
                self._await_stop()
            raise Unreachable("the runtime has ended, or has closed this connection", "see its log, and connect again")

    def _collect(self, timeout_s: float | None) -> bool:
        """Whether the runtime is still there."""
        with self.lock:
            events = self._poll.poll(None if timeout_s is None else max(0.0, timeout_s * 1000))
            for completion in self._rings.completions():
                task = self._tasks.pop(completion.task, None)
                if task is not None:
                    task.ended(completion)
            return not any(what & select.POLLHUP for _, what in events)

    def close(self) -> None:
        """End the queue: its tasks are dropped."""
        self._connection.close()
        for descriptor in (self._rings.submitted, self._rings.completed):
            os.close(descriptor)

    def __enter__(self) -> RuntimeClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_CONNECT_RETRY_S = 0.05
_ERRORS = {kind.http_status: kind for kind in (UsageError, Conflict, NotFound)}


def connect(path: Path | str, timeout_s: float | None = None) -> socket.socket:
    """A connection to the runtime on ``path``, on which each answer is waited for up to ``timeout_s``. Raises Unreachable."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(timeout_s)
    try:
        connection.connect(str(path))
    except OSError as error:
        connection.close()
        raise Unreachable(f"no runtime listens on {path} ({error.strerror})", "start one: tide runtime up") from None
    return connection


def _listens(path: Path) -> bool:
    try:
        connect(path, _CONNECT_RETRY_S).close()
    except Unreachable:
        return False
    return True


def _connect_patiently(path: Path) -> socket.socket:
    """The same for a runtime that may be starting, or moving: it has ``FOLLOW_S`` to listen."""
    deadline = time.monotonic() + FOLLOW_S
    while True:
        try:
            return connect(path)
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(_CONNECT_RETRY_S)


def ask(connection: socket.socket, message: Any) -> tuple[Any, list[int]]:
    """One request and its answer, with descriptors. Raises UsageError, or Unreachable where the runtime is gone; TimeoutError on
    a connection that has a limit."""
    try:
        ms.send(connection, message)
        answer, descriptors = ms.receive(connection, ms.runtime_messages)
    except TimeoutError:
        raise
    except OSError as error:
        raise Unreachable(f"the runtime is gone ({error})", "see its log, and connect again") from None
    if isinstance(answer, ms.RequestRefused):
        raise _ERRORS.get(answer.status, UsageError)(answer.message, answer.remedy)
    return answer, descriptors
