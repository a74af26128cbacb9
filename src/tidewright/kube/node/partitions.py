"""Parts of a GPU that the hardware isolates (MIG instances), made when a claim needs one and taken apart after it.

Where a part may lie is a fact of the GPU: a profile and where its memory begins. The scheduler chooses among all of them by
counters (see slices), so that no two that are chosen at the same time overlap.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ...base.errors import WorldError
from .gpus import FakeGpus, Gpu

STATIC, DYNAMIC = "static", "dynamic"
FAKE_SLICES = 8
_FAKE_PROFILES = (
    ("1g", 19, 1, 16, (0, 1, 2, 3, 4, 5, 6)), ("1g", 15, 2, 26, (0, 2, 4, 6)), ("2g", 14, 2, 32, (0, 2, 4)),
    ("3g", 9, 4, 60, (0, 4)), ("4g", 5, 4, 64, (0,)), ("7g", 0, 8, 132, (0,)),
)  # fmt: skip
"""Name, id, slices of memory, multiprocessors, where they may begin: as an H100 has them."""


@dataclass(frozen=True, slots=True)
class MigPlacement:
    """One part that can be: memory slices ``start`` to ``start + size`` of the GPU with index ``gpu``. ``mib``: what it has
    of memory; ``engines``: what else it takes of the GPU, such as multiprocessors, by counter."""

    gpu: int
    profile: str
    profile_id: int
    start: int
    size: int
    mib: int
    engines: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """Of the device; it never changes: stored claims refer to it across restarts."""
        return f"gpu-{self.gpu}-mig-{self.profile_id}-{self.start}-{self.size}"


class Partitions(Protocol):
    """Methods may be called from any thread, one at a time, and take a moment."""

    def parents(self) -> tuple[Gpu, ...]:
        """The GPUs whose parts these are; the same each time."""
        ...

    def placements(self) -> tuple[MigPlacement, ...]:
        """Every part that can be, whether it is there or not; the same each time."""
        ...

    def make(self, placement: MigPlacement) -> Gpu:
        """The part that lies there, made if need be. Raises WorldError, also when another one is in its way."""
        ...

    def destroy(self, placement: MigPlacement) -> None:
        """What lies just there goes, half made or not; it may be gone already. Raises WorldError, such as while a program
        uses it."""
        ...


class FakePartitions(FakeGpus):
    """Of ``--fake-gpus`` the ones with ``mig`` are GPUs in MIG mode here. ``there`` outlives it, as a GPU does its driver;
    ``stuck``: why nothing can be made or destroyed."""

    def __init__(self, spec: str, there: set[MigPlacement] | None = None) -> None:
        """Raises UsageError."""
        super().__init__(spec)
        self._parents = tuple(gpu for gpu in self._gpus if gpu.whole)
        self._gpus = tuple(gpu for gpu in self._gpus if not gpu.whole)
        self.there = set() if there is None else there
        self.stuck = ""

    def parents(self) -> tuple[Gpu, ...]:
        return self._parents

    def placements(self) -> tuple[MigPlacement, ...]:
        return tuple(
            MigPlacement(
                gpu.index, f"{name}.{gpu.memory_mib * size // FAKE_SLICES // 1024}gb", number, start, size,
                gpu.memory_mib * size // FAKE_SLICES, (("multiprocessors", sms),),
            )
            for gpu in self._parents
            for name, number, size, sms, starts in _FAKE_PROFILES
            for start in starts
        )  # fmt: skip

    def make(self, placement: MigPlacement) -> Gpu:
        if self.stuck:
            raise WorldError(self.stuck)
        for one in self.there:
            if one != placement and overlap(one, placement):
                raise WorldError(f"{one.name} overlaps {placement.name}")
        self.there.add(placement)
        uuid = f"MIG-fake-{placement.name}"
        return Gpu(-1, uuid, placement.mib, "fake", whole=True, physical=placement.gpu)

    def destroy(self, placement: MigPlacement) -> None:
        if self.stuck:
            raise WorldError(self.stuck)
        self.there.discard(placement)


def overlap(one: MigPlacement, other: MigPlacement) -> bool:
    """Whether they share memory of one GPU."""
    return one.gpu == other.gpu and one.start < other.start + other.size and other.start < one.start + one.size


def totals(placements: tuple[MigPlacement, ...]) -> dict[int, dict[str, int]]:
    """What each GPU has, by index and counter: as many slices of memory as its parts reach, and of all else as much as
    the part with the most, for one of them is always the whole GPU."""
    found: dict[int, dict[str, int]] = {}
    for one in placements:
        have = found.setdefault(one.gpu, {})
        for name, value in needs(one).items():
            have[name] = max(have.get(name, 0), value)
    return found


def needs(placement: MigPlacement) -> Mapping[str, int]:
    """What a part takes of its GPU, by counter."""
    slices = {f"memory-slice-{at}": 1 for at in range(placement.start, placement.start + placement.size)}
    return {**slices, **{name: value for name, value in placement.engines if value}}
