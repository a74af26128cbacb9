"""MIG instances of NVIDIA's GPUs made and taken apart on demand, through NVML. See partitions.

Source: NVML API reference, "Multi Instance GPU Management"; NVIDIA's MIG user guide. An instance is two things: a GPU
instance, which has the memory, and in it a compute instance, which has the multiprocessors; here the one always fills the
other. It has not run on a GPU yet.
"""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import byref, c_uint
from pathlib import Path
from typing import Any

from ...base.errors import WorldError
from ...devices.xids import text
from .gpus import Gpu
from .nvidia import NvidiaGpus
from .partitions import MigPlacement

ENGINES = {
    "multiprocessors": "multiprocessorCount", "copy-engines": "copyEngineCount", "decoders": "decoderCount",
    "encoders": "encoderCount", "jpeg-engines": "jpegCount", "ofa-engines": "ofaCount",
}  # fmt: skip
"""Counters to fields of a profile: what parts of one GPU take from each other beside its memory."""


class NvidiaPartitions(NvidiaGpus):
    """GPUs not in MIG mode as they are; the instances of the others belong to no other program. Raises WorldError."""

    makes_instances = True

    def __init__(self, nvml: Any = None, dev: Path = Path("/dev"), proc: Path = Path("/proc")) -> None:
        super().__init__(nvml, dev, proc)
        self._parents = tuple(
            Gpu(at, self._uuids[at], self._mib(handle), text(self._nvml.nvmlDeviceGetName(handle)), (), True, at)
            for at, handle in enumerate(self._handles)
            if self._in_mig_mode(handle)
        )
        self._profiles = {gpu.index: dict(self._offered(gpu.index)) for gpu in self._parents}
        self._placements = tuple(self._possible())

    def parents(self) -> tuple[Gpu, ...]:
        return self._parents

    def placements(self) -> tuple[MigPlacement, ...]:
        return self._placements

    def faults(self) -> dict[int, str]:
        found = super().faults()
        ill = self._xids | dict.fromkeys(self._lost, "the driver has lost the GPU")
        return found | {gpu.index: ill[gpu.index] for gpu in self._parents if gpu.index in ill}

    def make(self, placement: MigPlacement) -> Gpu:
        nvml, handle = self._nvml, self._handles[placement.gpu]
        try:
            instance = self._at(placement)
            if instance is None:
                where = nvml.c_nvmlGpuInstancePlacement_t()
                where.start, where.size = placement.start, placement.size
                instance = nvml.nvmlDeviceCreateGpuInstanceWithPlacement(handle, placement.profile_id, byref(where))
            if not list(self._inner(placement, instance)):
                nvml.nvmlGpuInstanceCreateComputeInstance(instance, self._whole_of(placement, instance))
            number = nvml.nvmlGpuInstanceGetInfo(instance).id
            for part in self._instances(handle):
                if nvml.nvmlDeviceGetGpuInstanceId(part) == number:
                    return self._made(placement, part)
        except nvml.NVMLError as error:
            raise WorldError(
                f"{placement.name} cannot be made ({error}): look with nvidia-smi mig -lgi for what blocks it"
            ) from error
        raise WorldError(f"{placement.name} was made, and the NVIDIA driver does not show it yet")

    def destroy(self, placement: MigPlacement) -> None:
        try:
            instance = self._at(placement)
            if instance is not None:
                for inner in self._inner(placement, instance):
                    self._nvml.nvmlComputeInstanceDestroy(inner)
                self._nvml.nvmlGpuInstanceDestroy(instance)
        except self._nvml.NVMLError as error:
            raise WorldError(f"{placement.name} cannot be destroyed ({error}): does a program use it still?") from error

    def _describe(self) -> Iterator[Gpu]:
        return (gpu for gpu in super()._describe() if not gpu.whole)

    def _made(self, placement: MigPlacement, part: Any) -> Gpu:
        handle = self._handles[placement.gpu]
        uuid, model = text(self._nvml.nvmlDeviceGetUUID(part)), text(self._nvml.nvmlDeviceGetName(handle))
        return Gpu(-1, uuid, self._mib(part), model, self._instance_nodes(handle, part), True, placement.gpu)

    def _offered(self, gpu: int) -> Iterator[tuple[int, Any]]:
        """Profiles of a GPU by id."""
        for at in range(self._nvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                info = self._nvml.nvmlDeviceGetGpuInstanceProfileInfoV(self._handles[gpu], at)
            except self._nvml.NVMLError:  # other kinds of GPU have it
                continue
            yield int(info.id), info

    def _possible(self) -> Iterator[MigPlacement]:
        nvml = self._nvml
        for gpu, profiles in self._profiles.items():
            for number, info in profiles.items():
                count, name = c_uint(), text(info.name).removeprefix("MIG ")
                ask = nvml.nvmlDeviceGetGpuInstancePossiblePlacements
                try:
                    ask(self._handles[gpu], number, None, byref(count))
                    found = (nvml.c_nvmlGpuInstancePlacement_t * count.value)()
                    ask(self._handles[gpu], number, found, byref(count))
                except nvml.NVMLError as error:
                    raise WorldError(f"where {name} may lie on GPU {gpu} is not known ({error})") from error
                engines = tuple((counter, int(getattr(info, field))) for counter, field in ENGINES.items())
                for one in found[: count.value]:
                    yield MigPlacement(
                        gpu, name, number, int(one.start), int(one.size), int(info.memorySizeMB), engines
                    )  # fmt: skip

    def _at(self, placement: MigPlacement) -> Any:
        """The GPU instance that lies just there, None without one."""
        nvml, info = self._nvml, self._profiles[placement.gpu][placement.profile_id]
        count, found = c_uint(), (nvml.c_nvmlGpuInstance_t * max(1, info.instanceCount))()
        nvml.nvmlDeviceGetGpuInstances(self._handles[placement.gpu], placement.profile_id, found, byref(count))
        for one in found[: count.value]:
            where = nvml.nvmlGpuInstanceGetInfo(one).placement
            if (where.start, where.size) == (placement.start, placement.size):
                return one
        return None

    def _inner(self, placement: MigPlacement, instance: Any) -> Iterator[Any]:
        """The compute instances within it."""
        nvml = self._nvml
        for info in self._inner_profiles(instance):
            count, found = c_uint(), (nvml.c_nvmlComputeInstance_t * max(1, info.instanceCount))()
            nvml.nvmlGpuInstanceGetComputeInstances(instance, info.id, found, byref(count))
            yield from found[: count.value]

    def _inner_profiles(self, instance: Any) -> Iterator[Any]:
        nvml = self._nvml
        for at in range(nvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                yield nvml.nvmlGpuInstanceGetComputeInstanceProfileInfoV(
                    instance, at, nvml.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED
                )
            except nvml.NVMLError:  # too large for it
                continue

    def _whole_of(self, placement: MigPlacement, instance: Any) -> int:
        """The profile of a compute instance that fills the GPU instance."""
        wanted = self._profiles[placement.gpu][placement.profile_id].sliceCount
        for info in self._inner_profiles(instance):
            if info.sliceCount == wanted:
                return int(info.id)
        raise WorldError(f"the NVIDIA driver has no compute instance that fills {placement.name}")
