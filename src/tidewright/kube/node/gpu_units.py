"""The GPUs of a node with their numbers of units, as its device plugin or DRA driver shares them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..allocation.slots import Capacity
from ..allocation.units import UnitSize
from ..objects.gpu_inventory import GpuInfo
from .gpus import Gpu


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The node's GPUs and how many units each has, both by index; ``split``: what a unit is."""

    node: str
    gpus: Mapping[int, Gpu]
    units: Mapping[int, int]
    split: UnitSize

    def cards(self, faults: Mapping[int, str], foreign: Mapping[int, int]) -> tuple[GpuInfo, ...]:
        """For the node's table. ``foreign``: units that others use, by index."""
        return tuple(
            GpuInfo(at, self.units[at], gpu.uuid, gpu.model, at not in faults, foreign.get(at, 0), gpu.whole)
            for at, gpu in sorted(self.gpus.items())
        )

    def capacity(self) -> Capacity:
        """What may be given out."""
        return Capacity(self.units, frozenset(at for at, gpu in self.gpus.items() if gpu.whole))

    def indices(self) -> dict[str, int]:
        """Of GPUs, by UUID."""
        return {gpu.uuid: at for at, gpu in self.gpus.items()}
