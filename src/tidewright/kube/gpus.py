"""The GPUs of this node as the device plugin shares them: NVIDIA's through NVML, or ones that are not there.

Not the device backends: those have one kind per node, with the memory of the smallest, because a gang must find equals. Here
every GPU counts with its own memory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from ..base.errors import UsageError, WorldError
from ..devices.xids import CriticalErrors, answers, text
from .ask import MOST_GPUS
from .cdi import COMMON_NODES

RECOVERY_ACTION = 274
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (driver 560): 0 once nothing needs to be done about a GPU (any more)."""
_FAKE = re.compile(r"([0-9]{1,3})x([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Gpu:
    """``index`` as nvidia-smi counts; ``nodes``: its device files."""

    index: int
    uuid: str
    memory_mib: int
    model: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Use:
    """Memory of one GPU in use by one process, by its pid on the node."""

    gpu: int
    pid: int
    mib: int


class Gpus(Protocol):
    """Methods may be called from any thread, one at a time."""

    def found(self) -> tuple[Gpu, ...]:
        """By index; the same each time."""
        ...

    def faults(self) -> dict[int, str]:
        """Why a GPU must not be used now; healthy ones are not in it."""
        ...

    def uses(self) -> list[Use]:
        """Who uses them now, each process once per GPU. Raises WorldError where the driver does not say."""
        ...


class FakeGpus:
    """As given by ``--fake-gpus``; set ``sick`` (index to note) and ``used`` at any time."""

    def __init__(self, spec: str) -> None:
        """``spec``: "2x15" is two GPUs of 15 GiB, "1x24+1x16" one of each. Raises UsageError."""
        sizes: list[int] = []
        for part in spec.replace(" ", "").split("+"):
            match = _FAKE.fullmatch(part)
            if not match:
                raise UsageError(
                    f"fake GPUs {spec!r} cannot be read", 'write NUMBERxGIB, such as "2x15" or "1x24+1x16"'
                )
            sizes += [int(match[2])] * int(match[1])
        if not 1 <= len(sizes) <= MOST_GPUS or not all(sizes):
            raise UsageError(f"fake GPUs {spec!r}: {len(sizes)} of them", f"give 1 to {MOST_GPUS}, of 1 GiB or more")
        self._gpus = tuple(Gpu(at, f"GPU-fake-{at:04d}", gib * 1024, "fake") for at, gib in enumerate(sizes))
        self.sick: dict[int, str] = {}
        self.used: list[Use] = []

    def found(self) -> tuple[Gpu, ...]:
        return self._gpus

    def faults(self) -> dict[int, str]:
        return dict(self.sick)

    def uses(self) -> list[Use]:
        return list(self.used)


class NvidiaGpus:
    """Every GPU that NVML knows. Raises WorldError without library, driver or GPU. ``nvml`` stands in for pynvml."""

    def __init__(self, nvml: Any = None, dev: Path = Path("/dev")) -> None:
        try:
            self._nvml = nvml or import_module("pynvml")
        except ImportError as error:
            raise WorldError("no NVIDIA library; install it with: pip install 'tidewright[nvidia]'") from error
        try:
            self._nvml.nvmlInit()
            handles = [self._nvml.nvmlDeviceGetHandleByIndex(at) for at in range(self._nvml.nvmlDeviceGetCount())]
            self._gpus = tuple(self._describe(at, handle, dev) for at, handle in enumerate(handles))
        except self._nvml.NVMLError as error:
            raise WorldError(f"no usable NVIDIA driver on this node ({error})") from error
        if not handles:
            raise WorldError("the NVIDIA driver knows no GPU on this node")
        self._handles: Sequence[Any] = handles
        self._xids: dict[int, str] = {}
        self._lost: set[int] = set()
        self._errors = CriticalErrors(self._nvml, handles, [gpu.uuid for gpu in self._gpus])

    def found(self) -> tuple[Gpu, ...]:
        return self._gpus

    def faults(self) -> dict[int, str]:
        """A lost GPU is well again when it answers; one with an XID when the driver says that nothing is left to do about
        it. Where the driver cannot say (before 560), it stays out until the plugin is started anew."""
        for at, xid in self._errors.take().items():
            self._xids[self._gpus[at].index] = f"XID {xid}: critical device error; see dmesg, reset the GPU"
        found = {}
        self._lost.clear()
        for gpu, handle in zip(self._gpus, self._handles, strict=True):
            if not answers(self._nvml, handle):
                self._lost.add(gpu.index)
                found[gpu.index] = "the driver has lost the GPU"
            elif gpu.index in self._xids:
                if self._recovered(handle):
                    del self._xids[gpu.index]
                else:
                    found[gpu.index] = self._xids[gpu.index]
        return found

    def uses(self) -> list[Use]:
        """Processes that compute and such that draw; one that does both is listed twice, with the same memory."""
        found: dict[tuple[int, int], int] = {}
        try:
            for gpu, handle in zip(self._gpus, self._handles, strict=True):
                if gpu.index in self._lost:
                    continue
                for one in [
                    *self._nvml.nvmlDeviceGetComputeRunningProcesses(handle),
                    *self._nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
                ]:
                    if one.usedGpuMemory is None:
                        raise WorldError("the NVIDIA driver does not tell the memory of single processes (MIG, vGPU)")
                    key = gpu.index, int(one.pid)
                    found[key] = max(found.get(key, 0), int(one.usedGpuMemory) >> 20)
        except self._nvml.NVMLError as error:
            raise WorldError(f"the NVIDIA driver does not list processes ({error})") from error
        return [Use(gpu, pid, mib) for (gpu, pid), mib in found.items()]

    def _describe(self, index: int, handle: Any, dev: Path) -> Gpu:
        nvml = self._nvml
        own = f"/dev/nvidia{nvml.nvmlDeviceGetMinorNumber(handle)}"
        there = [path for path in (own, *COMMON_NODES) if (dev / path.removeprefix("/dev/")).exists()]
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).total >> 20
        uuid, model = text(nvml.nvmlDeviceGetUUID(handle)), text(nvml.nvmlDeviceGetName(handle))
        return Gpu(index, uuid, memory, model, tuple(there))

    def _recovered(self, handle: Any) -> bool:
        try:
            value = self._nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
        except (self._nvml.NVMLError, AttributeError):
            return False
        return bool(value.nvmlReturn == 0 and value.value.uiVal == 0)


def open_gpus(fake: str = "") -> Gpus:
    """Those of ``fake``, or this node's. Raises UsageError, WorldError."""
    return FakeGpus(fake) if fake else NvidiaGpus()
