"""Training that writes a CSV file line by line and TensorBoard events from the writer's background thread.

python logs_csv_tb.py --steps 100 --out runs/a
"""

import argparse
import csv
from pathlib import Path

import torch
from digest import Digest, seed_all
from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
from torch import nn
from torch.utils.tensorboard import SummaryWriter


def written(directory):
    """Every scalar that the event files hold, in order: (tag, step, value)."""
    found = []
    for path in sorted(directory.glob("events.*")):
        for event in LegacyEventFileLoader(str(path)).Load():
            found += [(value.tag, event.step, value.simple_value) for value in event.summary.value]
    return found


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, default=Path("runs"))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    torch.use_deterministic_algorithms(True)
    net = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    args.out.mkdir(parents=True, exist_ok=True)
    digest = Digest()
    with open(args.out / "metrics.csv", "w", newline="") as file, SummaryWriter(str(args.out), flush_secs=1) as board:
        rows = csv.writer(file)
        rows.writerow(["step", "loss", "norm"])
        for step in range(args.steps):
            x = torch.randn(192, 64)
            loss = nn.functional.mse_loss(net(x), x.norm(dim=1, keepdim=True))
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            optimizer.step()
            rows.writerow([step, loss.item().hex(), norm.item().hex()])
            if step % 7 == 0:
                file.flush()
            board.add_scalar("loss", loss.item(), step)
            board.add_scalar("norm", norm.item(), step)
            digest.step(loss.item())

    table = (args.out / "metrics.csv").read_text()
    events = written(args.out)
    print(f"{len(table.splitlines())} lines of CSV, {len(events)} TensorBoard values", flush=True)
    digest.finish(net.state_dict(), optimizer.state_dict(), table, events)


if __name__ == "__main__":
    main()
