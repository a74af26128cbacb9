"""Lightning Fabric: the loop is ours, devices and strategy are Fabric's.

torchrun --nproc-per-node 2 fabric_fit.py --steps 60
torchrun --nnodes 2 --nproc-per-node 1 ... fabric_fit.py --steps 60
"""

import argparse
import os

import torch
from digest import Digest
from lightning.fabric import Fabric, seed_everything
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    world = int(os.environ.get("WORLD_SIZE", "1"))
    fabric = Fabric(
        accelerator="cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", world)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        strategy="ddp" if world > 1 else "auto",
    )
    fabric.launch()
    train(args, fabric)
    if world > 1:
        torch.distributed.destroy_process_group()


def train(args, fabric):
    seed_everything(args.seed, verbose=False)
    net = nn.Sequential(
        nn.Linear(64, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    model, optimizer = fabric.setup(net, optimizer)
    x = torch.randn(2048, 64, generator=torch.Generator().manual_seed(3))
    loader = fabric.setup_dataloaders(
        DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=args.batch, shuffle=True, drop_last=True)
    )

    seed_everything(1000 * args.seed + fabric.global_rank, verbose=False)
    digest = Digest(fabric.global_rank)
    epoch = 0
    while digest.steps < args.steps:
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for inputs, labels in loader:
            if digest.steps == args.steps:
                break
            loss = nn.functional.cross_entropy(model(inputs), labels)
            optimizer.zero_grad()
            fabric.backward(loss)
            fabric.clip_gradients(model, optimizer, max_norm=1.0)
            optimizer.step()
            fabric.all_reduce(loss.detach(), reduce_op="mean")
            digest.step(loss.item())
        epoch += 1

    digest.finish(net.state_dict(), optimizer.state_dict())


if __name__ == "__main__":
    main()
