"""What a model takes and returns: named tensors with a datatype and a shape."""

from __future__ import annotations

import math

from msgspec import Struct

from ...base.errors import UsageError
from ...base.ids import valid_name
from .datatypes import dtype_of

ANY = -1
"""An extent that each request chooses."""
MAX_DIMENSIONS = 32


class TensorSignature(Struct, frozen=True, forbid_unknown_fields=True):
    """``shape`` without the dimension of the batch; -1: any extent."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    def text(self, batched: bool) -> str:
        """As it stands in error messages: ``x FP32 [batch, 3, -1]``."""
        extents = ["batch"] * batched + [str(extent) for extent in self.shape]
        return f"{self.name} {self.datatype} [{', '.join(extents)}]"


class ModelSignature(Struct, frozen=True, forbid_unknown_fields=True):
    """``max_batch``: most items of one batch, which are the first dimension of every tensor; 0: the model takes no batches."""

    inputs: tuple[TensorSignature, ...]
    outputs: tuple[TensorSignature, ...] = ()
    """Empty: whatever the model returns."""
    max_batch: int = 0

    @property
    def batched(self) -> bool:
        return self.max_batch > 0

    def text(self) -> str:
        """The inputs, as they stand in error messages."""
        return ", ".join(one.text(self.batched) for one in self.inputs) or "no inputs"


def check_signature(signature: ModelSignature) -> None:
    """Raises UsageError that says what is wrong with it."""
    if signature.max_batch < 0:
        raise UsageError(f"max_batch: {signature.max_batch} is negative", "give 0 for a model without batches")
    for tensors in (signature.inputs, signature.outputs):
        names = [one.name for one in tensors]
        if len(set(names)) < len(names):
            raise UsageError(f"two tensors have the same name: {', '.join(names)}", "name each once")
        for one in tensors:
            if not valid_name(one.name):
                raise UsageError(f"not a name of a tensor: {one.name!r}", "use letters, digits and . _ -")
            dtype_of(one.datatype)
            if len(one.shape) > MAX_DIMENSIONS or any(extent < ANY or extent > 2**31 for extent in one.shape):
                raise UsageError(f"{one.name}: not a shape: {list(one.shape)}", "give extents from 0 on, or -1 for any")


def elements(shape: tuple[int, ...]) -> int:
    """Number of elements."""
    return math.prod(shape)
