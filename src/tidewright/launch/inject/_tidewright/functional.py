"""Functional collectives that torch's C++ would do without asking the Python process group: compiled code and DTensor
call them. Each is the same as torch's (Functional.cpp), with the group's own method in its middle.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .group import Group

_library = []


def _start(name, method, output, input, *reduce):
    """Issue, and leave the work where ``wait_tensor`` finds it."""
    group = c10d._resolve_process_group(name)
    options = []
    if reduce:
        options = [dist.ReduceScatterOptions()]
        options[0].reduceOp = reduce[0]
    work = getattr(group, method)(output, input, *options)
    if isinstance(group, Group) and work is not None:
        group.kept.add(work)
    c10d._register_work(output, work)
    return output


def _operation(name):
    """As Functional.cpp's to_reduce_op."""
    return {
        "sum": dist.ReduceOp.SUM, "avg": dist.ReduceOp.AVG, "product": dist.ReduceOp.PRODUCT,
        "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX, "band": dist.ReduceOp.BAND, "bor": dist.ReduceOp.BOR,
        "bxor": dist.ReduceOp.BXOR,
    }[name.lower()]  # fmt: skip


def _gather_method():
    return "all_gather_single" if hasattr(dist.ProcessGroup, "all_gather_single") else "_allgather_base"


def _scatter_method():
    return "reduce_scatter_single" if hasattr(dist.ProcessGroup, "reduce_scatter_single") else "_reduce_scatter_base"


def _all_gather_out(input, group_size, group_name, *, out):
    return _start(group_name, _gather_method(), out, input.contiguous())


def _all_gather(input, group_size, group_name):
    out = input.new_empty((input.size(0) * group_size, *input.shape[1:]))
    return _all_gather_out(input, group_size, group_name, out=out)


def _reduce_scatter_out(input, reduce_op, group_size, group_name, *, out):
    return _start(group_name, _scatter_method(), out, input.contiguous(), _operation(reduce_op))


def _reduce_scatter(input, reduce_op, group_size, group_name):
    out = input.new_empty((input.size(0) // group_size, *input.shape[1:]))
    return _reduce_scatter_out(input, reduce_op, group_size, group_name, out=out)


_OPERATIONS = {
    "all_gather_into_tensor": _all_gather,
    "all_gather_into_tensor_out": _all_gather_out,
    "reduce_scatter_tensor": _reduce_scatter,
    "reduce_scatter_tensor_out": _reduce_scatter_out,
}


def install():
    """Put these before torch's own, which are registered for all devices at once and so come second."""
    library = torch.library.Library("_c10d_functional", "IMPL")
    for name, function in _OPERATIONS.items():
        if "_c10d_functional::" + name in torch._C._dispatch_get_all_op_names():
            for key in ("CPU", "CUDA"):
                library.impl(name, function, key)
    _library.append(library)
