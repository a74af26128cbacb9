"""A small transformer with FSDP2 over a DeviceMesh, bf16 autocast and DTensor's functional collectives."""

import random
import sys

import numpy
import torch
import torch.distributed as dist
from ending import report
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

torch.set_num_threads(1)
steps = int(sys.argv[1])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")) if "hsdp" in sys.argv else (
    init_device_mesh("cpu", (world,))
)  # fmt: skip
torch.manual_seed(1)
random.seed(1)
numpy.random.seed(1)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
for part in model.layers:
    fully_shard(part, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
flat = mesh if mesh.ndim == 1 else mesh["shard"]
torch.manual_seed(100 + rank)
losses = []
for _ in range(steps):
    x = torch.randn(4, 8, 32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled="amp" in sys.argv):
        loss = model(x).float().pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    whole = distribute_tensor(torch.full((8, 4), loss.item()), flat, [Shard(0)])
    losses += [loss.item(), whole.full_tensor().sum().item()]
report(model, optimizer, losses)
dist.barrier()
dist.destroy_process_group()
