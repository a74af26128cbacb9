"""Train an MLP that saves itself when asked to leave: SIGTERM, checkpoint, exit 75 ("requeue me"), resume.

The loss history is part of the checkpoint, so an interrupted run prints the same ``loss-hash`` as an uninterrupted one.
"""

import argparse
import hashlib
import json
import os
import signal
import struct
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any


class Notice:
    """Remembers that SIGTERM came; the training loop looks between two steps."""

    def __init__(self) -> None:
        self.given = False
        signal.signal(signal.SIGTERM, self.give)

    def give(self, _signal: int, _frame: FrameType | None) -> None:
        self.given = True


# Before the import below, which takes a second: a SIGTERM in that second would otherwise kill the program.
NOTICE = Notice()

import torch  # noqa: E402
from torch import nn  # noqa: E402

REQUEUE_ME = 75
"""EX_TEMPFAIL of sysexits.h: the scheduler starts the job again later."""


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train an MLP that checkpoints on SIGTERM and resumes.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--checkpoint", default="cooperative.pt", help="removed when training is complete")
    parser.add_argument("--out", help="write {hash, steps, seconds_training} to this JSON file")
    return parser.parse_args()


class Training:
    """Everything that must come back after an interruption."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.seed = seed
        self.teacher = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 10))
        self.model = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.losses: list[float] = []
        self.seconds = 0.0

    def step(self, batch: int) -> None:
        began = time.perf_counter()
        inputs = torch.randn(batch, 128)
        with torch.no_grad():
            labels = self.teacher(inputs).argmax(dim=1)
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.losses.append(loss.item())
        self.seconds += time.perf_counter() - began

    def save(self, path: Path) -> None:
        """Written beside, flushed, then renamed: a half-written checkpoint never replaces a whole one."""
        state = {
            "seed": self.seed, "teacher": self.teacher.state_dict(), "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(), "rng": torch.get_rng_state(),
            "losses": torch.tensor(self.losses, dtype=torch.float64), "seconds": self.seconds,
        }  # fmt: skip
        beside = path.with_name(path.name + ".part")
        with beside.open("wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)

    def load(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, weights_only=True)
        if state["seed"] != self.seed:
            sys.exit(f"{path} is of a run with --seed {state['seed']}; remove it or choose another --checkpoint")
        self.teacher.load_state_dict(state["teacher"])
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["rng"])
        self.losses = state["losses"].tolist()
        self.seconds = state["seconds"]

    def digest(self) -> str:
        return hashlib.sha256(struct.pack(f"<{len(self.losses)}f", *self.losses)).hexdigest()


def main() -> None:
    args = parse_args()
    torch.use_deterministic_algorithms(True)
    checkpoint = Path(args.checkpoint)
    training = Training(args.seed)
    if checkpoint.exists():
        training.load(checkpoint)
        print(f"resumed at step {len(training.losses)}", flush=True)
    while (done := len(training.losses)) < args.steps:
        if NOTICE.given:
            training.save(checkpoint)
            print(f"saved at step {done}, asking to be requeued", flush=True)
            sys.exit(REQUEUE_ME)
        training.step(args.batch)
        if (done + 1) % 50 == 0 or done + 1 == args.steps:
            print(f"step {done + 1}/{args.steps} loss {training.losses[-1]:.4f}", flush=True)
    print(f"loss-hash {training.digest()}", flush=True)
    if args.out:
        result = {"hash": training.digest(), "steps": args.steps, "seconds_training": round(training.seconds, 3)}
        Path(args.out).write_text(json.dumps(result))
    checkpoint.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
