"""A PyTorch model compiled for best-effort work on a CUDA device: Inductor's own kernels, gated, and what is known of each.

Needs a GPU when it is called; what it is made of (``settings``, ``wrapper``, ``gate``, ``grids``) does not, and is checked
without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from ...base.errors import UsageError, WorldError
from .control import ControlBlock
from .gate import CONTROL
from .grids import largest_grid
from .ladder import KernelLevel, kernel_levels
from .settings import inductor_settings
from .tuning import same_choices
from .wrapper import BUFFER, GatedWrapper, gate_wrapper

LEAST_CAPABILITY = (7, 0)
"""Triton's own limit."""


@dataclass(slots=True)
class GatedModel:
    """``function`` computes what the model computes. Its launches are one chain, numbered over all ``graphs``.

    A chain that was aborted is resumed by launching it again. Each call, and each capture in a CUDA graph, computes in the same
    memory: results are overwritten by the next call.
    """

    function: Callable[..., Any]
    graphs: list[GatedWrapper] = field(default_factory=list)
    modules: list[Any] = field(default_factory=list)
    largest_grid: int = 1
    open_block: Any = None
    """A control block that is never closed: for calls that no queue knows of."""

    def bind(self, control: Any) -> None:
        """Launch with this control block from now on: an int32 tensor on the device, ``words_needed(largest_grid)`` long."""
        for module in self.modules:
            setattr(module, CONTROL, control)

    def bind_open(self) -> None:
        """Launch with a gate that is always open, until the next ``bind``."""
        self.bind(self.open_block)

    def release(self) -> None:
        """Free the memory in which it computes; it is not called any more."""
        for module in self.modules:
            getattr(module, f"{BUFFER}s").clear()

    def levels(self) -> list[KernelLevel]:
        """How each kernel is stopped, and why it is not stopped better."""
        return [level for graph in self.graphs for level in kernel_levels(graph)]


def require_triton() -> None:
    """Raises UsageError where PyTorch or Triton is missing."""
    try:
        import torch  # noqa: F401
        import triton  # noqa: F401
    except ImportError as error:
        remedy = "install PyTorch's CUDA build, which brings Triton: pip install torch"
        raise UsageError(f"the CUDA device needs the package {error.name}", remedy) from None


def require_device() -> None:
    """Raises UsageError that says what is missing for a CUDA device."""
    require_triton()
    import torch

    if not torch.cuda.is_available():
        raise UsageError("PyTorch sees no CUDA device", "it needs an NVIDIA GPU, its driver and PyTorch's CUDA build")
    capability = torch.cuda.get_device_capability()
    if capability < LEAST_CAPABILITY:
        raise UsageError(
            f"the GPU has compute capability {capability[0]}.{capability[1]}", "7.0 or later is needed for Triton"
        )


def compile_gated(
    model: Any, inputs: tuple[Any, ...], with_plain: Callable[[Callable[..., Any]], None] = lambda function: None
) -> GatedModel:
    """``model`` compiled with gates, and run once with ``inputs`` to check that it computes bit for bit what it does
    without them. ``with_plain`` gets the one without before the compiler forgets it.

    The gate is open throughout, so that autotuning times whole kernels. Raises UsageError without a device, WorldError for a
    difference, and what Inductor raises.
    """
    require_device()
    import torch

    with torch.no_grad(), same_choices():
        # Not what was generated at another time, by choices that are not known any more.
        function = compile_plain(model, inputs, cached=False)
        plain = function(*inputs)
        with_plain(function)
        # Nothing is ever aborted here, so there are no marks to write.
        open_block = torch.tensor(ControlBlock(1).words, dtype=torch.int32, device=inputs[0].device)
        torch.compiler.reset()
        gated = GatedModel(torch.compile(model, dynamic=False, fullgraph=True), open_block=open_block)

        def change(text: str) -> str:
            launched = sum(len(graph.launches) for graph in gated.graphs)
            gated.graphs.append(gate_wrapper(text, first_index=launched + 1))
            return gated.graphs[-1].text

        def loaded(module: Any) -> None:
            gated.modules.append(module)
            setattr(module, CONTROL, open_block)

        try:
            with inductor_settings(), wrappers_changed(change, loaded):
                outcome = gated.function(*inputs)
            require_equal(plain, outcome)
            gated.largest_grid = max(largest_grid(graph) for graph in gated.graphs)
        except BaseException:
            gated.release()  # the compiler keeps the modules
            raise
    return gated


def compile_plain(model: Any, inputs: tuple[Any, ...], cached: bool = True) -> Callable[..., Any]:
    """``model`` compiled with the same settings and no gates, and run once. ``cached``: by what was generated before, in any
    process. Raises UsageError for a model that is no single graph: what runs between its graphs is neither gated nor counted."""
    import torch

    torch.compiler.reset()
    compiled: Callable[..., Any] = torch.compile(model, dynamic=False, fullgraph=True)
    with torch.no_grad(), inductor_settings(cached=cached):
        try:
            compiled(*inputs)
        except torch._dynamo.exc.Unsupported as error:
            reason = str(error).strip().splitlines()[0]
            remedy = "change the model until torch.compile takes it with fullgraph=True"
            raise UsageError(f"torch.compile cannot make one graph of the model: {reason}", remedy) from None
    return compiled


@contextmanager
def wrappers_changed(change: Callable[[str], str], loaded: Callable[[Any], None]) -> Iterator[None]:
    """Inductor loads ``change(wrapper)`` instead of the wrapper that it generated; ``loaded`` gets the module, before its
    first call."""
    from torch._inductor.graph import GraphLowering

    load = GraphLowering._compile_to_module_lines

    def load_changed(self: Any, code: Any) -> Any:
        code.value = change(code.value)
        module = load(self, code)
        loaded(module)
        return module

    with mock.patch.object(GraphLowering, "_compile_to_module_lines", load_changed):
        yield


def require_equal(plain: Any, gated: Any) -> None:
    """Raises WorldError where the tensors of two results differ in any bit."""
    import torch

    sides = [torch.utils._pytree.tree_leaves(one) for one in (plain, gated)]
    for place, (one, other) in enumerate(zip(*sides, strict=True)):
        if isinstance(one, torch.Tensor) and not same_bits(one, other):
            raise WorldError(f"output {place} of the model differs with the gate and without; it is not loaded")


def same_bits(one: Any, other: Any) -> bool:
    """Whether two tensors have the same bytes: equal numbers may differ in them (zeros), and equal bytes in numbers (NaN)."""
    import torch

    first, second = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (one, other))
    return bool(torch.equal(first, second))
