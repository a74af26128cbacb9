"""MIG instances through NVML: a driver that is a table, with the structures of the real library's interface."""

# The names are NVML's.
# ruff: noqa: N802
from __future__ import annotations

from ctypes import Structure, c_uint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.kube.test_plugin_pure import Nvml, Refusal
from tidewright.base.errors import WorldError
from tidewright.kube.node.nvidia import NvidiaGpus
from tidewright.kube.node.nvidia_mig import NvidiaPartitions
from tidewright.kube.node.partitions import MigPlacement, totals

PROFILES = {
    0: SimpleNamespace(id=19, sliceCount=1, instanceCount=7, name=b"MIG 1g.20gb", memorySizeMB=18_000, sms=16, ofa=0),
    2: SimpleNamespace(id=9, sliceCount=3, instanceCount=2, name=b"MIG 3g.71gb", memorySizeMB=71_000, sms=60, ofa=0),
    4: SimpleNamespace(id=0, sliceCount=7, instanceCount=1, name=b"MIG 7g.141gb", memorySizeMB=140_000, sms=132, ofa=1),
}
STARTS = {19: (range(7), 1), 9: ((0, 4), 4), 0: ((0,), 8)}


class _Where(Structure):
    _fields_ = [("start", c_uint), ("size", c_uint)]


class MigNvml(Nvml):
    """GPU 1 is in MIG mode. ``there``: GPU instances by number, each (profile id, start, size, compute instances)."""

    def __init__(self) -> None:
        super().__init__()
        self.there: dict[int, list[Any]] = {}
        self.busy = False
        self.crash_between = False
        self.NVML_GPU_INSTANCE_PROFILE_COUNT, self.NVML_COMPUTE_INSTANCE_PROFILE_COUNT = 6, 6
        self.NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED = 0
        self.c_nvmlGpuInstancePlacement_t = _Where
        # Handles are numbers here: an instance's is its number, what is in it has that and a hundred.
        self.c_nvmlGpuInstance_t = self.c_nvmlComputeInstance_t = c_uint
        for profile in PROFILES.values():
            profile.multiprocessorCount, profile.ofaCount = profile.sms, profile.ofa
            profile.copyEngineCount = profile.decoderCount = profile.encoderCount = profile.jpegCount = 0

    def nvmlDeviceGetMigMode(self, at: int) -> list[int]:
        return [at, at]

    def nvmlDeviceGetGpuInstanceProfileInfoV(self, at: int, profile: int) -> Any:
        if profile not in PROFILES:
            raise Refusal
        return PROFILES[profile]

    def nvmlDeviceGetGpuInstancePossiblePlacements(self, at: int, number: int, found: Any, count: Any) -> None:
        starts, size = STARTS[number]
        count._obj.value = len(starts)
        for where, start in zip(found or (), starts, strict=False):
            where.start, where.size = start, size

    def nvmlDeviceCreateGpuInstanceWithPlacement(self, at: int, number: int, where: Any) -> int:
        start, size = where._obj.start, where._obj.size
        if any(start < other + long and other < start + size for _, other, long, _ in self.there.values()):
            raise Refusal
        made = next(one for one in range(1, 99) if one not in self.there)
        self.there[made] = [number, start, size, []]
        if self.crash_between:
            raise KeyboardInterrupt
        return made

    def nvmlDeviceGetGpuInstances(self, at: int, number: int, found: Any, count: Any) -> None:
        mine = [made for made, one in self.there.items() if one[0] == number]
        count._obj.value = len(mine)
        for slot, made in enumerate(mine):
            found[slot] = made

    def nvmlGpuInstanceGetInfo(self, made: int) -> Any:
        number, start, size, _ = self.there[made]
        return SimpleNamespace(id=made, profileId=number, placement=SimpleNamespace(start=start, size=size))

    def nvmlGpuInstanceGetComputeInstanceProfileInfoV(self, made: int, profile: int, engines: int) -> Any:
        if profile not in PROFILES or PROFILES[profile].id < self.there[made][0]:
            raise Refusal
        return SimpleNamespace(id=profile, sliceCount=PROFILES[profile].sliceCount, instanceCount=7)

    def nvmlGpuInstanceGetComputeInstances(self, made: int, number: int, found: Any, count: Any) -> None:
        mine = [one for one in self.there[made][3] if one == number]
        count._obj.value = len(mine)
        for slot, _ in enumerate(mine):
            found[slot] = made + 100

    def nvmlGpuInstanceCreateComputeInstance(self, made: int, number: int) -> int:
        self.there[made][3].append(number)
        return made + 100

    def nvmlComputeInstanceDestroy(self, inner: int) -> None:
        if self.busy:
            raise Refusal
        self.there[inner - 100][3].pop()

    def nvmlGpuInstanceDestroy(self, made: int) -> None:
        if self.there[made][3]:
            raise Refusal
        del self.there[made]

    def nvmlDeviceGetMaxMigDeviceCount(self, at: int) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, at: int, slot: int) -> str:
        shown = [made for made, one in sorted(self.there.items()) if one[3]]
        if slot >= len(shown):
            raise Refusal
        return f"mig-{shown[slot]}"

    def nvmlDeviceGetGpuInstanceId(self, part: str) -> int:
        return int(part.removeprefix("mig-"))

    def nvmlDeviceGetComputeInstanceId(self, part: str) -> int:
        return 0

    def memory(self, at: Any) -> SimpleNamespace:
        return SimpleNamespace(total=18_000 << 20) if isinstance(at, str) else super().memory(at)


def opened(nvml: MigNvml, root: Path) -> NvidiaPartitions:
    """With the files that a node has."""
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-caps/nvidia-cap21", "nvidia-caps/nvidia-cap22"):
        (root / "dev" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "dev" / name).write_text("")
    minors = root / "driver" / "nvidia-caps" / "mig-minors"
    minors.parent.mkdir(parents=True, exist_ok=True)
    minors.write_text("config 1\ngpu0/gi1/access 21\ngpu0/gi1/ci0/access 22\n")
    nvml.nvmlDeviceGetUUID = lambda one: f"MIG-{one}" if isinstance(one, str) else f"GPU-{one}"
    return NvidiaPartitions(nvml, root / "dev", root)


def by_name(found: NvidiaPartitions) -> dict[str, MigPlacement]:
    return {one.name: one for one in found.placements()}


def test_every_place_where_an_instance_may_lie(tmp_path: Path) -> None:
    found = opened(MigNvml(), tmp_path)
    assert [gpu.index for gpu in found.found()] == [0]
    assert [(gpu.index, gpu.uuid, gpu.whole) for gpu in found.parents()] == [(1, "GPU-1", True)]
    assert list(by_name(found)) == [
        *(f"gpu-1-mig-19-{at}-1" for at in range(7)), "gpu-1-mig-9-0-4", "gpu-1-mig-9-4-4", "gpu-1-mig-0-0-8",
    ]  # fmt: skip
    one = by_name(found)["gpu-1-mig-9-4-4"]
    assert (one.profile, one.mib, dict(one.engines)["multiprocessors"]) == ("3g.71gb", 71_000, 60)
    slices = {f"memory-slice-{at}": 1 for at in range(8)}
    assert totals(found.placements()) == {1: {**slices, "multiprocessors": 132, "ofa-engines": 1}}


def test_instances_are_made_once_and_destroyed(tmp_path: Path) -> None:
    nvml = MigNvml()
    found = opened(nvml, tmp_path)
    place = by_name(found)["gpu-1-mig-9-4-4"]
    made = found.make(place)
    assert (made.uuid, made.whole, made.physical) == ("MIG-mig-1", True, 1)
    assert made.nodes == (
        "/dev/nvidia0", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22", "/dev/nvidiactl",
    )  # fmt: skip
    assert found.make(place) == made and nvml.there == {1: [9, 4, 4, [2]]}
    with pytest.raises(WorldError, match="nvidia-smi mig -lgi"):
        found.make(by_name(found)["gpu-1-mig-0-0-8"])
    assert opened(nvml, tmp_path).found() == found.found(), "what was made for a claim is nobody else's after a restart"
    nvml.busy = True
    with pytest.raises(WorldError, match="does a program use it"):
        found.destroy(place)
    nvml.busy = False
    found.destroy(place)
    found.destroy(place)
    assert not nvml.there


@pytest.mark.parametrize("again", [True, False])
def test_an_instance_that_was_half_made_is_made_whole_or_taken_away(tmp_path: Path, again: bool) -> None:
    nvml = MigNvml()
    nvml.crash_between = True
    found = opened(nvml, tmp_path)
    place = by_name(found)["gpu-1-mig-19-3-1"]
    with pytest.raises(KeyboardInterrupt):
        found.make(place)
    assert nvml.there == {1: [19, 3, 1, []]}
    nvml.crash_between = False
    if again:
        assert found.make(place).uuid == "MIG-mig-1"
        assert nvml.there == {1: [19, 3, 1, [0]]}
    else:
        found.destroy(place)
        assert not nvml.there


def test_a_sick_gpu_has_sick_parts_and_a_node_may_have_no_other(tmp_path: Path) -> None:
    nvml = MigNvml()
    nvml.nvmlDeviceGetMigMode = lambda at: [1, 1]  # type: ignore[method-assign]
    found = opened(nvml, tmp_path)
    assert not found.found() and [gpu.index for gpu in found.parents()] == [0, 1]
    nvml.lost = {1}
    assert found.faults() == {1: "the driver has lost the GPU"}
    with pytest.raises(WorldError, match="none has instances"):
        NvidiaGpus(nvml, tmp_path / "dev", tmp_path)
