"""DistributedDataParallel over 25 million parameters, as a user writes it. One line per step. No end of its own."""

from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIZES = [1024, *[2048] * 6, 1024]
BATCH = 64

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [layer for a, b in pairwise(SIZES) for layer in (nn.Linear(a, b), nn.GELU())]
model = DistributedDataParallel(nn.Sequential(*layers[:-1]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(dist.get_rank())
step = 0
while True:
    inputs, wanted = torch.randn(BATCH, SIZES[0]), torch.randn(BATCH, SIZES[-1])
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(inputs), wanted)
    loss.backward()
    optimizer.step()
    step += 1
    print(step, loss.item(), flush=True)
