"""The GPUs of this node as the device plugin shares them: NVIDIA's, or ones that are not there.

Not the device backends: those have one kind per node, with the memory of the smallest, because a gang must find equals. Here
every GPU counts with its own memory.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ...base.errors import UsageError, WorldError
from ..objects.pod_request import MOST_GPUS

UNLIMITED = 2**44 - 1
"""MiB: NVML_DEVICE_MEMORY_LIMIT_MAX, all bits of 64, in bytes."""
_FAKE = re.compile(r"([0-9]{1,3})x([0-9]{1,6})(mig)?")


@dataclass(frozen=True, slots=True)
class Gpu:
    """``index`` as nvidia-smi counts, MIG instances after all GPUs; ``nodes``: its device files. ``whole``: given to one pod
    alone, as an instance is, for the hardware isolates no two pods within it. ``physical``: of which GPU it is a part."""

    index: int
    uuid: str
    memory_mib: int
    model: str = ""
    nodes: tuple[str, ...] = ()
    whole: bool = False
    physical: int = -1


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """Memory of one GPU in use by one process, by its pid on the node."""

    gpu: int
    pid: int
    mib: int


class Gpus(Protocol):
    """Methods may be called from any thread, several at once: NVML is thread-safe."""

    def found(self) -> tuple[Gpu, ...]:
        """By index; the same each time."""
        ...

    def faults(self) -> dict[int, str]:
        """Why a GPU must not be used now; healthy ones are not in it."""
        ...

    def uses(self) -> list[GpuProcess]:
        """Who uses them now, each process once per GPU. Raises WorldError where the driver does not say."""
        ...

    def why_no_limits(self, cgroup: Path) -> str:
        """Why the driver cannot limit what the processes of a cgroup use, such as this one; empty when it can."""
        ...

    def limit_of(self, gpu: int, cgroup: Path) -> int:
        """MiB, UNLIMITED without one. Raises WorldError."""
        ...

    def limit(self, gpu: int, cgroup: Path, mib: int) -> None:
        """What the processes of a cgroup may use together. Raises WorldError."""
        ...


class FakeGpus:
    """As given by ``--fake-gpus``; set ``sick`` (index to note), ``used``, ``silent`` (why it cannot say who uses
    them) and ``no_limits`` at any time."""

    def __init__(self, spec: str) -> None:
        """``spec``: "2x15" is two GPUs of 15 GiB, "1x24+1x16" one of each, "2x15+3x10mig" has three MIG instances beside
        two GPUs. Raises UsageError."""
        sizes: list[tuple[int, bool]] = []
        for part in spec.replace(" ", "").split("+"):
            match = _FAKE.fullmatch(part)
            if not match:
                raise UsageError(
                    f"fake GPUs {spec!r} cannot be read", 'write NUMBERxGIB, such as "2x15" or "1x24+1x16"'
                )
            sizes += [(int(match[2]), bool(match[3]))] * int(match[1])
        if not 1 <= len(sizes) <= MOST_GPUS or not all(gib for gib, _ in sizes):
            raise UsageError(f"fake GPUs {spec!r}: {len(sizes)} of them", f"give 1 to {MOST_GPUS}, of 1 GiB or more")
        self._gpus = tuple(
            Gpu(at, f"{'MIG' if mig else 'GPU'}-fake-{at:04d}", gib * 1024, "fake", whole=mig)
            for at, (gib, mig) in enumerate(sizes)
        )
        self.sick: dict[int, str] = {}
        self.used: list[GpuProcess] = []
        self.silent = ""
        self.no_limits = "these GPUs are not there"
        self.limits: dict[tuple[int, Path], int] = {}

    def found(self) -> tuple[Gpu, ...]:
        return self._gpus

    def faults(self) -> dict[int, str]:
        return dict(self.sick)

    def uses(self) -> list[GpuProcess]:
        if self.silent:
            raise WorldError(self.silent)
        return list(self.used)

    def why_no_limits(self, cgroup: Path) -> str:
        return self.no_limits

    def limit_of(self, gpu: int, cgroup: Path) -> int:
        return self.limits.get((gpu, cgroup), UNLIMITED)

    def limit(self, gpu: int, cgroup: Path, mib: int) -> None:
        self.limits[gpu, cgroup] = mib


def news(before: Mapping[int, str], faults: Mapping[int, str]) -> Iterator[str]:
    """What has changed from one look at ``faults`` to the next, a line each."""
    for gpu in sorted(faults.keys() | before.keys()):
        if faults.get(gpu) != before.get(gpu):
            yield f"GPU {gpu}: {faults.get(gpu, 'well again')}"
