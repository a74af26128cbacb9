"""Hugging Face Accelerate with gradient accumulation.

accelerate launch --multi_gpu --num_processes 2 accelerate_fit.py --steps 40
"""

import argparse

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from digest import Digest
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available(), gradient_accumulation_steps=2)
    train(args, accelerator)
    accelerator.end_training()


def train(args, accelerator):
    set_seed(args.seed)
    net = nn.Sequential(
        nn.Linear(48, 256), nn.ReLU(), nn.Dropout(0.1), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6)
    )
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=10, gamma=0.9)
    x = torch.randn(2048, 48, generator=torch.Generator().manual_seed(5))
    loader = DataLoader(TensorDataset(x, x[:, :6].argmax(1)), batch_size=args.batch, shuffle=True, drop_last=True)
    net, optimizer, loader, schedule = accelerator.prepare(net, optimizer, loader, schedule)

    digest = Digest(accelerator.process_index)
    while digest.steps < args.steps:
        for inputs, labels in loader:
            if digest.steps == args.steps:
                break
            with accelerator.accumulate(net):
                loss = nn.functional.cross_entropy(net(inputs), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            digest.step(accelerator.gather(loss.detach()).mean().item())

    digest.finish(accelerator.unwrap_model(net).state_dict(), optimizer.state_dict(), schedule.get_last_lr())


if __name__ == "__main__":
    main()
