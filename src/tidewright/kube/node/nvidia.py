"""NVIDIA's GPUs and MIG instances through NVML: what there is, who uses it, what is ill, and the driver's own limits.

Sources: NVML API reference; NVIDIA's MIG user guide, "Device nodes and capabilities" for the files of an instance.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from ...base.errors import WorldError
from ...devices.xids import CriticalErrors, answers, text
from .atomic_files import write_whole
from .cdi import COMMON_NODES
from .gpus import UNLIMITED, Gpu, GpuProcess

RECOVERY_ACTION = 274
"""NVML_FI_DEV_GET_GPU_RECOVERY_ACTION (driver 560): 0 once nothing needs to be done about a GPU (any more)."""
MIG_MINORS = Path("driver/nvidia-caps/mig-minors")
"""Below /proc: which /dev/nvidia-caps/nvidia-capN opens an instance, in lines such as ``gpu0/gi1/ci0/access 21``."""


class GpuIndexFile:
    """Which index an instance has, by its UUID: pods hold it by that, so it stays the same while others come and go, and is
    given to no other. Kept in a file, which survives the plugin, and not the node's next start, as instances do not either."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, int] = {}
        with suppress(OSError, ValueError, AttributeError):
            found = json.loads(path.read_text()) if path is not None else {}
            self._known = {str(uuid): int(number) for uuid, number in found.items()}

    def of(self, uuid: str, first: int) -> int:
        """The index; a new one from ``first`` on. Raises WorldError when it cannot be kept."""
        if uuid not in self._known:
            taken = set(self._known.values())
            self._known[uuid] = next(at for at in count(first) if at not in taken)
            self._save()
        return self._known[uuid]

    def _save(self) -> None:
        if self._path is None:
            return
        try:
            write_whole(self._path, json.dumps(self._known), f"{self._path.name}.part-")
        except OSError as error:
            raise WorldError(f"the numbers of MIG instances cannot be kept: {error}") from error


class NvidiaGpus:
    """Every GPU that NVML knows; of one in MIG mode its instances, as they are now. Raises WorldError without library, driver
    or GPU. ``nvml`` stands in for pynvml; ``numbers``: the file where the instances' are kept."""

    makes_instances = False
    """Whether GPUs in MIG mode may be without any at the start."""

    def __init__(
        self, nvml: Any = None, dev: Path = Path("/dev"), proc: Path = Path("/proc"), numbers: Path | None = None
    ) -> None:
        try:
            self._nvml = nvml or import_module("pynvml")
        except ImportError as error:
            raise WorldError("no NVIDIA library; install it with: pip install 'tidewright[nvidia]'") from error
        self._dev, self._proc, self._numbers = dev, proc, GpuIndexFile(numbers)
        self._lost: set[int] = set()
        try:
            self._nvml.nvmlInit()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(at) for at in range(self._nvml.nvmlDeviceGetCount())]
            self._uuids = [text(self._nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles]
            self._gpus = tuple(self._describe())
        except self._nvml.NVMLError as error:
            raise WorldError(f"no usable NVIDIA driver on this node ({error})") from error
        if not self._handles:
            raise WorldError("the NVIDIA driver knows no GPU on this node")
        if not self._gpus and not self.makes_instances:
            raise WorldError("every GPU is in MIG mode and none has instances; make some with nvidia-smi mig -cgi")
        self._xids: dict[int, str] = {}
        self._errors = CriticalErrors(self._nvml, self._handles, self._uuids)

    def found(self) -> tuple[Gpu, ...]:
        return self._gpus

    def faults(self) -> dict[int, str]:
        """A lost GPU is well again when it answers; one with an XID when the driver says that nothing is left to do about
        it. Where the driver cannot say (before 560), it stays out until the plugin is started anew. What hits a GPU hits its
        instances."""
        for at, xid in self._errors.take():
            self._xids[at] = f"XID {xid}: critical device error; see dmesg, reset the GPU"
        self._lost = {at for at, handle in enumerate(self._handles) if not answers(self._nvml, handle)}
        for at in [at for at in self._xids if at not in self._lost and self._recovered(self._handles[at])]:
            del self._xids[at]
        ill = self._xids | dict.fromkeys(self._lost, "the driver has lost the GPU")
        return {gpu.index: ill[gpu.physical] for gpu in self._gpus if gpu.physical in ill}

    def uses(self) -> list[GpuProcess]:
        """Processes that compute, by MPS or not, and such that draw; one that does both is listed twice, with the same memory.
        MIG instances are left out: there the hardware says who may use how much."""
        found: dict[tuple[int, int], int] = {}
        try:
            for gpu in self._gpus:
                if gpu.whole or gpu.physical in self._lost:
                    continue
                handle = self._handles[gpu.physical]
                for one in [
                    *self._nvml.nvmlDeviceGetComputeRunningProcesses(handle),
                    *self._nvml.nvmlDeviceGetGraphicsRunningProcesses(handle),
                    *self._mps_clients(handle),
                ]:
                    if one.usedGpuMemory is None:
                        raise WorldError("the NVIDIA driver does not tell the memory of single processes (vGPU)")
                    key = gpu.index, int(one.pid)
                    found[key] = max(found.get(key, 0), int(one.usedGpuMemory) >> 20)
        except self._nvml.NVMLError as error:
            raise WorldError(f"the NVIDIA driver does not list processes ({error})") from error
        return [GpuProcess(gpu, pid, mib) for (gpu, pid), mib in found.items()]

    def _mps_clients(self, handle: Any) -> list[Any]:
        try:
            return list(self._nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle))
        except (self._nvml.NVMLError, AttributeError):  # a driver that has no such list
            return []

    def why_no_limits(self, cgroup: Path) -> str:
        """As long as one GPU can be limited the driver can: a lost one says nothing about the others."""
        why = "no GPU answers"
        for gpu in self._gpus:
            if not gpu.whole and gpu.physical not in self._lost:
                try:
                    self.limit_of(gpu.index, cgroup)
                    return ""
                except WorldError as error:
                    why = str(error)
        return why

    def limit_of(self, gpu: int, cgroup: Path) -> int:
        limits = self._limits("c_nvmlGetMemoryLimits_v1_t", cgroup)
        self._ask("nvmlDeviceGetMemoryLimits_v1", gpu, limits)
        return min(UNLIMITED, int(limits.hardLimit) >> 20)

    def limit(self, gpu: int, cgroup: Path, mib: int) -> None:
        """The same soft and hard: what a pod was given is promised to it, and not more."""
        limits = self._limits("c_nvmlSetMemoryLimits_v1_t", cgroup)
        limits.softLimit = limits.hardLimit = mib << 20
        self._ask("nvmlDeviceSetMemoryLimits_v1", gpu, limits)

    def _limits(self, kind: str, cgroup: Path) -> Any:
        make = getattr(self._nvml, kind, None)
        if make is None:
            raise WorldError("nvidia-ml-py is older than 13.615: it cannot limit memory")
        limits = make()
        limits.nameSpace = str(cgroup).encode()
        return limits

    def _ask(self, call: str, gpu: int, limits: Any) -> None:
        physical = next(one.physical for one in self._gpus if one.index == gpu)
        try:
            getattr(self._nvml, call)(self._handles[physical], limits)
        except self._nvml.NVMLError as error:
            raise WorldError(
                f"the NVIDIA driver does not limit memory by cgroup ({error}); it can from 615 on"
            ) from error

    def _describe(self) -> Iterator[Gpu]:
        """GPUs under the index that nvidia-smi gives them, instances behind them."""
        for at, handle in enumerate(self._handles):
            model = text(self._nvml.nvmlDeviceGetName(handle))
            if not self._in_mig_mode(handle):
                nodes = self._there(f"/dev/nvidia{self._minor(handle)}", *COMMON_NODES)
                yield Gpu(at, self._uuids[at], self._mib(handle), model, nodes, physical=at)
                continue
            for part in self._instances(handle):
                uuid, nodes = text(self._nvml.nvmlDeviceGetUUID(part)), self._instance_nodes(handle, part)
                number = self._numbers.of(uuid, len(self._handles))
                yield Gpu(number, uuid, self._mib(part), model, nodes, whole=True, physical=at)

    def _instances(self, handle: Any) -> Iterator[Any]:
        for at in range(self._nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                yield self._nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, at)
            except self._nvml.NVMLError:  # there is no such instance
                continue

    def _instance_nodes(self, handle: Any, part: Any) -> tuple[str, ...]:
        """The GPU's own file and the capabilities of both halves of the instance."""
        nvml, minor = self._nvml, self._minor(handle)
        gpu = f"gpu{minor}/gi{nvml.nvmlDeviceGetGpuInstanceId(part)}"
        wanted = (f"{gpu}/access", f"{gpu}/ci{nvml.nvmlDeviceGetComputeInstanceId(part)}/access")
        try:
            lines = (self._proc / MIG_MINORS).read_text().splitlines()
        except OSError:
            lines = []
        minors = dict(line.split() for line in lines if len(line.split()) == 2)
        caps = [f"/dev/nvidia-caps/nvidia-cap{minors[one]}" for one in wanted if one in minors]
        return self._there(f"/dev/nvidia{minor}", *caps, *COMMON_NODES)

    def _in_mig_mode(self, handle: Any) -> bool:
        try:
            return bool(self._nvml.nvmlDeviceGetMigMode(handle)[0])
        except (self._nvml.NVMLError, AttributeError):
            return False

    def _minor(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMinorNumber(handle))

    def _mib(self, handle: Any) -> int:
        return int(self._nvml.nvmlDeviceGetMemoryInfo(handle).total) >> 20

    def _there(self, *paths: str) -> tuple[str, ...]:
        return tuple(path for path in paths if (self._dev / path.removeprefix("/dev/")).exists())

    def _recovered(self, handle: Any) -> bool:
        try:
            value = self._nvml.nvmlDeviceGetFieldValues(handle, [RECOVERY_ACTION])[0]
        except (self._nvml.NVMLError, AttributeError):
            return False
        return bool(value.nvmlReturn == 0 and value.value.uiVal == 0)
