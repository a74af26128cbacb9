"""Messages between a replica and the gateway, and their framing: a length of four bytes, then MessagePack. Knows no sockets.

The replica connects and says hello once its model is ready; the gateway sends batches, one at a time.
"""

from __future__ import annotations

import struct

import msgspec
from msgspec import Struct

from ...base.errors import WorldError
from ..protocol.datatypes import Tensor, datatype_of
from ..protocol.signature import ModelSignature
from ..protocol.tensors import from_binary, to_binary

GATEWAY, OPTIONS = "TIDE_SERVE_GATEWAY", "TIDE_SERVE_OPTIONS"
"""Variables of replicas: the path of the gateway's socket, and ``ServingOptions`` as JSON."""
MAX_MESSAGE = 1 << 30
MAX_HELLO = 1 << 20
"""Bytes of the first message: what speaks something else here is turned away at once."""
HEAD = struct.Struct("<I")


class WireTensor(Struct, frozen=True, array_like=True):
    """A tensor; ``data`` as binary data of the protocol."""

    datatype: str
    shape: tuple[int, ...]
    data: bytes


Tensors = dict[str, WireTensor]


class ServingOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """How a service is served, as it is deployed."""

    service: str
    model: str
    """``module:attribute``."""
    objective_us: int = 100_000
    batching: str = "deadline"
    """A live server cannot start batches at the last moment to the microsecond, as ``deferred`` wants to."""
    idempotent: bool = True
    """Whether a request may be run once more when its replica is lost."""
    from_image: bool = False
    """Whether replicas start from the image of the first one that is warmed up."""


class ReplicaHello(Struct, frozen=True, tag=True):
    """The replica is ready. ``samples``: (batch size, microseconds) as measured while it warmed up."""

    job: int
    attempt: int
    options: ServingOptions
    signature: ModelSignature
    samples: tuple[tuple[int, int], ...]
    offers_image: bool = False
    """It has no work yet and was started from no image: further replicas could start from its."""


class RunBatch(Struct, frozen=True, tag=True):
    """Run these requests as one batch, and answer with as many results in their order."""

    requests: tuple[Tensors, ...]


class BecomeImage(Struct, frozen=True, tag=True):
    """Close the connection and wait to be saved: further replicas are to start from the image."""


class RequestResult(Struct, frozen=True):
    """``error`` is empty where the model returned ``outputs``."""

    outputs: Tensors = {}
    error: str = ""


class BatchDone(Struct, frozen=True, tag=True):
    """The results of the batch, in the order of its requests."""

    results: tuple[RequestResult, ...]


class Leaving(Struct, frozen=True, tag=True):
    """The replica is to end: no further batch, please. The gateway closes the connection when it has all answers."""


ToGateway = ReplicaHello | BatchDone | Leaving
_encoder = msgspec.msgpack.Encoder()
_from_replica: msgspec.msgpack.Decoder[ToGateway] = msgspec.msgpack.Decoder(ToGateway)
ToReplica = RunBatch | BecomeImage
_from_gateway: msgspec.msgpack.Decoder[ToReplica] = msgspec.msgpack.Decoder(ToReplica)


def frame(message: Struct) -> bytes:
    """A message as it is sent. Raises WorldError beyond MAX_MESSAGE."""
    data = _encoder.encode(message)
    if len(data) > MAX_MESSAGE:
        raise WorldError(f"a message of {len(data)} bytes between gateway and replica; {MAX_MESSAGE} at most")
    return HEAD.pack(len(data)) + data


def length_of(head: bytes, most: int = MAX_MESSAGE) -> int:
    """Length of the message that follows four bytes. Raises WorldError beyond ``most``."""
    (length,) = HEAD.unpack(head)
    if length > most:
        raise WorldError(f"a message of {length} bytes between gateway and replica; {most} at most")
    return int(length)


def from_replica(data: bytes) -> ToGateway:
    """Raises WorldError for what is no message."""
    try:
        return _from_replica.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorldError(f"a replica sent what is no message: {error}") from None


def from_gateway(data: bytes) -> ToReplica:
    """Raises WorldError for what is no message."""
    try:
        return _from_gateway.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WorldError(f"the gateway sent what is no message: {error}") from None


def packed(tensors: dict[str, Tensor]) -> Tensors:
    """Raises UsageError for arrays that have no datatype in the protocol."""
    return {
        name: WireTensor(kind := datatype_of(tensor), tensor.shape, to_binary(tensor, kind))
        for name, tensor in tensors.items()
    }


def unpacked(tensors: Tensors) -> dict[str, Tensor]:
    """Raises UsageError for data that does not fit its shape."""
    return {name: from_binary(name, one.datatype, one.shape, memoryview(one.data)) for name, one in tensors.items()}
