"""An MLP with DistributedDataParallel, AdamW, a learning-rate schedule and gradient clipping.

torchrun --nproc-per-node 2 ddp_mlp.py --steps 100
"""

import argparse
import os

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args)
    dist.destroy_process_group()


def train(args):
    cuda = torch.cuda.is_available()
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")

    seed_all(args.seed)
    model = nn.Sequential(
        nn.Linear(128, args.width),
        nn.GELU(),
        nn.Dropout(0.1),
        nn.Linear(args.width, args.width),
        nn.GELU(),
        nn.Linear(args.width, 10),
    ).to(device)
    teacher = nn.Linear(128, 10).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.steps)

    seed_all(1000 * args.seed + rank)
    digest = Digest(rank)
    for _ in range(args.steps):
        inputs = torch.randn(args.batch, 128, device=device)
        with torch.no_grad():
            labels = teacher(inputs).argmax(1)
        loss = nn.functional.cross_entropy(ddp(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        digest.step(loss.item())

    digest.finish(ddp.state_dict(), optimizer.state_dict(), schedule.state_dict())


if __name__ == "__main__":
    main()
