"""How each kernel of a model could be stopped on a GPU, from the code that Inductor generates: no GPU is needed."""

from __future__ import annotations

from collections.abc import Sequence

from ..transport.messages import ModelSource
from ..transport.tensors import TensorSpec
from ..worker.execution import make_module
from .compile import require_triton
from .ladder import KernelLevel, kernel_levels
from .wrapper import gate_wrapper


def inspect_kernels(source: ModelSource, inputs: Sequence[TensorSpec], folder: str) -> tuple[str, list[KernelLevel]]:
    """(device for which code was generated, kernels in the order of their launches). The choice of tiles, and with it the number
    of launches, may differ on a real GPU. Raises UsageError where Triton is missing or the model is no module, and what the
    factory and Inductor raise."""
    require_triton()
    import torch

    from .pretend import H200, generate

    model = make_module(source, folder)
    given = tuple(torch.zeros(one.shape, dtype=getattr(torch, one.dtype)) for one in inputs)
    return H200.name, kernel_levels(gate_wrapper(generate(model.eval(), given, H200)))
