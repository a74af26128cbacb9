"""Models as REEF's repository describes them: kernels in launch order with their latency at each occupancy.

Two files a model (SJTU-IPADS/reef, Apache-2.0): NAME.json, the graph, and NAME.profile.json, microseconds on an MI50 of 60
compute units. The compiled kernels, and with them register counts, are not published; those are inferred from the length of
the profile.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from ...base.errors import UsageError
from .occupancy import KernelResources, registers_for

REEF_UNITS = 60
"""Compute units of an MI50."""
DISB_TO_REEF = {
    "vgg19-imagenet": "vgg",
    "resnet152-imagenet": "resnet152",
    "densenet201-imagenet": "densenet",
    "inceptionv3-imagenet": "inception",
    "distilbert": "bert",
}
"""Models of DISB's workloads and the nearest profile of REEF's (bert is larger than DistilBERT)."""


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """One kernel of a graph. Latencies in microseconds; ``latency_us[j]`` with j + 1 resident blocks on each compute unit."""

    name: str
    blocks: int
    threads: int
    resources: KernelResources
    total_us: int
    latency_us: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """A model: its latency in microseconds, and its kernels in launch order."""

    name: str
    latency_us: int
    kernels: tuple[ProfiledKernel, ...]

    @property
    def launch_overhead_us(self) -> float:
        """What a kernel's own latency holds beyond its share of the model's: profiles launch kernels one by one and wait."""
        return max(sum(kernel.total_us for kernel in self.kernels) - self.latency_us, 0) / len(self.kernels)


def load_reef_model(folder: Path, name: str) -> ProfiledModel:
    """The model ``name`` of a folder of profiles. Raises UsageError when a file is missing or not of this form."""
    try:
        graph = json.loads((folder / f"{name}.json").read_text())
        profile = json.loads((folder / f"{name}.profile.json").read_text())
        kernels = tuple(
            _kernel(entry, profile["kernel_latency"][entry["name"]], graph["shared_memory"])
            for entry in graph["kernels"]
        )
        return ProfiledModel(name, profile["model_latency"], kernels)
    except OSError as error:
        raise UsageError(
            f"no profile of {name} in {folder}: {error.strerror}", "name a folder of REEF's profiles"
        ) from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"the profile of {name} in {folder} cannot be read: {error!r}", "fetch it again") from error


def _kernel(entry: dict[str, Any], profile: dict[str, Any], shared: dict[str, int]) -> ProfiledKernel:
    blocks, threads = prod(entry["launch_params"][:3]), prod(entry["launch_params"][3:])
    latency = tuple(profile["latency"])
    # 4 bytes stand for none: TVM's launch wants a size above zero.
    lds = shared.get(entry["name"], 0)
    resources = KernelResources(vgprs=registers_for(len(latency), threads), lds_bytes=lds if lds > 4 else 0)
    return ProfiledKernel(entry["name"], blocks, threads, resources, profile["total_latency"], latency)
