"""The loop of a worker: requests from the runtime, reports to it. Tasks run in the order in which they came.

Scheduling class, cores and threads come with the command line. A real-time worker is in its class only while it is not making a
model: that takes seconds, and other real-time work goes on beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from collections import deque
from typing import Any

import msgspec

from ...base.errors import UsageError
from ..transport import memory
from ..transport.messages import (
    AttachSlots,
    DropModel,
    MakeModel,
    ModelFailed,
    ModelMade,
    RunTask,
    SkipTask,
    TaskEnded,
    receive,
    send,
    worker_requests,
)
from ..transport.tensors import SlotLayout
from .execution import LoadedModel
from .factory import make
from .gate import FLAG_BYTES, OperatorGate

_PR_SET_PDEATHSIG = 1
_MOST_TEXT = 2000


class Worker:
    def __init__(self, connection: socket.socket, fifo: int, gate: OperatorGate | None) -> None:
        self.connection, self.fifo, self.gate = connection, fifo, gate
        self.models: dict[int, LoadedModel] = {}
        self.waiting: deque[Any] = deque()

    def loop(self) -> None:
        """Until the runtime closes the connection."""
        with contextlib.suppress(ConnectionError):
            while True:
                if not self.waiting:
                    self._receive()
                while select.select([self.connection], [], [], 0)[0]:
                    self._receive()
                if self.waiting:
                    self._carry_out(self.waiting.popleft())

    def _receive(self) -> None:
        """One request; what skips another takes it out of those that wait."""
        request, descriptors = receive(self.connection, worker_requests)
        if isinstance(request, SkipTask):
            found = next((one for one in self.waiting if isinstance(one, RunTask) and one.task == request.task), None)
            if found is not None:
                self.waiting.remove(found)
                send(self.connection, TaskEnded(found.task, skipped=True))
        elif isinstance(request, AttachSlots):
            self._attach(request, descriptors[0])
        else:
            self.waiting.append(request)

    def _carry_out(self, request: Any) -> None:
        if isinstance(request, RunTask):
            self._run(request)
        elif isinstance(request, MakeModel):
            self._make(request)
        elif isinstance(request, DropModel):
            self.models.pop(request.model, None)
            gc.collect()

    def _run(self, request: RunTask) -> None:
        if self.gate is not None:
            self.gate.task = request.task
            self.gate.check(0)
        began = time.monotonic_ns()
        error = ""
        try:
            self.models[request.model].run(request.slot)
        except Exception as caught:
            error = describe(caught)
        send(self.connection, TaskEnded(request.task, error, run_ns=time.monotonic_ns() - began))

    def _make(self, request: MakeModel) -> None:
        real_time(0)
        try:
            made = make(request.source, request.folder)
            model = LoadedModel(made, request.inputs, self.gate if request.gated else None)
        except (
            BaseException
        ) as caught:  # also SystemExit of the user's code: the client gets it as an error, and the worker goes on
            send(self.connection, ModelFailed(request.model, describe(caught)))
        else:
            self.models[request.model] = model
            report = ModelMade(request.model, model.signature, model.nbytes, model.run_ns, model.gates)
            send(self.connection, report)
        # What was made lives long; a collection in the middle of a task would cost it milliseconds.
        gc.collect()
        gc.freeze()
        real_time(self.fifo)

    def _attach(self, request: AttachSlots, descriptor: int) -> None:
        model = self.models[request.model]
        size = SlotLayout.of(model.signature).nbytes * request.slots
        model.attach(memory.attach(descriptor, size), request.slots)
        os.close(descriptor)


def describe(error: BaseException) -> str:
    """What a client sees of an exception of its model."""
    text = str(error) if isinstance(error, UsageError) else f"{type(error).__name__}: {error}"
    return text[:_MOST_TEXT]


def real_time(priority: int) -> None:
    """All threads of this process in SCHED_FIFO at ``priority``; 0: in the usual class. Without the right to, nothing changes."""
    policy = os.SCHED_FIFO if priority else os.SCHED_OTHER
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):  # PermissionError, or a thread that has just ended
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def bind_to_runtime(parent: int) -> None:
    """End with the runtime, and only when it says so."""
    # A stopped worker would outlive the runtime otherwise: it never sees its connection end.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connection", type=int, required=True)
    parser.add_argument("--gate", type=int, nargs=2, default=None, metavar=("FLAG", "RESUMED"))
    parser.add_argument("--fifo", type=int, default=0)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--nice", type=int, default=0)
    parser.add_argument("--parent", type=int, required=True)
    args = parser.parse_args()
    bind_to_runtime(args.parent)
    if args.idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    os.nice(args.nice)
    connection = socket.socket(fileno=args.connection)
    gate = None
    if args.gate:
        flag, resumed = args.gate
        gate = OperatorGate(memory.attach(flag, FLAG_BYTES), resumed, connection)
    with contextlib.suppress(msgspec.MsgspecError):
        Worker(connection, args.fifo, gate).loop()
