"""Collectives over a backend that stands in for NCCL: gloo does the work, what the wrapper does to NCCL is written down.

The argument: steps. All numbers are halves, so sums are exact."""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

log, alive = [], []


class Options:
    """As far as torch and the wrapper look at NCCL's."""

    _timeout = split_from = None


class Nccl(c10d.ProcessGroupGloo):
    """Ends when it is aborted, and not when the last reference goes."""

    Options = Options

    def __init__(self, store, rank, size, options):
        super().__init__(store, rank, size, options._timeout)
        alive.append(self)
        log.append("made")

    def abort(self):
        """Communicators are released."""
        alive.remove(self)
        log.append("aborted")


c10d.ProcessGroupNCCL, c10d._NCCL_AVAILABLE = Nccl, True
torch.cuda.synchronize = lambda *_: log.append("waited")
dist.init_process_group("cpu:nccl")
rank, size = dist.get_rank(), dist.get_world_size()
part = dist.new_group([0, 1])
state, sums = torch.full((64,), float(rank)), []
for step in range(int(sys.argv[1])):
    work = dist.all_reduce(state, async_op=True)
    work.wait()
    state = state / size + rank
    dist.broadcast(state, step % 2, group=part)
    sums.append(state.sum().item())
with open(f"{os.environ['OUT']}.{rank}", "w") as file:
    json.dump({"sums": sums, "log": log}, file)
dist.destroy_process_group()
