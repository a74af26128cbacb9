"""A small GPT with FSDP2 (``fully_shard``) and bfloat16 autocast.

torchrun --nproc-per-node 2 fsdp2_gpt.py --steps 50
"""

import argparse
import os

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Gpt(nn.Module):
    def __init__(self, vocabulary=96, width=96, heads=4, layers=2, length=48):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args)
    dist.destroy_process_group()


def train(args):
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    rank, world = dist.get_rank(), dist.get_world_size()
    if kind == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))

    seed_all(args.seed)
    mesh = init_device_mesh(kind, (world,))
    model = Gpt().to(kind)
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=max(1, args.steps // 4))

    text = torch.randint(0, 96, (4096,), generator=torch.Generator().manual_seed(7))
    draw = torch.Generator().manual_seed(100 * args.seed + rank)
    digest = Digest(rank)
    for _ in range(args.steps):
        starts = torch.randint(0, len(text) - 49, (args.batch,), generator=draw).tolist()
        window = torch.stack([text[start : start + 49] for start in starts]).to(kind)
        with torch.autocast(kind, dtype=torch.bfloat16):
            logits = model(window[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        warm.step()
        digest.step(loss.item())

    digest.finish(model.state_dict(), optimizer.state_dict(), warm.get_last_lr(), draw.get_state())


if __name__ == "__main__":
    main()
