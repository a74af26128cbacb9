"""Optimizer state sharded over the ranks by ZeroRedundancyOptimizer.

torchrun --nproc-per-node 2 zero_optim.py --steps 60
"""

import argparse

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


def train(args):
    rank = dist.get_rank()
    seed_all(args.seed)
    net = DistributedDataParallel(
        nn.Sequential(*[layer for _ in range(4) for layer in (nn.Linear(192, 192), nn.SiLU())], nn.Linear(192, 8))
    )
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optimizer_class=torch.optim.AdamW, lr=1e-3)

    seed_all(1000 * args.seed + rank)
    digest = Digest(rank)
    for _ in range(args.steps):
        x = torch.randn(args.batch, 192)
        loss = nn.functional.cross_entropy(net(x), x[:, :8].argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.step(loss.item())

    own = optimizer.optim.state_dict()
    optimizer.consolidate_state_dict(to=0)
    digest.finish(net.state_dict(), own, optimizer.state_dict() if rank == 0 else None)


if __name__ == "__main__":
    main()
