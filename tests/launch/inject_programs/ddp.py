"""DDP with AdamW, a schedule, clipping, accumulation with no_sync; optional flavours as arguments."""

import contextlib
import os
import random
import sys

import numpy
import torch
import torch.distributed as dist
from ending import report

torch.set_num_threads(1)
steps, flavours = int(sys.argv[1]), set(sys.argv[2:])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
assert dist.get_backend() == "gloo"
torch.manual_seed(1)
random.seed(1)
numpy.random.seed(1)
model = torch.nn.Sequential(
    torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 64), torch.nn.ReLU(),
    torch.nn.Linear(64, 4),
)  # fmt: skip
ddp = torch.nn.parallel.DistributedDataParallel(
    model, bucket_cap_mb=0.01, static_graph="static" in flavours, find_unused_parameters="unused" in flavours
)
if "compile" in flavours:
    ddp = torch.compile(ddp)
if "zero" in flavours:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-3)
else:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
torch.manual_seed(100 + rank)
losses = []
for step in range(steps):
    parts = 2 if "accumulate" in flavours else 1
    for part in range(parts):
        x, y = torch.randn(16, 32), torch.randint(0, 4, (16,))
        with ddp.no_sync() if part < parts - 1 else contextlib.nullcontext():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled="amp" in flavours):
                loss = torch.nn.functional.cross_entropy(ddp(x), y)
            loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
    losses.append(loss.item())
    if step % 7 == 0:
        total = torch.tensor([loss.item()])
        dist.all_reduce(total)
        losses.append(total.item())
if "zero" in flavours:
    optimizer.consolidate_state_dict(0)
    optimizer = None if rank else optimizer
report(model, optimizer, losses)
if os.environ.get("LINGER"):
    dist.barrier()
dist.destroy_process_group()
