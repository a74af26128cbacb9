"""The five models of DISB: random weights, half precision, batch 1."""

from __future__ import annotations

from typing import Any

NAMES = ("vgg19", "resnet152", "densenet201", "inception_v3", "distilbert")
TOKENS = 128


def build(name: str) -> tuple[Any, tuple[Any, ...]]:
    """The model on the CPU, ready for inference, and its inputs."""
    import torch

    if name == "distilbert":
        return _distilbert(), (torch.zeros(1, TOKENS, dtype=torch.long),)
    import torchvision

    options: dict[str, Any] = {"init_weights": False} if name == "inception_v3" else {}
    model = getattr(torchvision.models, name)(weights=None, **options)
    side = 299 if name == "inception_v3" else 224
    return model.half().eval(), (torch.zeros(1, 3, side, side, dtype=torch.half),)


def _distilbert() -> Any:
    """Attention written out, so that Inductor sees products and a softmax instead of a library's kernel."""
    from transformers import DistilBertConfig, DistilBertModel

    return DistilBertModel(DistilBertConfig(attn_implementation="eager")).half().eval()
