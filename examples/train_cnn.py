"""Train a small convolutional network on made-up 32x32 images; see train_mlp.py for what ``loss-hash`` means."""

import argparse
import hashlib
import json
import struct
import time
from pathlib import Path

import torch
from torch import nn


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small CNN on made-up images.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--out", help="write {hash, steps, seconds_training} to this JSON file")
    return parser.parse_args()


class SmallCnn(nn.Module):
    """Two blocks of convolution, normalisation and pooling, and a linear head for ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(self.block(3, 16), self.block(16, 32))
        self.head = nn.Linear(32 * 8 * 8, 10)

    @staticmethod
    def block(inputs: int, outputs: int) -> nn.Module:
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU(), nn.MaxPool2d(2))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images).flatten(1))


def make_batch(prototypes: torch.Tensor, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Noisy copies of ten prototype images."""
    labels = torch.randint(0, 10, (batch,))
    return prototypes[labels] + 4.0 * torch.randn(batch, 3, 32, 32), labels


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    prototypes = torch.randn(10, 3, 32, 32)
    model = SmallCnn()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, weight_decay=5e-4)
    digest = hashlib.sha256()
    began = time.perf_counter()
    for step in range(1, args.steps + 1):
        images, labels = make_batch(prototypes, args.batch)
        loss = nn.functional.cross_entropy(model(images), labels)
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
