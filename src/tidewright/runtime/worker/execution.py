"""One model of a worker: its callable, its signature, and the slots of shared memory that its tasks read and write.

A ``torch.nn.Module`` gets and gives tensors, in inference mode; any other callable gets and gives numpy arrays.
"""

from __future__ import annotations

import inspect
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...base.errors import UsageError
from ..transport.messages import ModelSource
from ..transport.tensors import Signature, TensorSpec, slot_views
from .factory import make
from .gate import OperatorGate, through_gate, through_yields


class LoadedModel:
    """``gate`` is there where the worker is stopped between operators."""

    def __init__(self, made: Any, inputs: Sequence[TensorSpec], gate: OperatorGate | None) -> None:
        self.is_torch = is_module(made)
        self.gates = 0
        self.nbytes = parameter_bytes(made) if self.is_torch else 0
        self._call = self._callable(made, gate)
        self._slots: list[tuple[list[Any], list[Any]]] = []
        self.signature, self.run_ns = self._measure(tuple(inputs))

    def _callable(self, made: Any, gate: OperatorGate | None) -> Callable[..., Any]:
        if self.is_torch:
            made.eval()
            if gate is None:
                return made  # type: ignore[no-any-return]
            try:
                call, self.gates = through_gate(made, gate)
            except Exception as error:
                raise UsageError(
                    f"{type(made).__name__} cannot be stopped between operators: torch.fx does not trace it ({error})",
                    "run where best-effort work is stopped by signals, or load a model that torch.fx can trace",
                ) from None
            return call
        if not callable(made):
            raise UsageError(
                f"the factory made a {type(made).__name__}, which cannot be called", "return a module or a function"
            )
        if _yields(made):
            self.gates = -1  # known only as it runs
            return through_yields(made, gate or _OPEN)
        return made  # type: ignore[no-any-return]

    def _measure(self, inputs: tuple[TensorSpec, ...]) -> tuple[Signature, int]:
        """What it gives for zeros, and how long the second run takes, ns."""
        zeros = [self._view(bytearray(max(spec.nbytes, 1)), 0, spec) for spec in inputs]
        self._run(zeros)
        began = time.monotonic_ns()
        outputs = self._run(zeros)
        took = time.monotonic_ns() - began
        return Signature(inputs, tuple(spec_of(output) for output in outputs)), took

    def attach(self, memory: mmap.mmap, slots: int) -> None:
        """Its tasks' inputs and outputs lie in ``memory``, one slot behind the other."""
        self._slots = slot_views(self.signature, memory, slots, self._view)

    def run(self, slot: int) -> None:
        """One task. Raises what the model raises, UsageError where its outputs are not those it was measured with."""
        inputs, views = self._slots[slot]
        outputs = self._run(inputs)
        if len(outputs) != len(views):
            raise UsageError(f"{len(outputs)} outputs, and {len(views)} when it was loaded", "give as many each time")
        for output, view in zip(outputs, views, strict=True):
            if tuple(output.shape) != tuple(view.shape) or output.dtype != view.dtype:
                raise UsageError(
                    f"an output of {spec_of(output)}, and {spec_of(view)} when it was loaded",
                    "give the same shapes each time",
                )
            view[...] = output

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        if not self.is_torch:
            return [_as_array(output) for output in flat_outputs(self._call(*inputs))]
        import torch

        with torch.inference_mode():
            return flat_outputs(self._call(*inputs))

    def _view(self, memory: Any, offset: int, spec: TensorSpec) -> Any:
        """A tensor or array over ``memory``."""
        if self.is_torch:
            return tensor_view(memory, offset, spec)
        import numpy as np

        if spec.dtype == "bfloat16":
            raise UsageError("numpy has no bfloat16", "use another element type, or a torch module")
        return np.ndarray(spec.shape, np.dtype(spec.dtype), memory, offset)


def tensor_view(memory: Any, offset: int, spec: TensorSpec) -> Any:
    """A tensor over ``memory``, of the host."""
    import torch

    kind = getattr(torch, spec.dtype)
    if not spec.nbytes:
        return torch.empty(spec.shape, dtype=kind)
    return torch.frombuffer(memory, dtype=kind, count=spec.nbytes // kind.itemsize, offset=offset).view(spec.shape)


class _OpenGate(OperatorGate):
    """For generator functions where the worker is stopped by signals: never closed."""

    def __init__(self) -> None:
        self.task = 0

    def check(self, number: int) -> None:
        """Passes."""


_OPEN = _OpenGate()


def make_module(source: ModelSource, folder: str) -> Any:
    """A model that is to be compiled. Raises UsageError where the factory makes no module, and what ``make`` raises."""
    made = make(source, folder)
    if not is_module(made):
        raise UsageError(
            f"the factory made a {type(made).__name__}", "return a torch.nn.Module: nothing else is compiled for a GPU"
        )
    return made


def is_module(made: Any) -> bool:
    """Whether it is a ``torch.nn.Module``, without importing torch."""
    import sys

    torch = sys.modules.get("torch")
    return torch is not None and isinstance(made, torch.nn.Module)


def _yields(made: Any) -> bool:
    return inspect.isgeneratorfunction(made) or inspect.isgeneratorfunction(vars(type(made)).get("__call__"))


def parameter_bytes(module: Any) -> int:
    """Of a module's parameters and buffers."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def flat_outputs(output: Any) -> list[Any]:
    """Outputs in order: one, a sequence of them, or the values of a mapping (as the models of transformers give)."""
    if isinstance(output, Mapping):
        return [value for value in output.values() if value is not None]
    return list(output) if isinstance(output, tuple | list) else [output]


def _as_array(output: Any) -> Any:
    import numpy as np

    return np.asarray(output)


def spec_of(output: Any) -> TensorSpec:
    """Form of a tensor or array. Raises UsageError for anything else."""
    if not hasattr(output, "dtype") or not hasattr(output, "shape"):
        raise UsageError(f"an output of type {type(output).__name__}", "return tensors or arrays")
    return TensorSpec(str(output.dtype).removeprefix("torch."), tuple(output.shape))
