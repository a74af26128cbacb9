"""Tensors as JSON and as binary data (Open Inference Protocol, "Tensor Data" and "Binary Tensor Data Extension")."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np

from ...base.errors import UsageError
from .datatypes import BYTES, Tensor, dtype_of
from .signature import elements

_KINDS = {"b": "b", "u": "iu", "i": "iu", "f": "iuf"}
"""Kind of the datatype wanted to the kinds of numpy arrays made of JSON that fit it."""
_LENGTH = struct.Struct("<I")
_END = object()


def from_json(name: str, datatype: str, shape: tuple[int, ...], data: Any) -> Tensor:
    """The tensor of ``data``, a list in row-major order, flat or nested. Raises UsageError."""
    if not isinstance(data, list):
        raise UsageError(f"input {name}: data is not a list", "give all elements in row-major order")
    if datatype == BYTES:
        return _texts(name, shape, data)
    wanted = dtype_of(datatype)
    try:
        found = np.asarray(data)
    except (ValueError, OverflowError):
        raise UsageError(
            f"input {name}: data is ragged, or holds what is no {datatype}", "give equally long rows"
        ) from None
    if not found.size and not elements(shape):
        return np.empty(shape, wanted)
    if wanted.kind == "u" and found.dtype.kind in "fO":
        found = _beyond_int64(data, found)
    if found.dtype.kind not in _KINDS[wanted.kind]:
        raise UsageError(f"input {name}: data holds what is no {datatype}", "give elements of that datatype")
    _counts(name, shape, found)
    if wanted.kind in "iu":
        bounds = np.iinfo(wanted)
        if int(found.min()) < bounds.min or int(found.max()) > bounds.max:
            raise UsageError(f"input {name}: data is beyond {datatype}", f"give {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):
        made = found.astype(wanted).reshape(shape)
    if wanted.kind == "f" and not np.isfinite(made).all():
        raise UsageError(f"input {name}: data is beyond {datatype}", "give smaller numbers, or another datatype")
    return made


def _beyond_int64(data: list[Any], found: Tensor) -> Tensor:
    """numpy makes floats or objects of integers of which some are beyond 63 bits and others are not: exact ones of such."""
    exact = np.array(data, object)
    whole = all(type(each) is int and 0 <= each < 2**64 for each in exact.ravel().tolist())
    return exact.astype(np.uint64) if whole else found


def _texts(name: str, shape: tuple[int, ...], data: list[Any]) -> Tensor:
    flat: list[bytes] = []
    stack = [iter(data)]
    while stack:
        item = next(stack[-1], _END)
        if item is _END:
            stack.pop()
        elif isinstance(item, list):
            stack.append(iter(item))
        elif isinstance(item, str):
            flat.append(item.encode())
        else:
            raise UsageError(
                f"input {name}: data holds what is no text", "give strings; other bytes only as binary data"
            )
    return _objects(name, shape, flat)


def _objects(name: str, shape: tuple[int, ...], flat: list[bytes]) -> Tensor:
    made = np.empty(len(flat), object)
    made[:] = flat
    _counts(name, shape, made)
    return made.reshape(shape)


def _counts(name: str, shape: tuple[int, ...], found: Tensor) -> None:
    if found.size != elements(shape):
        raise UsageError(
            f"input {name}: {found.size} elements, shape {list(shape)} has {elements(shape)}", "correct shape or data"
        )


def from_binary(name: str, datatype: str, shape: tuple[int, ...], data: memoryview) -> Tensor:
    """The tensor of little-endian bytes; not a copy of them. Raises UsageError."""
    if datatype == BYTES:
        return _objects(name, shape, _lengths(name, data))
    wanted = dtype_of(datatype)
    expected = elements(shape) * wanted.itemsize
    if len(data) != expected:
        raise UsageError(
            f"input {name}: {len(data)} bytes, {datatype} of shape {list(shape)} has {expected}",
            "correct shape or data",
        )
    if wanted.kind == "b" and len(data) and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise UsageError(f"input {name}: a byte of BOOL is neither 0 nor 1", "send 0 or 1 for each element")
    return np.frombuffer(data, wanted).reshape(shape)


def _lengths(name: str, data: memoryview) -> list[bytes]:
    flat, at = [], 0
    while at < len(data):
        after = at + 4
        if after > len(data) or (end := after + _LENGTH.unpack_from(data, at)[0]) > len(data):
            raise UsageError(
                f"input {name}: an element of BYTES ends beyond the data", "put each length before its bytes"
            )
        flat.append(bytes(data[after:end]))
        at = end
    return flat


def to_json(tensor: Tensor, datatype: str) -> list[Any]:
    """All elements in row-major order; numbers that JSON has not (NaN, infinities) are null. Raises UsageError for BYTES that are
    not text."""
    flat = tensor.ravel()
    if datatype != BYTES:
        found: list[Any] = flat.tolist()
        return [each if math.isfinite(each) else None for each in found] if flat.dtype.kind == "f" else found
    try:
        return [each.decode() if isinstance(each, bytes) else str(each) for each in flat.tolist()]
    except UnicodeDecodeError:
        raise UsageError("an output of BYTES is not text", "ask for it as binary data (binary_data)") from None


def to_binary(tensor: Tensor, datatype: str) -> bytes:
    """Little-endian bytes in row-major order."""
    if datatype != BYTES:
        return np.ascontiguousarray(tensor, dtype_of(datatype)).tobytes()
    items = [each if isinstance(each, bytes) else str(each).encode() for each in tensor.ravel().tolist()]
    return b"".join(_LENGTH.pack(len(item)) + item for item in items)
