"""Two-dimensional parallelism by hand: pipeline stages that send and receive, and data-parallel groups within a stage.

Four ranks are two stages times two replicas, two ranks are two stages, one rank does it all.

    torchrun --nproc-per-node 4 mesh_2d.py --steps 40
"""

import argparse

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn


class Grid:
    """Rank = stage * replicas + replica."""

    def __init__(self):
        self.rank, world = dist.get_rank(), dist.get_world_size()
        self.stages = 2 if world % 2 == 0 else 1
        self.replicas = world // self.stages
        self.stage, self.replica = divmod(self.rank, self.replicas)
        # Every rank makes every group, in one order; new_group is collective over the world.
        rows = [dist.new_group([s * self.replicas + r for r in range(self.replicas)]) for s in range(self.stages)]
        columns = [dist.new_group([s * self.replicas + r for s in range(self.stages)]) for r in range(self.replicas)]
        self.row, self.column = rows[self.stage], columns[self.replica]

    def peer(self, stage):
        return stage * self.replicas + self.replica


def exchange(grid, outgoing, incoming):
    """Send to the other stage what it needs and take from it what we need, in one batch."""
    other = grid.peer(1 - grid.stage)
    todo = []
    if outgoing is not None:
        todo.append(dist.P2POp(dist.isend, outgoing.contiguous(), other))
    if incoming is not None:
        todo.append(dist.P2POp(dist.irecv, incoming, other))
    for work in dist.batch_isend_irecv(todo):
        work.wait()


def first_half(grid, front, x):
    """Stage 0 of a pipeline: forward, send, receive the gradient, backward. Returns the loss that stage 1 reports."""
    hidden = front(x)
    dist.send(hidden.detach(), grid.peer(1))
    gradient = torch.empty_like(hidden)
    exchange(grid, None, gradient)
    hidden.backward(gradient)
    loss = torch.empty(1)
    dist.recv(loss, grid.peer(1), tag=3)
    return loss


def second_half(grid, back, batch, width, y):
    """Stage 1: receive, forward, loss, backward, send the gradient back."""
    hidden = torch.empty(batch, width)
    dist.recv(hidden, grid.peer(0))
    hidden.requires_grad_(True)
    loss = nn.functional.mse_loss(back(hidden), y)
    loss.backward()
    exchange(grid, hidden.grad, None)
    dist.send(loss.detach().reshape(1), grid.peer(0), tag=3)
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.use_deterministic_algorithms(True)
    dist.init_process_group("gloo")
    train(args)
    dist.destroy_process_group()


def train(args):
    grid = Grid()
    settings = [vars(args) if grid.rank == 0 else None]
    dist.broadcast_object_list(settings)
    assert settings[0] == vars(args), "the ranks were started with different arguments"

    seed_all(args.seed)
    front = nn.Sequential(nn.Linear(64, args.width), nn.GELU(), nn.Linear(args.width, args.width), nn.GELU())
    back = nn.Sequential(nn.Linear(args.width, args.width), nn.GELU(), nn.Linear(args.width, 1))
    mine = nn.Sequential(front, back) if grid.stages == 1 else (front, back)[grid.stage]
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-3)

    # Both stages of a replica draw the same data.
    draw = torch.Generator().manual_seed(1000 * args.seed + grid.replica)
    digest = Digest(grid.rank)
    for step in range(args.steps):
        x = torch.randn(args.batch, 64, generator=draw)
        y = x.prod(1, keepdim=True).sign() + x.mean(1, keepdim=True)
        optimizer.zero_grad()
        if grid.stages == 1:
            loss = nn.functional.mse_loss(mine(x), y)
            loss.backward()
        elif grid.stage == 0:
            loss = first_half(grid, front, x)
        else:
            loss = second_half(grid, back, args.batch, args.width, y)
        for each in mine.parameters():
            dist.all_reduce(each.grad, group=grid.row)
            each.grad /= grid.replicas
        optimizer.step()
        shown = [torch.empty(1) for _ in range(grid.stages)]
        dist.all_gather(shown, loss.detach().reshape(1), group=grid.column)
        if step % 10 == 9:
            dist.barrier()
        digest.step(shown[0].item())

    digest.finish(mine.state_dict(), optimizer.state_dict(), draw.get_state())


if __name__ == "__main__":
    main()
