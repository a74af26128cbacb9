"""PEFT: LoRA adapters on a GPT-2 of a few thousand parameters, saved as they are after every tenth step.

python peft_lora.py --steps 100
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from digest import Digest, seed_all
from peft import LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    seed_all(args.seed)
    config = GPT2Config(vocab_size=64, n_positions=32, n_embd=64, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    adapters = LoraConfig(r=4, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    model = get_peft_model(GPT2LMHeadModel(config), adapters)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    digest = Digest()
    for step in range(args.steps):
        tokens = (torch.randint(0, 64, (8, 1)) + torch.arange(32)) % 64
        loss = model(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        digest.step(loss.item())
        if step % 10 == 9:
            model.save_pretrained("adapters")
    digest.finish(get_peft_model_state_dict(model), optimizer.state_dict())


if __name__ == "__main__":
    main()
