"""A small convolutional network with SyncBatchNorm-free DDP: buffers are broadcast, gradients all-reduced.

torchrun --nproc-per-node 2 ddp_cnn.py --steps 50
"""

import argparse
import os

import torch
import torch.distributed as dist
from digest import Digest, seed_all
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(512, 10))

    def forward(self, images):
        return self.head(self.features(images))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    train(args)
    dist.destroy_process_group()


def train(args):
    cuda = torch.cuda.is_available()
    rank = dist.get_rank()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0))) if cuda else torch.device("cpu")

    seed_all(args.seed)
    net = DistributedDataParallel(Net().to(device), device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=args.steps)

    seed_all(1000 * args.seed + rank)
    digest = Digest(rank)
    for _ in range(args.steps):
        labels = torch.randint(0, 10, (args.batch,), device=device)
        images = torch.randn(args.batch, 3, 24, 24, device=device) + labels.view(-1, 1, 1, 1) / 10
        loss = nn.functional.cross_entropy(net(images), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 2.0)
        optimizer.step()
        schedule.step()
        digest.step(loss.item())

    digest.finish(net.module.state_dict(), optimizer.state_dict(), schedule.get_last_lr())


if __name__ == "__main__":
    main()
