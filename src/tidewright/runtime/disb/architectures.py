"""The five networks of DISB with random weights: as torchvision and transformers have them, or small ones for CPU cores.

Only latency matters here, never what they compute. The small ones keep the order of the large ones' costs. Needs PyTorch and the
standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import UsageError

TORCHVISION = {
    "vgg19-imagenet": "vgg19", "resnet152-imagenet": "resnet152", "densenet201-imagenet": "densenet201",
    "inceptionv3-imagenet": "inception_v3",
}  # fmt: skip


def full(name: str) -> Any:
    """The network itself; needs torchvision, or transformers."""
    import torch

    torch.manual_seed(1)
    if name in TORCHVISION:
        try:
            import torchvision.models
        except ImportError:
            raise UsageError(
                "torchvision is not installed", "pip install torchvision, or take the small networks"
            ) from None
        extra = {"init_weights": True, "aux_logits": False} if "inception" in name else {}
        return getattr(torchvision.models, TORCHVISION[name])(weights=None, **extra)
    try:
        import transformers
    except ImportError:
        raise UsageError(
            "transformers is not installed", "pip install transformers, or take the small networks"
        ) from None
    auto: Any = transformers.AutoModel
    return auto.from_config(transformers.DistilBertConfig(), attn_implementation="eager")


def small(name: str) -> Any:
    """A network of the same kind, of some hundred microseconds to a few milliseconds on a core."""
    import torch

    torch.manual_seed(1)
    makers: dict[str, Callable[[Any], Any]] = {
        "vgg19": _vgg, "resnet152": _residual, "densenet201": _dense, "inceptionv3": _inception, "distilbert": _attention,
    }  # fmt: skip
    return makers[name.split("-")[0]](torch.nn)


def _vgg(nn: Any) -> Any:
    parts, channels = [], 3
    for width in (16, 32, 64, 64):
        parts += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(64 * 16, 512), nn.ReLU(), nn.Linear(512, 100))


def _residual(nn: Any) -> Any:
    blocks = [_added(nn, nn.Sequential(_conv(nn, 16, 16), _conv(nn, 16, 16))) for _ in range(12)]
    return nn.Sequential(_conv(nn, 3, 16), nn.MaxPool2d(2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _dense(nn: Any) -> Any:
    layers = [_joined(nn, [nn.Identity(), _conv(nn, 16 + 8 * at, 8)]) for at in range(12)]
    return nn.Sequential(_conv(nn, 3, 16), nn.MaxPool2d(4), *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _inception(nn: Any) -> Any:
    def block(channels: int) -> Any:
        return _joined(nn, [_conv(nn, channels, 8, 1), _conv(nn, channels, 8, 3), _conv(nn, channels, 8, 5)])

    blocks = [block(24) for _ in range(5)]
    return nn.Sequential(_conv(nn, 3, 24), nn.MaxPool2d(2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _attention(nn: Any) -> Any:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.Sequential(nn.Embedding(1000, 64), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))


def _conv(nn: Any, channels: int, width: int, size: int = 3) -> Any:
    return nn.Sequential(nn.Conv2d(channels, width, size, padding=size // 2), nn.BatchNorm2d(width), nn.ReLU())


def _added(nn: Any, inner: Any) -> Any:
    class Added(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = inner

        def forward(self, x: Any) -> Any:
            return x + self.inner(x)

    return Added()


def _joined(nn: Any, parts: list[Any]) -> Any:
    import torch

    class Joined(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.parts = nn.ModuleList(parts)

        def forward(self, x: Any) -> Any:
            return torch.cat([part(x) for part in self.parts], 1)

    return Joined()
