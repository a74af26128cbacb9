"""A model for tests on a real GPU."""

from __future__ import annotations

from typing import Any


def layers(count: int) -> Any:
    """``count`` linear layers of 512, with the same weights each time."""
    import torch

    torch.manual_seed(0)
    pairs = [torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.ReLU()) for _ in range(count)]
    return torch.nn.Sequential(*pairs).eval()
