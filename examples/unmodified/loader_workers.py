"""A DataLoader with two worker processes that draw random numbers of their own: persistent, or new in every epoch.

python loader_workers.py --steps 60            or            torchrun --nproc-per-node 2 loader_workers.py
"""

import argparse
import os
import random

import numpy as np
import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class Noisy(Dataset):
    """Samples with augmentation: the same item is different in every epoch."""

    def __len__(self):
        return 512

    def __getitem__(self, index):
        x = torch.linspace(0, 1, 64) * (index % 7) + torch.randn(64) * 0.1
        x += float(np.random.standard_normal()) * 0.01 + random.random() * 0.01
        return x, index % 7


def seed_worker(_):
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed)
    random.seed(seed)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--new-workers", action="store_true", help="start the workers anew in every epoch")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world > 1:
        dist.init_process_group("gloo")
    train(args, int(os.environ.get("RANK", "0")), world)
    if world > 1:
        dist.destroy_process_group()


def train(args, rank, world):
    seed_all(args.seed)
    net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 7))
    data, sampler = Noisy(), None
    if world > 1:
        net = DistributedDataParallel(net)
        sampler = DistributedSampler(data, seed=args.seed)
    draw = torch.Generator().manual_seed(1000 * args.seed + rank)
    loader = DataLoader(
        data,
        batch_size=args.batch,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=args.workers,
        persistent_workers=args.workers > 0 and not args.new_workers,
        worker_init_fn=seed_worker,
        generator=draw,
        drop_last=True,
    )
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)

    digest = Digest(rank)
    epoch = 0
    while digest.steps < args.steps:
        if sampler:
            sampler.set_epoch(epoch)
        for x, y in loader:
            if digest.steps == args.steps:
                break
            loss = nn.functional.cross_entropy(net(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            digest.step(loss.item())
        epoch += 1

    digest.finish(net.state_dict(), optimizer.state_dict(), draw.get_state(), epoch)


if __name__ == "__main__":
    main()
