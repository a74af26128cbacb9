"""A plain PyTorch program that trains as it is told: lines of JSON come over a pipe, and each is answered with how long a
step took. It knows nothing of what it runs under. Between two orders it sleeps in the kernel.

    python steps.py DIRECTORY      (with ``order.RANK`` and ``answer.RANK``, both named pipes, in it)
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

SIZES = {"short": (64, 3), "long": (768, 4)}
"""Width and layers of the models: 12 thousand and 2.4 million parameters."""


def build(name: str, rows: int, together: bool) -> tuple[Any, Any, Any]:
    """Net, optimizer and batch; ``together``: gradients are averaged over the ranks."""
    width, layers = SIZES[name]
    torch.manual_seed(0)
    net: Any = nn.Sequential(*(part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())))
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    if together:
        net = nn.parallel.DistributedDataParallel(net)
    return net, optimizer, torch.randn(rows, width)


def train(net: Any, optimizer: Any, batch: Any, steps: int) -> list[float]:
    """Milliseconds of each step."""
    taken = []
    before = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        now = time.perf_counter()
        taken.append(1000 * (now - before))
        before = now
    return taken


def main() -> None:
    torch.set_num_threads(1)
    rank, together = os.environ["RANK"], int(os.environ["WORLD_SIZE"]) > 1
    if together:
        dist.init_process_group("gloo")
    with open(f"{sys.argv[1]}/order.{rank}") as orders, open(f"{sys.argv[1]}/answer.{rank}", "w") as answers:
        built: tuple[Any, ...] = ()
        for line in orders:
            order = json.loads(line)
            if order.get("anew", True):
                # Anew each time: where in memory a net happens to lie makes up to 10 % of difference, for as long as it lives.
                built = build(order["model"], order["rows"], together)
                train(*built, order["warm"])
            used = time.process_time()
            taken = train(*built, order["steps"])
            cpu = 1000 * (time.process_time() - used) / len(taken)
            found = {
                "mean": statistics.mean(taken),
                "median": statistics.median(taken),
                "least": min(taken),
                "cpu": cpu,
            }
            print(json.dumps(found), file=answers, flush=True)
    if together:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
