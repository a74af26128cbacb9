"""A pretended CUDA device for Inductor: code is generated and compiled as for a GPU of the given kind, without one.

For checks of generated code only. Nothing runs, nothing is timed: autotuning takes the first Triton choice that is
offered, so on a real GPU the choice of tiles, and with it the number of launches, may differ. Whatever would need a device
raises in PyTorch as it does without one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from .compile import wrappers_changed
from .settings import inductor_settings


@dataclass(frozen=True, slots=True)
class DeviceKind:
    """What Inductor and Triton ask of a device. Fields are named as in ``torch.cuda.get_device_properties``; memory in bytes."""

    name: str
    major: int
    minor: int
    multi_processor_count: int
    total_memory: int
    L2_cache_size: int
    regs_per_multiprocessor: int = 65536
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    shared_memory_per_block: int = 49152
    shared_memory_per_block_optin: int = 232448
    shared_memory_per_multiprocessor: int = 233472
    warp_size: int = 32
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    gcnArchName: str = ""  # noqa: N815 - PyTorch's spelling

    @property
    def capability(self) -> int:
        """90 for compute capability 9.0."""
        return self.major * 10 + self.minor


H200 = DeviceKind("NVIDIA H200", 9, 0, 132, 141 * 2**30, 50 * 2**20)
"""NVIDIA H200 data sheet; CUDA C++ Programming Guide, table of technical specifications per compute capability."""


@contextmanager
def pretended_device(kind: DeviceKind = H200) -> Iterator[None]:
    """PyTorch, Inductor and Triton see one device of this kind. For the whole process; not for threads that compile for a
    real one."""
    import torch
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.runtime import triton_helpers
    from triton.runtime.driver import driver

    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_properties": lambda device=None: kind,
        "get_device_capability": lambda device=None: (kind.major, kind.minor),
        "synchronize": lambda device=None: None,
        "exchange_device": lambda device: 0,
        "maybe_exchange_device": lambda device: 0,
        "get_raw_stream": lambda device=0: 0,
        "is_bf16_supported": lambda *args, **kwargs: True,
        "get_rng_state": lambda device=0: torch.get_rng_state(),
        "set_rng_state": lambda state, device=0: None,
    }
    # Guards of the device in C++ then do nothing; indexing a tensor would otherwise ask the driver for the current device.
    torch._C._ensureCUDADeviceGuardSet()
    before = driver._active
    with ExitStack() as stack:
        for name, answer in answers.items():
            # The interface copied the functions of torch.cuda when it was defined; some go by another spelling there.
            for place, spelling in ((CudaInterface, name), (torch.cuda, name), (torch.cuda, f"_{name}")):
                if hasattr(place, spelling):
                    patched = staticmethod(answer) if place is CudaInterface else answer
                    stack.enter_context(mock.patch.object(place, spelling, patched))
        stack.enter_context(mock.patch.object(torch.cuda, "_lazy_init", lambda: None))
        # Kernels of Inductor call it when they are imported; it looks for a driver that answers.
        stack.enter_context(mock.patch.object(triton_helpers, "set_driver_to_gpu", lambda: None))
        stack.enter_context(mock.patch.object(torch._subclasses.fake_tensor, "init_gpu_context", lambda device: None))
        driver.set_active(_target_only(kind))
        try:
            yield
        finally:
            driver._active = before


def _target_only(kind: DeviceKind) -> Any:
    """A driver of Triton that compiles for ``kind`` and can do nothing else."""
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import CudaDriver

    class TargetDriver(CudaDriver):  # type: ignore[misc]
        def __init__(self) -> None:
            self.get_device_capability = lambda device=0: (kind.major, kind.minor)
            self.get_current_device = lambda: 0
            self.set_current_device = lambda device: None
            self.get_current_stream = lambda device=0: 0

        def get_current_target(self) -> Any:
            return GPUTarget("cuda", kind.capability, kind.warp_size)

    return TargetDriver()


class _Captured(BaseException):
    """Ends a compilation before its result would be loaded. Inductor would wrap an Exception in its own."""


def generate(model: Any, inputs: tuple[Any, ...], kind: DeviceKind = H200) -> str:
    """The wrapper that Inductor generates for inference with ``model(*inputs)`` on a device of ``kind``.

    ``model`` and ``inputs`` are on the CPU, in the precision that is wanted; their values are not looked at. Raises what
    Inductor raises.
    """
    import torch
    from torch._inductor.fx_passes import joint_graph
    from torch._subclasses.fake_tensor import FakeTensorMode

    wrapper: list[str] = []

    def stop(text: str) -> str:
        wrapper.append(text)
        raise _Captured

    with pretended_device(kind), inductor_settings(), torch.no_grad(), ExitStack() as stack:
        stack.enter_context(_first_choice())
        # Its patterns (random permutations, padded products) are traced with tensors on the device.
        stack.enter_context(mock.patch.object(joint_graph, "lazy_init", lambda *args: None))
        stack.enter_context(wrappers_changed(stop, lambda module: None))
        mode = FakeTensorMode(allow_non_fake_inputs=False)
        graph, flat = _trace(model, inputs, mode)
        try:
            _lower(graph, flat, mode)
        except _Captured:
            return wrapper[0]
    raise RuntimeError("Inductor generated no wrapper")


def _trace(model: Any, inputs: tuple[Any, ...], mode: Any) -> tuple[Any, list[Any]]:
    """The graph of core operators, with parameters as its first inputs, and fakes of all inputs on the pretended device."""
    import torch
    from torch._inductor.decomposition import select_decomp_table
    from torch.fx.experimental.proxy_tensor import make_fx

    with mode:
        state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
        names = list(state)
        flat = [_fake(tensor) for tensor in (*state.values(), *inputs)]

        def function(*values: Any) -> Any:
            weights = dict(zip(names, values, strict=False))
            result = torch.func.functional_call(model, weights, tuple(values[len(names) :]))
            return tuple(part for part in torch.utils._pytree.tree_leaves(result) if isinstance(part, torch.Tensor))

        graph = make_fx(function, decomposition_table=select_decomp_table(), tracing_mode="real")(*flat)
    return graph, flat


def _fake(tensor: Any) -> Any:
    import torch

    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cuda:0")


def _lower(graph: Any, flat: list[Any], mode: Any) -> None:
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner
    from torch._inductor.virtualized import V

    with V.set_fake_mode(mode):
        _recursive_joint_graph_passes(graph)
        compile_fx_inner(graph, flat, static_input_idxs=[])


@contextmanager
def _first_choice() -> Iterator[None]:
    """Autotuning without a device: the choices in the order in which they are offered, Triton's first; nothing is compiled
    ahead."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache, ExternKernelCaller

    def autotune(
        self: Any, name: str, input_nodes: Any, layout: Any, input_gen_fns: Any, choices: Any, *args: Any, **kwargs: Any
    ) -> Any:
        order = sorted(choices, key=lambda choice: isinstance(choice, ExternKernelCaller))
        return {choice: 1.0 + place for place, choice in enumerate(order)}

    def precompile(self: Any, *args: Any, **kwargs: Any) -> Callable[[], None]:
        return lambda: None

    with (
        mock.patch.object(AlgorithmSelectorCache, "autotune", autotune),
        mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", precompile),
    ):
        yield
