"""torch.compile, alone or under DDP. Needs a C++ compiler.

python compile_mlp.py --steps 100            or            torchrun --nproc-per-node 2 compile_mlp.py
"""

import argparse
import os
import shutil
import sys

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if not any(shutil.which(name) for name in (os.environ.get("CXX", "g++"), "g++", "clang++")):
        sys.exit("torch.compile needs a C++ compiler; there is no g++ here")

    torch.use_deterministic_algorithms(True)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    train(args, int(os.environ.get("RANK", "0")), world)
    if world > 1:
        dist.destroy_process_group()


def train(args, rank, world):
    seed_all(args.seed)
    net = nn.Sequential(
        nn.Linear(96, 320), nn.GELU(), nn.LayerNorm(320), nn.Linear(320, 320), nn.GELU(), nn.Linear(320, 5)
    )
    if world > 1:
        net = DistributedDataParallel(net)
    compiled = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)

    seed_all(1000 * args.seed + rank)
    digest = Digest(rank)
    for _ in range(args.steps):
        x = torch.randn(args.batch, 96)
        loss = nn.functional.cross_entropy(compiled(x), x[:, :5].abs().argmax(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.step(loss.item())

    digest.finish(net.state_dict(), optimizer.state_dict())


if __name__ == "__main__":
    main()
