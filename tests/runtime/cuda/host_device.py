"""The worker of a device whose chains are generator functions in threads of the host: flags close gates, chains are cut short,
drain and go on, as on a GPU. Everything but the device itself is what runs there. ``python -m`` starts the worker."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Any

from tidewright.base.errors import UsageError
from tidewright.runtime.cuda.worker.main import main
from tidewright.runtime.cuda.worker.queues import ChainQueue, ClientQueue, GraphQueue
from tidewright.runtime.ladder import StopLevel
from tidewright.runtime.transport.messages import DeviceReady, MakeModel, ModelMade
from tidewright.runtime.worker.execution import LoadedModel
from tidewright.runtime.worker.factory import make
from tidewright.runtime.worker.gate import OperatorGate

QUEUES = 3


class Discarded(BaseException):
    """The task is not to go on."""


class Flags:
    """As in the control blocks: one flag of real-time work, one stop for each queue."""

    def __init__(self) -> None:
        self.real_time = False
        self.stopped: set[int] = set()


class HostChain:
    """A model of a best-effort queue; its thread is the device."""

    def __init__(self, model: LoadedModel, gate: Gate, shares: tuple[int, ...]) -> None:
        self.shares, self.share = shares, 0
        self.model, self.signature, self._gate = model, model.signature, gate
        gate.chain = self
        self.complete = True
        self.busy = False
        self.discarding = False
        self.may_go_on = threading.Semaphore(0)
        self._thread = threading.Thread()

    def begin(self, slot: int, share: int) -> None:
        assert self.complete and not self.busy
        self.share = share
        self.complete, self.busy = False, True
        self._thread = threading.Thread(target=self._run, args=(slot,), daemon=True)
        self._thread.start()

    def _run(self, slot: int) -> None:
        with contextlib.suppress(Discarded):
            self.model.run(slot)
        self.complete, self.busy = True, False

    def drained(self, more: bool) -> bool:
        return not self.busy

    def go_on(self, share: int) -> None:
        assert not self.complete and not self.busy
        self.share = share
        self.busy = True
        self.may_go_on.release()

    def deliver(self, slot: int) -> None:
        assert self.complete

    def delivered(self) -> bool:
        return True

    def discard(self) -> None:
        assert not self.complete and not self.busy
        self.discarding = True
        self.may_go_on.release()
        self._thread.join()
        self.discarding = False


class Gate(OperatorGate):
    """Between two operators: closed while a flag is up, and until the launch that follows."""

    def __init__(self, flags: Flags, queue: int) -> None:
        self._flags, self._queue, self.chain = flags, queue, None
        self.task = 0

    def check(self, gate: int) -> None:
        chain: Any = self.chain
        while chain is not None and self._closed(chain):
            chain.busy = False
            chain.may_go_on.acquire()
            if chain.discarding:
                raise Discarded

    def _closed(self, chain: Any) -> bool:
        return (self._flags.real_time and not chain.share) or self._queue in self._flags.stopped


class HostGraph:
    """A model of a real-time queue."""

    def __init__(self, model: LoadedModel, flags: Flags, closes_gates: bool) -> None:
        self.model, self.signature, self._flags, self.closes_gates = model, model.signature, flags, closes_gates
        self._thread = threading.Thread()

    def begin(self, slot: int) -> None:
        self._thread = threading.Thread(target=self._run, args=(slot,), daemon=True)
        self._thread.start()

    def _run(self, slot: int) -> None:
        self._flags.real_time = self.closes_gates
        self.model.run(slot)
        self._flags.real_time = False

    def delivered(self) -> bool:
        return not self._thread.is_alive()


class HostDevice:
    def __init__(self, stop: StopLevel, shares: tuple[int, ...]) -> None:
        self.shares = shares
        if os.environ.get("HOST_DEVICE_MISSING"):
            raise UsageError("there is no host device", "leave the variable out")
        gone = os.environ.get("HOST_DEVICE_GONE")
        if gone and os.path.exists(gone):
            raise UsageError("the host device is gone", "plug it in")
        self.ready = DeviceReady("host", 100, 0)
        self.flags = Flags()
        self.free = list(range(QUEUES))
        self.rows: dict[ClientQueue, int] = {}

    def chain_queue(self) -> ChainQueue:
        if not self.free:
            raise UsageError(f"{QUEUES} best-effort queues are open", "close some")
        row = self.free.pop()

        def close_gate(closed: bool) -> None:
            (self.flags.stopped.add if closed else self.flags.stopped.discard)(row)

        found = ChainQueue(close_gate)
        self.rows[found] = row
        return found

    def release(self, closed: ChainQueue) -> None:
        assert closed.running is None
        self.free.append(self.rows.pop(closed))

    def make(self, request: MakeModel, owner: ClientQueue) -> tuple[Any, ModelMade]:
        made: Callable[..., Any] = make(request.source, request.folder)
        found: Any
        if isinstance(owner, GraphQueue):
            model = LoadedModel(made, request.inputs, None)
            found = HostGraph(model, self.flags, request.gated)
        else:
            gate = Gate(self.flags, self.rows[owner])
            model = LoadedModel(made, request.inputs, gate)
            # As on a GPU, what has no points to stop at is not padded.
            found = HostChain(model, gate, self.shares if model.gates else ())
        shares = found.shares if isinstance(found, HostChain) else ()
        return found, ModelMade(request.model, model.signature, 1000, model.run_ns, model.gates, shares)

    def attach(self, model: Any, slots: Any, count: int) -> None:
        model.model.attach(slots, count)

    def detach(self, model: Any) -> None:
        pass


if __name__ == "__main__":
    main(HostDevice)
