"""Train a small MLP on made-up data: an ordinary PyTorch script that knows nothing of any scheduler.

At the end it prints ``loss-hash``, the SHA-256 of the bytes of every step's loss. Two runs with the same arguments, the
same PyTorch and the same number of threads print the same hash; one lost or repeated step changes it.
"""

import argparse
import hashlib
import json
import struct
import time
from pathlib import Path

import torch
from torch import nn


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small MLP on made-up data.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--out", help="write {hash, steps, seconds_training} to this JSON file")
    return parser.parse_args()


def main() -> None:
    args = parse_args()
    torch.manual_seed(args.seed)
    torch.use_deterministic_algorithms(True)
    teacher = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))
    model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    digest = hashlib.sha256()
    began = time.perf_counter()
    for step in range(1, args.steps + 1):
        inputs = torch.randn(args.batch, 128)
        with torch.no_grad():
            labels = teacher(inputs).argmax(dim=1)
        loss = nn.functional.cross_entropy(model(inputs), labels)
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
