"""Inference requests and their answers: bytes of an HTTP body to tensors and back. Pure.

Open Inference Protocol, version 2, "Inference", with its binary tensor data extension: binary data follows the JSON object,
whose length is then in the header ``Inference-Header-Content-Length``. What a request gets wrong is a UsageError with the
model's inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from ...base.errors import UsageError
from .datatypes import Tensor, datatype_of
from .signature import ANY, MAX_DIMENSIONS, ModelSignature, TensorSignature
from .tensors import from_binary, from_json, to_binary, to_json

MAX_TIMEOUT_US = 86_400_000_000
LENGTH_HEADER = "inference-header-content-length"


class _Input(Struct, frozen=True):
    name: str
    shape: tuple[int, ...]
    datatype: str
    data: msgspec.Raw = msgspec.Raw()
    """Unread: most of a request, and of no use where it is refused."""
    parameters: dict[str, Any] = {}

    @property
    def has_data(self) -> bool:
        raw = memoryview(self.data)
        return raw.nbytes > 4 or bytes(raw) not in (b"", b"null")


class _Output(Struct, frozen=True):
    name: str
    parameters: dict[str, Any] = {}


class _Request(Struct, frozen=True):
    inputs: tuple[_Input, ...]
    id: str = ""
    outputs: tuple[_Output, ...] = ()
    parameters: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class InferenceCall:
    """What a client asks of a model; only ``tensors`` reads the data. ``batch``: items, 1 where the model takes no batches.
    ``wanted``: outputs by name, and whether as binary data; empty: all, as ``binary`` says."""

    id: str
    batch: int
    wanted: dict[str, bool]
    binary: bool
    timeout_us: int
    """The parameter ``timeout`` of Triton's clients; 0: none was given."""
    signature: ModelSignature
    given: tuple[_Input, ...]
    data: memoryview
    """What follows the JSON object."""

    def tensors(self) -> dict[str, Tensor]:
        """The inputs. Raises UsageError where data does not fit datatype and shape."""
        found: dict[str, Tensor] = {}
        at = 0
        for one in self.given:
            size = one.parameters.get("binary_data_size")
            if size is None:
                found[one.name] = _with_signature(from_json, one, _decoded(one, self.signature), self.signature)
            else:
                found[one.name] = _with_signature(from_binary, one, self.data[at : at + size], self.signature)
                at += size
        return found


_decoder = msgspec.json.Decoder(_Request)


def read_call(body: bytes, header_length: int | None, signature: ModelSignature) -> InferenceCall:
    """The request in a body, all but the data of its tensors. ``header_length``: that of its JSON object, None for all of it.
    Raises UsageError."""
    if header_length is not None and not 0 < header_length <= len(body):
        raise UsageError(
            f"{LENGTH_HEADER}: {header_length} is not between 1 and the length of the body ({len(body)})",
            "send the length of the JSON object before the binary data",
        )
    end = len(body) if header_length is None else header_length
    try:
        request = _decoder.decode(memoryview(body)[:end])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"not an inference request: {error}", _expected(signature)) from None
    binary_data = memoryview(body)[end:]
    _check_inputs(request, len(binary_data), signature)
    batch = _batch(request, signature)
    wanted = {one.name: _flag(one.parameters, "binary_data") for one in request.outputs}
    known = {one.name for one in signature.outputs}
    for name in wanted:
        if known and name not in known:
            raise UsageError(f"no output {name!r}", f"the model has {', '.join(sorted(known))}")
    binary = _flag(request.parameters, "binary_data_output")
    timeout_us = _timeout(request.parameters)
    return InferenceCall(request.id, batch, wanted, binary, timeout_us, signature, request.inputs, binary_data)


def _expected(signature: ModelSignature) -> str:
    return f"the model takes {signature.text()}"


def _flag(parameters: dict[str, Any], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise UsageError(f"parameter {name}: {value!r} is neither true nor false", "correct the request")
    return value


def _timeout(parameters: dict[str, Any]) -> int:
    value = parameters.get("timeout", 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= MAX_TIMEOUT_US:
        raise UsageError(f"parameter timeout: {value!r} is not a number of microseconds", "give 0 to 86400000000")
    return value


def _check_inputs(request: _Request, binary: int, signature: ModelSignature) -> None:
    """``binary``: bytes of binary data."""
    expected = {one.name: one for one in signature.inputs}
    found = set()
    at = 0
    for one in request.inputs:
        known = expected.get(one.name)
        if known is None or one.name in found:
            what = "twice" if one.name in found else "which the model has not"
            raise UsageError(f"input {one.name!r}, {what}", _expected(signature))
        _check(one, known, signature)
        found.add(one.name)
        size = one.parameters.get("binary_data_size")
        if size is None:
            continue
        if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= binary - at or one.has_data:
            raise UsageError(f"input {one.name}: binary_data_size {size!r} does not fit the body", _expected(signature))
        at += size
    if at != binary:
        raise UsageError(f"{binary - at} bytes of binary data belong to no input", _expected(signature))
    missing = [name for name in expected if name not in found]
    if missing:
        raise UsageError(f"input {missing[0]} is missing", _expected(signature))


def _decoded(one: _Input, signature: ModelSignature) -> Any:
    try:
        return msgspec.json.decode(one.data) if one.has_data else None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"input {one.name}: {error}", _expected(signature)) from None


def _with_signature(read: Any, one: _Input, data: Any, signature: ModelSignature) -> Tensor:
    try:
        tensor: Tensor = read(one.name, one.datatype, one.shape, data)
    except UsageError as error:
        raise UsageError(error.message, _expected(signature)) from None
    return tensor


def _check(one: _Input, known: TensorSignature, signature: ModelSignature) -> None:
    if one.datatype != known.datatype:
        raise UsageError(f"input {one.name}: datatype {one.datatype!r}", _expected(signature))
    extents = known.shape if not signature.batched else (ANY, *known.shape)
    fits = len(one.shape) == len(extents) <= MAX_DIMENSIONS + 1 and all(
        0 <= given <= 2**31 and extent in (ANY, given) for given, extent in zip(one.shape, extents, strict=True)
    )
    if not fits:
        raise UsageError(f"input {one.name}: shape {list(one.shape)}", _expected(signature))


def _batch(request: _Request, signature: ModelSignature) -> int:
    if not signature.batched:
        return 1
    sizes = sorted({one.shape[0] for one in request.inputs})
    if len(sizes) > 1:
        raise UsageError(f"inputs with batches of {', '.join(map(str, sizes))} items", _expected(signature))
    batch = sizes[0] if sizes else 1
    if not 1 <= batch <= signature.max_batch:
        raise UsageError(f"a batch of {batch} items; the model takes 1 to {signature.max_batch}", _expected(signature))
    return batch


def write_answer(call: InferenceCall, model: str, version: str, outputs: dict[str, Tensor]) -> tuple[bytes, int | None]:
    """The body of an answer, and the length of its JSON object where binary data follows. Raises UsageError where an output that
    was asked for is not there, or cannot be sent as it was asked for."""
    wanted = call.wanted or dict.fromkeys(outputs, call.binary)
    shown, tail = [], []
    for name, as_binary in wanted.items():
        if name not in outputs:
            raise UsageError(f"no output {name!r}", f"the model returned {', '.join(outputs)}")
        tensor = outputs[name]
        datatype = datatype_of(tensor)
        one: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(tensor.shape)}
        if as_binary or (call.binary and not call.wanted):
            data = to_binary(tensor, datatype)
            tail.append(data)
            one["parameters"] = {"binary_data_size": len(data)}
        else:
            one["data"] = to_json(tensor, datatype)
        shown.append(one)
    answer = {"model_name": model, "model_version": version, **({"id": call.id} if call.id else {}), "outputs": shown}
    head = msgspec.json.encode(answer)
    return (head + b"".join(tail), len(head)) if tail else (head, None)
