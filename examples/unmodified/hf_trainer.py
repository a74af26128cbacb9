"""Hugging Face Trainer on a GPT-2 of a few thousand parameters, made up on the spot; nothing is downloaded.

torchrun --nproc-per-node 2 hf_trainer.py --steps 40
"""

import argparse
import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from digest import Digest
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments, set_seed


class Sentences(Dataset):
    """Sequences that count upwards from a random start."""

    def __init__(self, seed):
        starts = torch.randint(0, 64, (1024, 1), generator=torch.Generator().manual_seed(seed))
        self.tokens = (starts + torch.arange(32)) % 64

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


class Reporter(TrainerCallback):
    """The Trainer logs on rank 0 only; every rank keeps its own digest."""

    def __init__(self, digest):
        self.digest, self.loss = digest, 0.0

    def on_step_end(self, args, state, control, **_):
        self.digest.step(self.loss)


class Keeping(Trainer):
    """Hands each step's loss to the reporter."""

    reporter: Reporter

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        self.reporter.loss = loss.item()
        return loss


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    set_seed(args.seed)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    with tempfile.TemporaryDirectory() as out:
        settings = TrainingArguments(
            output_dir=out,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch,
            learning_rate=1e-3,
            lr_scheduler_type="cosine",
            warmup_steps=5,
            max_grad_norm=1.0,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
            use_cpu=not torch.cuda.is_available(),
            seed=args.seed,
        )
        reporter = Reporter(Digest(settings.process_index))
        trainer = Keeping(model=model, args=settings, train_dataset=Sentences(args.seed), callbacks=[reporter])
        trainer.reporter = reporter
        trainer.train()
        reporter.digest.finish(model.state_dict(), trainer.optimizer.state_dict(), trainer.lr_scheduler.get_last_lr())


if __name__ == "__main__":
    main()
