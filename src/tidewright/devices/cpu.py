"""CPU slots as devices: a real device kind with cores and memory of its own, for machines without accelerators.

Slot i owns a run of the cores that this process may use; with more slots than cores, slots share cores.
"""

from __future__ import annotations

import os

from ..base.errors import UsageError
from ..base.units import counted
from ..model.node import MAX_DEVICES_PER_NODE, NodeSpec
from .host import host_cpus, host_memory
from .protocol import DeviceEnvironment, DeviceHealth, DeviceUsage, ShareGrant, Slice
from .share_grants import slot_grant
from .shares import ShareTable

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def open_backend(name: str, slots: int = 0) -> CpuBackend:
    """CPU slots of this machine: ``slots`` of them, or one per core of this process's affinity mask, 64 at most."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    return CpuBackend(name, cores, slots or min(len(cores), MAX_DEVICES_PER_NODE), host_memory())


def check_indices(devices: tuple[int, ...], count: int) -> None:
    """Raise UsageError unless ``devices`` are distinct indices below ``count``, and at least one."""
    if not devices or len(set(devices)) != len(devices) or not all(0 <= index < count for index in devices):
        raise UsageError(
            f"devices {list(devices)} are not distinct indices below {count}", "ask for devices that exist"
        )


class CpuBackend:
    """``slots`` devices over ``cores``; ``memory`` is the host's, bytes."""

    name = "cpu"

    def __init__(self, name: str, cores: tuple[int, ...], slots: int, memory: int) -> None:
        if not 1 <= slots <= MAX_DEVICES_PER_NODE:
            raise UsageError(f"{slots} CPU slots", f"ask for 1 to {MAX_DEVICES_PER_NODE}")
        self._node, self._cores, self._slots, self._memory = name, cores, slots, memory
        self._cpus = host_cpus(len(cores))
        self._shares = ShareTable(slots, memory // slots)

    def discover(self) -> NodeSpec:
        shared = self._slots > len(self._cores)
        note = f"{counted(self._slots, 'slot')} share {counted(len(self._cores), 'core')}" if shared else ""
        return NodeSpec(
            name=self._node,
            kind="cpu",
            devices=self._slots,
            device_memory=self._memory // self._slots,
            memory=self._memory,
            cpus=self._cpus,
            note=note,
        )

    def cores_of(self, slot: int) -> tuple[int, ...]:
        """The cores of one slot."""
        first = slot * len(self._cores) // self._slots
        last = max(first + 1, (slot + 1) * len(self._cores) // self._slots)
        return self._cores[first:last]

    def health(self) -> tuple[DeviceHealth, ...]:
        return tuple(DeviceHealth(slot, True) for slot in range(self._slots))

    def forgive(self) -> None:
        """Nothing is held against a core."""

    def environment(
        self, devices: tuple[int, ...], sharers: int = 1, counted: tuple[int, ...] = ()
    ) -> DeviceEnvironment:
        """Thread limits count slots, not cores, so that a job gets the same number on every placement."""
        check_indices(devices, self._slots)
        threads = max(1, len(self._cores) // self._slots * len(devices) // sharers)
        cpus = tuple(sorted({core for slot in devices for core in self.cores_of(slot)}))
        return DeviceEnvironment({**dict.fromkeys(THREAD_VARIABLES, str(threads)), "CUDA_VISIBLE_DEVICES": ""}, cpus)

    def share(self, part: Slice) -> ShareGrant:
        self._shares.add(part)
        return slot_grant(part)

    def release(self, holder: str) -> None:
        self._shares.release(holder)

    def shares(self) -> tuple[Slice, ...]:
        return self._shares.all()

    def usage(self) -> tuple[DeviceUsage, ...]:
        """Not measured here: the cores do others' work too, and that of the slots that share them."""
        return tuple(DeviceUsage(slot, -1.0) for slot in range(self._slots))

    def close(self) -> None:
        """Nothing is held."""
