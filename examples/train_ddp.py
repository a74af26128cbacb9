"""Train an MLP with DistributedDataParallel over gloo, as torchrun would start it.

It reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Without them it trains alone. Rank 0 prints ``loss-hash`` over
the mean loss of all ranks; see train_mlp.py for what it means.
"""

import argparse
import hashlib
import json
import os
import struct
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train an MLP on several ranks.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512, help="per rank")
    parser.add_argument("--out", help="rank 0 writes {hash, steps, seconds_training, world_size} to this JSON file")
    return parser.parse_args()


def join() -> tuple[int, int]:
    """This process's rank and the world size."""
    if "RANK" not in os.environ:
        return 0, 1
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()


def mean_over_ranks(loss: torch.Tensor, world: int) -> float:
    total = loss.detach().clone()
    if world > 1:
        dist.all_reduce(total)
    return total.item() / world


def train(args: argparse.Namespace, rank: int, world: int) -> str:
    """Hex digest over the mean loss of every step."""
    torch.manual_seed(args.seed)
    teacher = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))
    model: nn.Module = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    if world > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    torch.manual_seed(args.seed * 1000 + rank)
    digest = hashlib.sha256()
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch, 128)
        with torch.no_grad():
            labels = teacher(inputs).argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = mean_over_ranks(loss, world)
        digest.update(struct.pack("<d", shown))
        if rank == 0 and (step % 50 == 0 or step == args.steps):
            print(f"step {step}/{args.steps} loss {shown:.4f} on {world} ranks", flush=True)
    return digest.hexdigest()


def main() -> None:
    args = parse_args()
    torch.use_deterministic_algorithms(True)
    rank, world = join()
    began = time.perf_counter()
    digest = train(args, rank, world)
    seconds = time.perf_counter() - began
    if rank == 0:
        print(f"loss-hash {digest}", flush=True)
        if args.out:
            result = {"hash": digest, "steps": args.steps, "seconds_training": round(seconds, 3), "world_size": world}
            Path(args.out).write_text(json.dumps(result))
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
