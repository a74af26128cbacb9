"""How a model is defined for serving: a Python callable, or a factory of one or of a ``torch.nn.Module``, with its signature.

``app.py``::

    from tidewright.serve.define import serves

    @serves(inputs={"x": "FP32[3]"}, outputs={"y": "FP32[1]"}, max_batch=32)
    def predict(x):
        return x.sum(axis=1, keepdims=True)

    @serves(inputs={"x": "FP32[784]"}, outputs={"logits": "FP32[10]"}, max_batch=64, factory=True)
    def network():
        return torch.load("net.pt").eval()

``tide serve deploy digits --model app:network`` serves it. Arrays are numpy's; a module is given and returns tensors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..base.errors import UsageError
from .protocol.signature import ModelSignature, TensorSignature, check_signature

_TENSOR = re.compile(r"([A-Z]+[0-9]*)\s*(?:\[\s*((?:-?\d+\s*,\s*)*(?:-?\d+)?)\s*\])?")


@dataclass(frozen=True)
class ModelDefinition:
    """``target`` is the callable, or with ``factory`` a function without arguments that returns it."""

    target: Callable[..., Any]
    signature: ModelSignature
    factory: bool = False
    warm_up: bool = True
    """Whether a replica runs it on zeros, in batches of all sizes, before it is ready: so its latency is known."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """The callable itself, so that a definition can be tested like a function."""
        return self.target(*arguments, **named)


def serves(
    inputs: Mapping[str, str],
    outputs: Mapping[str, str] | None = None,
    max_batch: int = 0,
    factory: bool = False,
    warm_up: bool = True,
) -> Callable[[Callable[..., Any]], ModelDefinition]:
    """A decorator that makes a callable a model. Tensors are written ``FP32[3, -1]``: the datatype of the Open Inference Protocol
    and the shape of one item, -1 for any extent. ``max_batch`` 0: the callable takes one item without a dimension of the batch.
    Raises UsageError for a signature that makes no sense."""
    signature = ModelSignature(
        tuple(parse_tensor(name, text) for name, text in inputs.items()),
        tuple(parse_tensor(name, text) for name, text in (outputs or {}).items()),
        max_batch,
    )
    check_signature(signature)
    return lambda target: ModelDefinition(target, signature, factory, warm_up)


def parse_tensor(name: str, text: str) -> TensorSignature:
    """``FP32[3, -1]``, or ``FP32`` for one number. Raises UsageError."""
    found = _TENSOR.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{name}: not a tensor: {text!r}", "write it like FP32[3, -1]")
    extents = tuple(int(extent) for extent in (found[2] or "").split(",") if extent.strip())
    return TensorSignature(name, found[1], extents)
