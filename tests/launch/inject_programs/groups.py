"""Everything that is said between ranks: groups in two dimensions, messages, objects, every collective."""

import random
import sys

import numpy
import torch
import torch.distributed as dist
from ending import report

torch.set_num_threads(1)
steps = int(sys.argv[1])
backend = {"mixed": "cpu:gloo,cuda:gloo", "default": None}.get(sys.argv[-1], "gloo")
dist.init_process_group(backend)
rank, world = dist.get_rank(), dist.get_world_size()
half = world // 2
rows = [list(range(start, start + half)) for start in (0, half)]
columns = [[rank_, rank_ + half] for rank_ in range(half)]
mine = {}
for name, parts in (("row", rows), ("column", columns)):
    for part in parts:
        group = dist.new_group(part)
        if rank in part:
            mine[name] = group
sub, _ = dist.new_subgroups(half)
random.seed(1)
numpy.random.seed(1)
torch.manual_seed(rank)
model = torch.nn.Linear(64, 64)
total = torch.zeros(64, 64)
losses = []


def messages(step: int) -> None:
    """A ring of blocking ones, a batch, one that is posted long before it is met, and one from any source."""
    right, left = (rank + 1) % world, (rank - 1) % world
    out, into = torch.full((8,), float(rank + step)), torch.zeros(8)
    if rank % 2:
        dist.send(out, right)
        dist.recv(into, left)
    else:
        dist.recv(into, left)
        dist.send(out, right)
    losses.append(into.sum().item())
    many = [torch.zeros(1000), torch.zeros(1000)]
    work = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, torch.randn(1000), right, tag=3),
            dist.P2POp(dist.irecv, many[0], left, tag=3),
            dist.P2POp(dist.isend, torch.randn(1000), left, tag=4),
            dist.P2POp(dist.irecv, many[1], right, tag=4),
        ]
    )
    for part in work:
        part.wait()
    losses.append(sum(float(part.sum()) for part in many))


def unordered(step: int) -> None:
    """Tags met in another order than they were sent; a receive from anybody."""
    if rank == 0:
        works = [dist.isend(torch.full((4,), float(tag + step)), 1, tag=tag) for tag in (7, 8)]
        for work in works:
            work.wait()
        found = torch.zeros(1)
        sources = sorted(dist.recv(found, tag=9) for _ in range(world - 1))
        assert sources == list(range(1, world))
    else:
        if rank == 1:
            a, b = torch.zeros(4), torch.zeros(4)
            first = dist.irecv(b, 0, tag=8)
            dist.recv(a, 0, tag=7)
            first.wait()
            losses.append((a - b).sum().item())
        dist.send(torch.ones(1), 0, tag=9)


def collectives(step: int) -> None:
    """Each of them once, on the world and on parts of it."""
    row, column = mine["row"], mine["column"]
    x = torch.randn(half * 4)
    dist.all_reduce(x, group=row)
    dist.broadcast(x, columns[rank % half][0], group=column)
    parts = [torch.zeros(half * 4) for _ in range(half)]
    dist.all_gather(parts, x, group=row)
    whole = torch.zeros(half * half * 4)
    dist.all_gather_into_tensor(whole, x, group=row)
    piece = torch.zeros(4)
    dist.reduce_scatter_tensor(piece, x.clone(), group=row)
    dist.reduce_scatter(piece, [part[:4].contiguous() for part in parts], group=row)
    swapped = torch.zeros(half * 4)
    dist.all_to_all_single(swapped, x, group=row)
    dist.reduce(x, rows[rank // half][0], group=row)
    got = [torch.zeros(4) for _ in range(world)] if rank == 0 else None
    dist.gather(piece, got)
    dist.scatter(piece, got)
    dist.barrier()
    if step % 5 == 0:
        if backend == "gloo":
            dist.monitored_barrier()
        objects = [None] * world
        dist.all_gather_object(objects, {"rank": rank, "step": step})
        assert [found["rank"] for found in objects] == list(range(world))
        shared = [{"step": step} if rank == 0 else None]
        dist.broadcast_object_list(shared, 0)
        assert shared[0]["step"] == step
    works = [dist.all_reduce(torch.randn(100), group=group, async_op=True) for group in (row, column, sub, None)]
    for work in reversed(works):
        work.wait()
    losses.append((whole.sum() + piece.sum() + swapped.sum()).item())


pending = None
for step in range(steps):
    for _ in range(1 + rank % 2):
        y = model(torch.randn(8, 64))
        y.sum().backward()
    gradient = model.weight.grad
    dist.all_reduce(gradient, group=mine["column"])
    dist.all_reduce(gradient, group=mine["row"])
    with torch.no_grad():
        model.weight -= 1e-4 * gradient
    total += gradient
    model.zero_grad()
    messages(step)
    unordered(step)
    collectives(step)
    if step % 10 == 0:
        fresh = dist.new_group([0, 1])
        if rank < 2:
            dist.barrier(group=fresh)
            dist.destroy_process_group(fresh)
    if step % 10 == 3 and rank == 0:
        early = torch.zeros(16)
        pending = dist.irecv(early, 1, tag=20)
    if step % 10 == 8 and rank < 2:
        if rank == 0:
            pending.wait()
            losses.append(early.sum().item())
        else:
            dist.send(torch.randn(16), 0, tag=20)
    store = dist.distributed_c10d._get_default_store()
    if step % 7 == 0:
        store.add("visits", 1)
        if rank == 0:
            store.set(f"word/{step}", str(step))
        assert store.get(f"word/{step}") == str(step).encode()
model.register_buffer("total", total)
report(model, None, losses)
dist.barrier()
dist.destroy_process_group()
