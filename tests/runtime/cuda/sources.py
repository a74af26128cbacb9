"""Small Triton sources: as written by hand and as Inductor writes them."""

from __future__ import annotations

HEAD = "import triton\nimport triton.language as tl\n"

BY_HAND = (
    HEAD
    + '''
@triton.jit
def _scale(x, factor):
    return x * factor


@triton.jit
def scale_in_place(pointer, n, BLOCK: tl.constexpr):
    """Multiply by three."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(pointer + at, mask=at < n)
    tl.store(pointer + at, _scale(value, 3), mask=at < n)
'''
)

INDUCTOR = """
import triton
import triton.language as tl

from torch._inductor.runtime import triton_helpers, triton_heuristics
from torch._inductor.runtime.triton_helpers import libdevice, math as tl_math
from torch._inductor.runtime.hints import AutotuneHint, ReductionHint, TileHint, DeviceProperties
triton_helpers.set_driver_to_gpu()

@triton_heuristics.pointwise(
    size_hints={'x': 4096},
    filename=__file__,
    triton_meta={'signature': {'in_out_ptr0': '*fp16', 'in_ptr0': '*fp16', 'xnumel': 'i32', 'XBLOCK': 'constexpr'},
                 'device': DeviceProperties(type='cuda', index=0, multi_processor_count=132, cc=90, major=9,
                 regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048, max_threads_per_block=1024, warp_size=32),
                 'constants': {}, 'launch_pdl': False,
                 'configs': [{(0,): [['tt.divisibility', 16]], (1, 2): [['tt.divisibility', 16]]}]},
    inductor_meta={'grid_type': 'Grid1D', 'autotune_hints': set(), 'kernel_name': 'triton_poi_fused_0',
                   'mutated_arg_names': ['in_out_ptr0'], 'assert_indirect_indexing': True},
    min_elem_per_thread=0
)
@triton.jit
def triton_poi_fused_0(in_out_ptr0, in_ptr0, xnumel, XBLOCK : tl.constexpr):
    xnumel = 4096
    xoffset = tl.program_id(0) * XBLOCK
    xindex = xoffset + tl.arange(0, XBLOCK)[:]
    x0 = xindex
    tmp0 = tl.load(in_out_ptr0 + (x0), None).to(tl.float32)
    tmp1 = tl.load(in_ptr0 + (x0), None).to(tl.float32)
    tmp2 = triton_helpers.maximum(tmp0 + tmp1, 0.0)
    tl.store(in_out_ptr0 + (x0), tmp2, None)
"""

COOPERATIVE = INDUCTOR.replace("triton_heuristics.pointwise", "triton_heuristics.cooperative_reduction").replace(
    "'launch_pdl': False", "'launch_cooperative_grid': True"
)


def wrapper(call: str, kernels: dict[str, str] | None = None) -> str:
    """A wrapper with ``call`` as the body of its function, eight columns in."""
    sources = {"triton_poi_fused_0": INDUCTOR} if kernels is None else kernels
    definitions = "".join(
        f"# Graph fragment: Größe\n{name} = async_compile.triton('{name}', '''{text}''', device_str='cuda')\n\n"
        for name, text in sources.items()
    )
    return (
        "import torch\nfrom torch._inductor.async_compile import AsyncCompile\nasync_compile = AsyncCompile()\n\n"
        f"{definitions}async_compile.wait(globals())\ndel async_compile\n\n"
        "def call(args):\n    arg0_1, arg1_1 = args\n    args.clear()\n"
        "    assert_size_stride(arg0_1, (64, 64), (64, 1))\n"
        "    with torch.cuda._DeviceGuard(0):\n        torch.cuda.set_device(0)\n"
        f"{call}        return (arg0_1, )\n"
    )


RUN = "        stream0 = get_raw_stream(0)\n        triton_poi_fused_0.run(arg0_1, arg1_1, 4096, stream=stream0)\n"
EXTERN = "        extern_kernels.mm(arg0_1, arg1_1, out=buf0); buf1 = arg1_1; del buf1  # reuse\n"
