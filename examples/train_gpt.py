"""Train a tiny character transformer on its own source text; see train_mlp.py for what ``loss-hash`` means."""

import argparse
import hashlib
import json
import struct
import time
from pathlib import Path

import torch
from torch import nn

CONTEXT = 64
WIDTH = 64
HEADS = 4
LAYERS = 2


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a tiny character transformer.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--out", help="write {hash, steps, seconds_training} to this JSON file")
    return parser.parse_args()


class Block(nn.Module):
    """Causal self-attention, then a feed-forward layer, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.mix = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self.mix(self.norm_attention(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(heads[0], heads[1], heads[2], is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.feed(self.norm_feed(x))


class TinyGpt(nn.Module):
    """Token and position embeddings, ``LAYERS`` blocks, a linear head."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.position = nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.token(tokens) + self.position))


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    text = Path(__file__).read_text()
    letters = sorted(set(text))
    corpus = torch.tensor([letters.index(letter) for letter in text])
    model = TinyGpt(len(letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    digest = hashlib.sha256()
    began = time.perf_counter()
    for step in range(1, args.steps + 1):
        starts = torch.randint(0, len(corpus) - CONTEXT - 1, (args.batch, 1))
        window = corpus[starts + torch.arange(CONTEXT + 1)]
        loss = nn.functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.update(struct.pack("<f", loss.item()))
        if step % 50 == 0 or step == args.steps:
            print(f"step {step}/{args.steps} loss {loss.item():.4f}", flush=True)
    seconds = time.perf_counter() - began
    print(f"loss-hash {digest.hexdigest()}", flush=True)
    if args.out:
        result = {"hash": digest.hexdigest(), "steps": args.steps, "seconds_training": round(seconds, 3)}
        Path(args.out).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
