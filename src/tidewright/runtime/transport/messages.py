"""Messages between client, runtime and workers: MessagePack on SOCK_SEQPACKET sockets, a message a packet, descriptors beside it.

Nothing here can carry code: a model is named by its module or file, never sent. Tasks do not come this way (``rings``).
"""

from __future__ import annotations

import array
import os
import socket
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from ...base.errors import UsageError
from .tensors import Signature, TensorSpec

MOST_BYTES = 128 * 1024
MOST_DESCRIPTORS = 4


class ModelSource(Struct, frozen=True, omit_defaults=True):
    """How a worker makes a model: ``factory`` is ``module:function`` or ``/path/file.py:function``, called with ``arguments``.

    ``state`` is a file of weights that is loaded into it (safetensors, or torch.load with weights_only)."""

    factory: str
    arguments: dict[str, Any] = {}
    state: str = ""


# -- client to runtime ------------------------------------------------------------------------------------------------


class Hello(Struct, frozen=True, tag=True):
    """Opens the client's queue. ``folder`` is where modules are looked for first; ``threads``: of one task, 0 for the usual."""

    kind: Literal["rt", "be"]
    name: str = ""
    weight: int = 1
    threads: int = 0
    folder: str = ""
    version: int = 1


class LoadModel(Struct, frozen=True, tag=True):
    """``inputs``: what each call gets. ``slots``: how many tasks of it may be outstanding."""

    name: str
    source: ModelSource
    inputs: tuple[TensorSpec, ...]
    slots: int = 2


class UnloadModel(Struct, frozen=True, tag=True):
    model: int


class SetWeight(Struct, frozen=True, tag=True):
    weight: int


class CancelTask(Struct, frozen=True, tag=True):
    """By the client's own number."""

    task: int


class GetStats(Struct, frozen=True, tag=True):
    """Of all clients."""


class Shutdown(Struct, frozen=True, tag=True):
    """End the runtime: clients get errors."""


ClientMessage = Hello | LoadModel | UnloadModel | SetWeight | CancelTask | GetStats | Shutdown

# -- runtime to client ------------------------------------------------------------------------------------------------


class Welcome(Struct, frozen=True, tag=True):
    """With it: the rings' memory, the doorbell of submissions and that of completions."""

    queue: int
    device: str
    level: str
    """How best-effort work is stopped on this device, for this queue (ladder)."""


class ModelLoaded(Struct, frozen=True, tag=True):
    """With it: the memory of its slots."""

    model: int
    signature: Signature
    slots: int
    nbytes: int
    """Memory that it takes: parameters, buffers and slots."""
    run_ns: int
    """Of its second run, on this device alone or not."""
    level: str
    gates: int = 0
    """Points between which it can be stopped, where it is stopped between operators."""
    shares: tuple[int, ...] = ()
    """As in ``ModelMade``."""


class RequestDone(Struct, frozen=True, tag=True):
    """The request was carried out."""


class RequestRefused(Struct, frozen=True, tag=True):
    """It was not: why, and what to do. ``status`` as in HTTP: 400 a wrong request, 404 nothing of that name, 409 not now."""

    message: str
    remedy: str = ""
    status: int = 400

    @staticmethod
    def of(error: UsageError) -> RequestRefused:
        return RequestRefused(error.message, error.remedy, error.http_status)


class Stats(Struct, frozen=True, tag=True):
    stats: dict[str, Any]


RuntimeMessage = Welcome | ModelLoaded | RequestDone | RequestRefused | Stats

# -- runtime to worker ------------------------------------------------------------------------------------------------


class MakeModel(Struct, frozen=True, tag=True):
    model: int
    source: ModelSource
    inputs: tuple[TensorSpec, ...]
    folder: str = ""
    gated: bool = False


class AttachSlots(Struct, frozen=True, tag=True):
    """With it: the memory of the model's slots."""

    model: int
    slots: int


class RunTask(Struct, frozen=True, tag=True, gc=False):
    task: int
    model: int
    slot: int


class SkipTask(Struct, frozen=True, tag=True):
    """If it has not begun, or can be cut short."""

    task: int


class DropModel(Struct, frozen=True, tag=True):
    model: int


class StopQueue(Struct, frozen=True, tag=True, gc=False):
    """On a device whose queues are stopped by its worker: launch nothing of this one, and say (``StoppedAtGate``) when nothing of
    it is on the device."""

    number: int


class ResumeQueue(Struct, frozen=True, tag=True, gc=False):
    """The stop is over."""


class PadQueue(Struct, frozen=True, tag=True, gc=False):
    """While real-time work runs, this best-effort queue may go on with so many multiprocessors; 0: no more."""

    share: int


WorkerRequest = MakeModel | AttachSlots | RunTask | SkipTask | DropModel | StopQueue | ResumeQueue | PadQueue


class OpenQueue(Struct, frozen=True, tag=True):
    """To the worker of a whole device, with it: the connection on which this queue's requests and reports go."""

    kind: Literal["rt", "be"]
    placed: bool = False
    """It had models when the worker before this one was lost: it gets its place back before others get one."""


# -- worker to runtime ------------------------------------------------------------------------------------------------


class MakingModel(Struct, frozen=True, tag=True):
    """The worker of a device has begun to make a model: what happens now may be its doing."""

    model: int


class ModelMade(Struct, frozen=True, tag=True):
    model: int
    signature: Signature
    nbytes: int
    run_ns: int
    gates: int = 0
    shares: tuple[int, ...] = ()
    """Of a GPU, on which it can go on beside real-time work."""


class ModelFailed(Struct, frozen=True, tag=True):
    model: int
    message: str


class TaskEnded(Struct, frozen=True, tag=True, gc=False):
    task: int
    error: str = ""
    skipped: bool = False
    run_ns: int = 0


class StoppedAtGate(Struct, frozen=True, tag=True, gc=False):
    """The acknowledgement of stop ``number`` between operators. ``gate``: where the task stands, counted from its beginning."""

    task: int
    gate: int
    number: int


WorkerReport = MakingModel | ModelMade | ModelFailed | TaskEnded | StoppedAtGate


class DeviceReady(Struct, frozen=True, tag=True):
    """The first that the worker of a whole device says."""

    name: str
    multiprocessors: int
    memory_bytes: int
    driver: str = ""
    software: tuple[tuple[str, str], ...] = ()
    """Name and version of what makes its kernels: what times depend on, as the two before."""


class DeviceFailed(Struct, frozen=True, tag=True):
    """Or this: there is no such device, or nothing can be done with it."""

    message: str
    remedy: str = ""


_ENCODER = msgspec.msgpack.Encoder()
client_messages: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ClientMessage)
runtime_messages: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(RuntimeMessage)
worker_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(WorkerRequest)
worker_reports: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(WorkerReport)
device_requests: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(OpenQueue)
device_reports: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(DeviceReady | DeviceFailed)


def send(connection: socket.socket, message: Struct, descriptors: tuple[int, ...] = ()) -> None:
    """One packet. Raises UsageError where it is too large, OSError where the other side is gone or does not read."""
    data = _ENCODER.encode(message)
    if len(data) > MOST_BYTES:
        raise UsageError(f"a message of {len(data)} bytes", f"send {MOST_BYTES} at most")
    if descriptors:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
        connection.sendmsg([data], beside)
    else:
        connection.send(data)


def receive(connection: socket.socket, decoder: msgspec.msgpack.Decoder[Any]) -> tuple[Any, list[int]]:
    """The next message and its descriptors, which the caller closes. Raises ConnectionError at the end, UsageError for what is
    no message."""
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * 4)
    data, beside, flags, _ = connection.recvmsg(MOST_BYTES + 1, room, socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, payload in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found.frombytes(payload[: len(payload) - len(payload) % found.itemsize])
    if not data:
        close_all(found)
        raise ConnectionError("the other side has closed the connection")
    try:
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise UsageError(
                "a message that is too large", f"send {MOST_BYTES} bytes and {MOST_DESCRIPTORS} descriptors at most"
            )
        return decoder.decode(data), list(found)
    except msgspec.DecodeError as error:
        close_all(found)
        raise UsageError(
            f"what came is no message of this protocol: {error}", "use the client of the same version"
        ) from None
    except UsageError:
        close_all(found)
        raise


def close_all(descriptors: Iterable[int]) -> None:
    """Close what came with a message."""
    for descriptor in descriptors:
        os.close(descriptor)
