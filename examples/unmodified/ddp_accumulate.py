"""Gradient accumulation: four backward passes for one optimizer step, three of them without communication.

torchrun --nproc-per-node 2 ddp_accumulate.py --steps 50 --find-unused
"""

import argparse
import contextlib

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class TwoHeads(nn.Module):
    """Only one head takes part in a pass."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.heads = nn.ModuleList(nn.Linear(256, 1) for _ in range(2))

    def forward(self, x, head):
        return self.heads[head](self.body(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--accumulate", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    graph = parser.add_mutually_exclusive_group()
    graph.add_argument("--find-unused", action="store_true", help="the heads take turns")
    graph.add_argument("--static-graph", action="store_true")
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


def train(args):
    rank = dist.get_rank()
    seed_all(args.seed)
    net = TwoHeads()
    if not args.find_unused:
        net.heads[1].requires_grad_(False)
    ddp = DistributedDataParallel(net, find_unused_parameters=args.find_unused, static_graph=args.static_graph)
    optimizer = torch.optim.AdamW([each for each in net.parameters() if each.requires_grad], lr=1e-3)

    draw = torch.Generator().manual_seed(1000 * args.seed + rank)
    digest = Digest(rank)
    for step in range(args.steps):
        head = step % 2 if args.find_unused else 0
        total = 0.0
        optimizer.zero_grad()
        for part in range(args.accumulate):
            last = part == args.accumulate - 1 or args.static_graph  # which no_sync does not go with
            x = torch.randn(args.batch, 64, generator=draw)
            y = x.sum(1, keepdim=True).sin()
            with contextlib.nullcontext() if last else ddp.no_sync():
                loss = nn.functional.mse_loss(ddp(x, head), y) / args.accumulate
                loss.backward()
            total += loss.item()
        nn.utils.clip_grad_norm_(ddp.parameters(), 1.0)
        optimizer.step()
        digest.step(total)

    digest.finish(ddp.state_dict(), optimizer.state_dict(), draw.get_state())


if __name__ == "__main__":
    main()
