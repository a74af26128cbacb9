"""What a runtime loads for the five networks of DISB (``architectures``), and their inputs."""

from __future__ import annotations

from ...base.errors import UsageError
from ..transport.messages import ModelSource
from ..transport.tensors import TensorSpec
from . import architectures
from .architectures import TORCHVISION

IMAGE = (TensorSpec("float32", (1, 3, 224, 224)),)
SMALL_IMAGE = (TensorSpec("float32", (1, 3, 64, 64)),)
TOKENS = (TensorSpec("int64", (1, 64)),)
SMALL_TOKENS = (TensorSpec("int64", (1, 32)),)


def source(name: str, small: bool) -> tuple[ModelSource, tuple[TensorSpec, ...]]:
    """What to load for a DISB model, and its inputs. Raises UsageError for a name that DISB has not."""
    language = name.startswith("distilbert")
    if not language and name not in TORCHVISION:
        raise UsageError(f"no DISB network {name!r}", f"there are {', '.join([*TORCHVISION, 'distilbert'])}")
    factory = f"{architectures.__name__}:{'small' if small else 'full'}"
    images = SMALL_IMAGE if small else (TensorSpec("float32", (1, 3, 299, 299)),) if "inception" in name else IMAGE
    inputs = (SMALL_TOKENS if small else TOKENS) if language else images
    return ModelSource(factory, {"name": name}), inputs
