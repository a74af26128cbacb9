"""How Inductor is set for work that must be preemptible: Triton for everything that it can generate, nothing that waits
across CTAs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

INDUCTOR: dict[str, Any] = {
    # Library kernels cannot be gated. max_autotune is what offers Triton's templates at all.
    "max_autotune": True,
    "max_autotune_gemm": True,
    "max_autotune_gemm_backends": "TRITON",
    "max_autotune_conv_backends": "TRITON",
    # A 1x1 convolution is offered as a library's matrix product whatever the backends are.
    "test_configs.autotune_choice_name_regex": "triton",
    # CTAs that wait for each other, or for a predecessor that has not ended.
    "triton.cooperative_reductions": False,
    "triton.force_cooperative_reductions": False,
    "triton.enable_pdl": False,
    # Descriptors in memory of their own, written at launch.
    "triton.enable_persistent_tma_matmul": False,
    "triton.enable_template_tma_store": False,
    # One straight function of launches, each of one kernel: a launch has one index in the chain.
    "triton.multi_kernel": 0,
    "triton.cudagraphs": False,
    "graph_partition": False,
    "cpp_wrapper": False,
    # It checks the arguments of a launch against the kernel's own list, which lacks the gate's.
    "use_static_cuda_launcher": False,
    # What is fused must not be decided by timing code without the gate, and cannot be without a device.
    "benchmark_epilogue_fusion": False,
    "benchmark_fusion": False,
    # Configurations of a reduction add in different orders: the one of its kernel without a gate must be that of the one with.
    "test_configs.force_filter_reduction_configs": True,
    "dynamic_scale_rblock": False,
}


@contextmanager
def inductor_settings(cached: bool = False) -> Iterator[None]:
    """Compile under ``INDUCTOR``; written-out attention stays written out, as the library's fused one could not be gated.
    ``cached``: take what Inductor has generated before, in any process; what is changed on its way cannot be."""
    from torch._inductor import config
    from torch._inductor.fx_passes import fuse_attention

    with (
        config.patch(INDUCTOR | {"fx_graph_cache": cached}),
        mock.patch.object(fuse_attention, "_sfdp_init", lambda *args: None),
    ):
        yield
