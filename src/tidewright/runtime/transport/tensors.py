"""What a model takes and gives: names, element types and shapes; and where each tensor lies in a slot of shared memory.

A slot holds one task's inputs, then its outputs, each on a boundary of 64 bytes (a cache line, and what vector loads like).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from ...base.errors import UsageError

ALIGNMENT = 64
ITEM_BYTES = {
    "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
MOST_BYTES = 2**32
"""Of one tensor: what is larger is a mistake in a shape."""


MOST_OUTPUTS = 256
"""Of one model: its signature must fit in a message."""


class TensorSpec(Struct, frozen=True):
    """One tensor: ``shape`` in elements, ``dtype`` by torch's name for it (without ``torch.``)."""

    dtype: str
    shape: tuple[int, ...]
    name: str = ""

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * ITEM_BYTES[self.dtype]

    def __str__(self) -> str:
        label = f"{self.name}: " if self.name else ""
        return f"{label}{self.dtype}[{', '.join(map(str, self.shape))}]"


class Signature(Struct, frozen=True):
    """What one call of a model takes and gives, in order."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.inputs))}) -> ({', '.join(map(str, self.outputs))})"


def check_spec(spec: TensorSpec) -> None:
    """Raise UsageError unless the tensor has a known element type and a size that makes sense."""
    if spec.dtype not in ITEM_BYTES:
        raise UsageError(f"element type {spec.dtype!r} is not known", f"use one of {', '.join(ITEM_BYTES)}")
    if any(size < 0 for size in spec.shape) or spec.nbytes > MOST_BYTES:
        raise UsageError(
            f"{spec} is not a tensor that fits", f"give sizes of 0 or more, {MOST_BYTES} bytes at most in all"
        )


def check_outputs(signature: Signature) -> None:
    """Raise UsageError where a model gives what no slot holds."""
    if len(signature.outputs) > MOST_OUTPUTS:
        raise UsageError(f"it has {len(signature.outputs)} outputs", f"give {MOST_OUTPUTS} at most")
    for spec in signature.outputs:
        check_spec(spec)


class SlotLayout(Struct, frozen=True):
    """Offsets in bytes from the start of a slot, and the slot's size."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    nbytes: int

    @staticmethod
    def of(signature: Signature) -> SlotLayout:
        offsets, at = [], 0
        for spec in (*signature.inputs, *signature.outputs):
            offsets.append(at)
            at += -(-spec.nbytes // ALIGNMENT) * ALIGNMENT
        split = len(signature.inputs)
        return SlotLayout(tuple(offsets[:split]), tuple(offsets[split:]), max(at, ALIGNMENT))


def slot_views(
    signature: Signature, memory: Any, count: int, view: Callable[[Any, int, TensorSpec], Any]
) -> list[tuple[list[Any], list[Any]]]:
    """(inputs, outputs) of each slot in ``memory``; ``view`` makes them of the memory, an offset in it, and a tensor's form."""
    layout = SlotLayout.of(signature)

    def views(slot: int, offsets: tuple[int, ...], specs: tuple[TensorSpec, ...]) -> list[Any]:
        return [view(memory, slot * layout.nbytes + at, spec) for at, spec in zip(offsets, specs, strict=True)]

    return [
        (views(slot, layout.inputs, signature.inputs), views(slot, layout.outputs, signature.outputs))
        for slot in range(count)
    ]
