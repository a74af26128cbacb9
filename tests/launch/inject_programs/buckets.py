"""What becomes of memory that ``scratch`` gives back, seen from within. Arguments as those of DistributedDataParallel."""

import ctypes
import json
import mmap
import os
import sys
import threading

import torch
import torch.distributed as dist
from _tidewright import scratch

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(256, 256)
ddp = torch.nn.parallel.DistributedDataParallel(model, **dict.fromkeys(sys.argv[1:], True))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
other = torch.ones(4096)


class Reduces(torch.autograd.Function):
    """A backward pass of the program's own that has something reduced: Python stands between."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        dist.all_reduce(other)
        return grad


given, thread = [], threading.get_ident()
for _ in range(4):
    optimizer.zero_grad()
    given.append(scratch.drop(thread))
    Reduces.apply(ddp(torch.ones(4, 256)).sum()).backward()
    optimizer.step()
grads = [p.grad.clone() for p in model.parameters()]
strange = scratch.drop(thread + 1)
last = scratch.drop(thread)
pages = []
for found in scratch.buckets.values():
    begin = -(-found.address // mmap.PAGESIZE) * mmap.PAGESIZE
    pages.append(ctypes.string_at(begin, mmap.PAGESIZE).count(0))
with open(f"{os.environ['OUT']}.{dist.get_rank()}", "w") as file:
    json.dump(
        {
            "given": given, "last": last, "strange": strange, "pages": pages, "others": other.eq(1).all().item(),
            "grads": all(torch.equal(a, p.grad) for a, p in zip(grads, model.parameters(), strict=True)),
            "zero": any(not grad.any() for grad in grads),
        },
        file,
    )  # fmt: skip
dist.destroy_process_group()
