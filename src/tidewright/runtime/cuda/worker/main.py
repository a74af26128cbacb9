"""The loop of a device's worker: requests of all queues, what the device has done, reports. One thread, which polls while there
is work (a thread that sleeps wakes 36 to 125 µs late) and sleeps when there has been none for a while; models are made in
another one, so that real-time work goes on meanwhile.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import queue
import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ....base.errors import UsageError
from ...ladder import StopLevel
from ...transport import memory
from ...transport import messages as ms
from ...transport.tensors import MOST_OUTPUTS, SlotLayout
from ...worker.factory import MADE_FROM_FILE
from ...worker.main import bind_to_runtime, describe
from .queues import ChainQueue, ClientQueue, GraphQueue, UnplacedQueue

SPIN_S = 0.02
"""How long it polls after the last work: 20 ms, a fiftieth of a core for a client that asks once a second."""
SWITCH_S = 0.0002
"""Longest that the thread which makes models keeps the interpreter from the one that polls (sys.setswitchinterval)."""


class Device(Protocol):
    """What the loop needs of a device. Models are made in a thread of their own, all else in the loop's."""

    ready: ms.DeviceReady

    def chain_queue(self) -> ChainQueue:
        """A best-effort queue. Raises UsageError where there is no room for another."""

    def release(self, closed: ChainQueue) -> None:
        """A best-effort queue is gone, and nothing of it is on the device."""

    def make(self, request: ms.MakeModel, owner: ClientQueue) -> tuple[Any, ms.ModelMade]:
        """A model for a queue. Raises what the factory and the compiler raise."""

    def attach(self, model: Any, slots: Any, count: int) -> None:
        """The memory of the slots of a model."""

    def detach(self, model: Any) -> None:
        """A model is gone."""


class DeviceWorker:
    """``control``: on which the runtime opens queues, and whose end ends the worker."""

    def __init__(self, control: socket.socket, device: Device) -> None:
        self.control, self.device = control, device
        self.queues: dict[socket.socket, ClientQueue] = {}
        self._closing: dict[ClientQueue, socket.socket] = {}
        """Clients that are gone, with something on the device; the runtime waits for the end of the connection."""
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[], None]] = {}
        self._made: deque[tuple[socket.socket, ClientQueue, ms.MakeModel, Any, Any]] = deque()
        self._making: queue.SimpleQueue[tuple[socket.socket, ClientQueue, ms.MakeModel]] = queue.SimpleQueue()
        self._made_for: ClientQueue | None = None
        """Whose model the other thread makes."""
        self._awake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._ended = False

    def loop(self) -> None:
        """Until the runtime closes the connection."""
        sys.setswitchinterval(SWITCH_S)
        threading.Thread(target=self._make_models, daemon=True).start()
        self._watch(self.control.fileno(), self._opened)
        self._watch(self._awake, self._take_models)
        spin_until = 0.0
        while not self._ended:
            busy = any(each.out or not each.idle for each in (*self.queues.values(), *self._closing))
            now = time.monotonic()
            if busy:
                spin_until = now + SPIN_S
            for descriptor, _ in self._epoll.poll(0 if now < spin_until else None):
                handler = self._handlers.get(descriptor)
                if handler is not None:
                    handler()
            self._turn()

    def _watch(self, descriptor: int, handler: Callable[[], None]) -> None:
        self._handlers[descriptor] = handler
        self._epoll.register(descriptor, select.EPOLLIN)

    def _unwatch(self, descriptor: int) -> None:
        del self._handlers[descriptor]
        self._epoll.unregister(descriptor)

    def _turn(self) -> None:
        """Real-time queues first: what they launch, the others must know of."""
        left = any(isinstance(each, GraphQueue) and each.running is not None for each in self._closing)
        for connection, each in list(self.queues.items()):
            if isinstance(each, GraphQueue):
                each.turn(left)
                self._report(connection, each)
        graphs = [each.running for each in (*self.queues.values(), *self._closing) if isinstance(each, GraphQueue)]
        real_time = any(running is not None and running.model.closes_gates for running in graphs)
        for connection, each in list(self.queues.items()):
            if isinstance(each, ChainQueue):
                each.turn(real_time)
            self._report(connection, each)
        for each, connection in list(self._closing.items()):
            each.turn(real_time)
            if each.running is None and self._made_for is not each:
                del self._closing[each]
                self._forget(each)
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)  # a process that a model's factory forked may have it, too
                connection.close()

    def _report(self, connection: socket.socket, each: ClientQueue) -> None:
        while each.out:
            try:
                ms.send(connection, each.out[0])
            except BlockingIOError:
                return  # the runtime is behind: once more in the next turn
            except OSError:
                each.out.clear()
                return  # its end is read in a moment
            del each.out[0]

    # -- requests ---------------------------------------------------------------------------------------------------

    def _opened(self) -> None:
        try:
            request, descriptors = ms.receive(self.control, ms.device_requests)
        except ConnectionError:
            self._ended = True
            return
        connection = socket.socket(fileno=descriptors[0])
        connection.setblocking(False)
        self.queues[connection] = GraphQueue() if request.kind == "rt" else UnplacedQueue()
        if request.placed and request.kind == "be":
            with contextlib.suppress(UsageError):  # its models are refused, and say so
                self._place(connection)
        self._watch(connection.fileno(), lambda: self._asked(connection))

    def _load(self, connection: socket.socket, owner: ClientQueue, request: ms.MakeModel) -> None:
        if isinstance(owner, UnplacedQueue):
            try:
                owner = self._place(connection)
            except UsageError as error:
                owner.out.append(ms.ModelFailed(request.model, str(error)))
                return
        owner.loading += 1
        self._making.put((connection, owner, request))

    def _place(self, connection: socket.socket) -> ClientQueue:
        """Raises UsageError where the device has no room for another best-effort queue."""
        placed = self.device.chain_queue()
        placed.out = self.queues[connection].out
        self.queues[connection] = placed
        return placed

    def _unplace(self, connection: socket.socket, owner: ClientQueue) -> None:
        """A queue without models gives its place back."""
        if isinstance(owner, ChainQueue) and owner.idle and not owner.models and not owner.loading:
            bare = UnplacedQueue()
            bare.out, owner.out = owner.out, []
            self.queues[connection] = bare
            self._forget(owner)

    def _asked(self, connection: socket.socket) -> None:
        owner = self.queues[connection]
        try:
            request, descriptors = ms.receive(connection, ms.worker_requests)
        except BlockingIOError:
            return
        except OSError:
            self._close(connection)
            return
        if isinstance(request, ms.RunTask):
            owner.run(request)
        elif isinstance(request, ms.SkipTask):
            owner.skip(request.task)
        elif isinstance(request, ms.MakeModel):
            self._load(connection, owner, request)
        elif isinstance(request, ms.AttachSlots):
            self._attach(owner, request, descriptors[0])
        elif isinstance(request, ms.DropModel):
            self._drop(owner, request.model)
            self._unplace(connection, owner)
        elif isinstance(owner, ChainQueue):
            self._govern(owner, request)

    def _govern(self, owner: ChainQueue, request: ms.StopQueue | ms.ResumeQueue | ms.PadQueue) -> None:
        if isinstance(request, ms.StopQueue):
            owner.stop(request.number)
        elif isinstance(request, ms.ResumeQueue):
            owner.resume()
        else:
            owner.pad(request.share)

    def _close(self, connection: socket.socket) -> None:
        """A client is gone: what it has on the device ends first."""
        each = self.queues.pop(connection)
        self._unwatch(connection.fileno())
        each.abandon()
        self._closing[each] = connection

    def _forget(self, each: ClientQueue) -> None:
        for model in list(each.models):
            self._drop(each, model)
        if isinstance(each, ChainQueue):
            each.close()
            self.device.release(each)

    def _drop(self, owner: ClientQueue, key: int) -> None:
        model = owner.models.pop(key, None)
        if model is not None:
            self.device.detach(model)

    # -- models -----------------------------------------------------------------------------------------------------

    def _make_models(self) -> None:
        """The other thread: one model after the other."""
        while True:
            connection, owner, request = self._making.get()
            self._made_for = owner  # first: the loop lets a client go, and asks for this then
            if owner.gone:
                self._made_for = None
                os.eventfd_write(self._awake, 1)  # the loop may have asked already
            else:
                self._hand_over(connection, owner, request, None, ms.MakingModel(request.model))
                made = self._make(owner, request)
                self._made_for = None
                self._hand_over(connection, owner, request, *made)
                del made
            del owner  # it would be kept as long as this thread waits

    def _make(self, owner: ClientQueue, request: ms.MakeModel) -> tuple[Any, ms.ModelMade | ms.ModelFailed]:
        try:
            with own_modules():
                return self.device.make(request, owner)
        except BaseException as caught:  # also SystemExit of the user's code: the client gets it as an error
            return None, ms.ModelFailed(request.model, describe(caught))

    def _hand_over(
        self, connection: socket.socket, owner: ClientQueue, request: ms.MakeModel, model: Any, report: Any
    ) -> None:
        """To the loop, and wake it."""
        self._made.append((connection, owner, request, model, report))
        os.eventfd_write(self._awake, 1)

    def _take_models(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._awake)
        while self._made:
            connection, owner, request, model, report = self._made.popleft()
            if not isinstance(report, ms.MakingModel):
                owner.loading -= 1
            if self.queues.get(connection) is not owner:
                if model is not None:
                    self.device.detach(model)  # its client is gone
                continue
            if model is not None and len(report.signature.outputs) > MOST_OUTPUTS:
                self.device.detach(model)
                report = ms.ModelFailed(request.model, f"it has more than {MOST_OUTPUTS} outputs")
            elif model is not None:
                owner.models[request.model] = model
            owner.out.append(report)
            if isinstance(report, ms.ModelFailed):
                self._unplace(connection, owner)

    def _attach(self, owner: ClientQueue, request: ms.AttachSlots, descriptor: int) -> None:
        model = owner.models.get(request.model)
        if model is None:  # it was dropped meanwhile
            os.close(descriptor)
            return
        size = SlotLayout.of(model.signature).nbytes * request.slots
        try:
            self.device.attach(model, memory.attach(descriptor, size), request.slots)
        except OSError as error:
            self._drop(owner, request.model)  # its tasks fail: there is no such model
            print(f"slots of model {request.model}: {error}", file=sys.stderr)
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def own_modules() -> Iterator[None]:
    """What is imported from a client's folders is that client's: another one may have other files of these names."""
    before, path = set(sys.modules), list(sys.path)
    try:
        yield
    finally:
        folders = [folder for folder in sys.path if folder not in path]
        sys.path[:] = path
        for name in set(sys.modules) - before:
            file = getattr(sys.modules[name], "__file__", None) or ""
            if name.startswith(MADE_FROM_FILE) or any(_lies_in(folder, name, file) for folder in folders):
                del sys.modules[name]


def _lies_in(folder: str, module: str, file: str) -> bool:
    """Whether a module was found in this folder itself (an environment's packages may lie deeper in it)."""
    inside = file.removeprefix(os.path.join(folder, ""))
    return inside != file and inside.partition(os.sep)[0].removesuffix(".py") == module.partition(".")[0]


def main(open_device: Callable[[StopLevel, tuple[int, ...]], Device]) -> None:
    """Tell the runtime whether there is a device, then serve it. ``open_device`` gets the way to stop best-effort work, and the
    shares of the device, in multiprocessors, on which that may run beside real-time work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stop", type=StopLevel, default=StopLevel.CTA)
    parser.add_argument("--shares", type=lambda text: tuple(map(int, text.split(","))), default=())
    parser.add_argument("--connection", type=int, required=True)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    bind_to_runtime(args.parent)
    control = socket.socket(fileno=args.connection)
    try:
        device = open_device(args.stop, args.shares)
    except UsageError as error:
        ms.send(control, ms.DeviceFailed(error.message, error.remedy))
        sys.exit(1)
    ms.send(control, device.ready)
    DeviceWorker(control, device).loop()
