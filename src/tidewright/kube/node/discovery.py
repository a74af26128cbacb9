"""Opens the GPUs of this node: through NVML, or simulated ones."""

from __future__ import annotations

from pathlib import Path

from .gpus import FakeGpus, Gpus
from .partitions import DYNAMIC, FakePartitions, Partitions


def open_gpus(fake: str = "", numbers: Path | None = None) -> Gpus:
    """Those of ``fake``, or this node's; ``numbers``: see nvidia.Numbers. Raises UsageError, WorldError."""
    if fake:
        return FakeGpus(fake)
    from .nvidia import NvidiaGpus

    return NvidiaGpus(numbers=numbers)


def open_partitions(fake: str, mig: str) -> tuple[Gpus, Partitions | None]:
    """The GPUs of this node or of ``fake``, and what parts can be made of them with ``mig`` dynamic. Raises UsageError,
    WorldError."""
    if mig != DYNAMIC:
        return open_gpus(fake), None
    if fake:
        made = FakePartitions(fake)
        return made, made
    from .nvidia_mig import NvidiaPartitions

    found = NvidiaPartitions()
    return found, found
