"""Made-up models with the kernel counts and about the times of REEF's profiles, for where those are not at hand."""

from __future__ import annotations

from random import Random

from ...base.rng import stream
from ..padding.occupancy import KernelResources, registers_for
from ..padding.reef_models import ProfiledKernel, ProfiledModel

_SIZES = {
    "vgg19-imagenet": (71, 4824),
    "resnet152-imagenet": (207, 13233),
    "densenet201-imagenet": (207, 3743),
    "inceptionv3-imagenet": (146, 8273),
    "distilbert": (205, 5426),
}
"""Kernels and microseconds of vgg, resnet152, densenet, inception and bert on an MI50."""
SYNTHETIC_MODELS = tuple(_SIZES)


def synthetic_model(name: str, seed: int = 0) -> ProfiledModel:
    """A model drawn from a seed; equal on every machine. Raises KeyError for a name that is not in ``SYNTHETIC_MODELS``."""
    count, total_us = _SIZES[name]
    dice = stream(seed, "synthetic_model", name)
    weights = [dice.lognormvariate(0, 0.8) for _ in range(count)]
    unit = total_us / sum(weights)
    kernels = tuple(_drawn(at, max(round(weight * unit), 3), dice) for at, weight in enumerate(weights))
    return ProfiledModel(name, sum(kernel.total_us for kernel in kernels), kernels)


def _drawn(at: int, total_us: int, dice: Random) -> ProfiledKernel:
    threads = dice.choice((64, 128, 128, 256, 256, 256, 512))
    resident = 2048 // threads
    blocks = 4 + int(dice.random() ** 2 * 250)
    # A block on a full unit takes two to three times as long: about the median of the profiles.
    growth = 1 + dice.random()
    latency = tuple(round(total_us * (1 + growth * step / resident)) for step in range(resident))
    kind = dice.choice(("conv2d", "conv2d", "dense", "add_relu", "pool"))
    resources = KernelResources(vgprs=registers_for(resident, threads))
    return ProfiledKernel(f"{kind}-{at}", blocks, threads, resources, total_us, latency)
