"""NVIDIA devices through NVML (nvidia-ml-py, imported on opening). No driver is a normal state, said in one line."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from importlib import import_module
from typing import Any

from ..base.errors import WorldError
from ..base.ids import valid_name
from ..model.node import NodeSpec
from .cpu import check_indices
from .faults import FaultLog
from .host import host_cpus, host_memory
from .mps import answers as mps_answers
from .mps import pipes_of
from .protocol import DeviceEnvironment, DeviceHealth, DeviceUsage, ShareGrant, Slice
from .share_grants import gpu_grant
from .shares import ShareTable
from .xids import CriticalErrors, answers, recovery_action, text


def open_backend(name: str = "", slots: int = 0, nvml: Any = None) -> NvidiaBackend:
    """Open NVML. Raises WorldError, in one line, without library, driver or device. ``nvml`` stands in for pynvml."""
    try:
        nvml = nvml or import_module("pynvml")
    except ImportError as error:
        raise WorldError("no NVIDIA library; install it with: pip install 'tidewright[nvidia]'") from error
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise WorldError(f"no NVIDIA driver on this machine ({error})") from error
    try:
        return NvidiaBackend(name or socket.gethostname(), nvml)
    except (nvml.NVMLError, WorldError) as error:
        nvml.nvmlShutdown()
        raise WorldError(f"no usable NVIDIA device ({error})") from error


def kind_of(product: str) -> str:
    """Device kind from a product name: "NVIDIA H100 80GB HBM3" is "h100", "GeForce RTX 4090" is "rtx4090"."""
    words = re.sub(r"\b(nvidia|geforce|tesla|quadro|graphics|device)\b", " ", product.lower())
    consumer = re.search(r"\b([gr]tx)\s*(a?\d{3,4})(?:\s*(ti|super))?\b", words)
    if consumer:
        return "".join(part for part in consumer.groups() if part)
    model = re.search(r"\b(gh|gb|[abhlvptk])\d{1,4}[a-z]?\b", words)
    if model:
        return model[0]
    plain = re.sub(r"[^a-z0-9]+", "-", words).strip("-")
    return plain if valid_name(plain) else "gpu"


class NvidiaBackend:
    """Every device of the commonest kind on this node; ``nvml`` is initialised."""

    name = "nvidia"

    def __init__(self, node: str, nvml: Any) -> None:
        self._nvml = nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        kinds = [kind_of(text(nvml.nvmlDeviceGetName(handle))) for handle in handles]
        if not handles:
            raise WorldError("the driver knows no device")
        kind = Counter(kinds).most_common(1)[0][0]
        self._handles = [handle for handle, its in zip(handles, kinds, strict=True) if its == kind]
        self._faults = FaultLog()
        self._needed_reset: dict[int, bool] = {}
        self._open = True
        self._spec = self._describe(node, kind, sorted({other for other in kinds if other != kind}))
        self._shares = ShareTable(self._spec.devices, self._spec.device_memory)
        self._errors = CriticalErrors(nvml, self._handles, self._spec.uuids)

    def _describe(self, node: str, kind: str, others: list[str]) -> NodeSpec:
        nvml = self._nvml
        memories = [nvml.nvmlDeviceGetMemoryInfo(handle).total for handle in self._handles]
        return NodeSpec(
            name=node,
            kind=kind,
            devices=len(self._handles),
            device_memory=min(memories),
            memory=host_memory(),
            cpus=host_cpus(),
            uuids=tuple(text(nvml.nvmlDeviceGetUUID(handle)) for handle in self._handles),
            note=f"not used, as a node has one kind: {', '.join(others)}" if others else "",
        )

    def discover(self) -> NodeSpec:
        return self._spec

    def health(self) -> tuple[DeviceHealth, ...]:
        """Faults by XID, and devices that do not answer; one that lasts ends when the driver no longer asks for a reset."""
        for index, xid in self._errors.take():
            self._faults.xid(index, xid)
        for index, handle in enumerate(self._handles):
            if not answers(self._nvml, handle):
                self._faults.lost(index)
        for index in self._faults.lasting():
            self._see_reset(index)
        return self._faults.health(range(len(self._handles)))

    def _see_reset(self, index: int) -> None:
        action = recovery_action(self._nvml, self._handles[index])
        if action:
            self._needed_reset[index] = True
        elif action == 0 and self._needed_reset.pop(index, False):
            self._faults.recovered(index)

    def forgive(self) -> None:
        self._faults, self._needed_reset = FaultLog(), {}

    def environment(
        self, devices: tuple[int, ...], sharers: int = 1, counted: tuple[int, ...] = ()
    ) -> DeviceEnvironment:
        """Devices by UUID, so that renumbering by the driver shows no job another's device."""
        check_indices(devices, len(self._handles))
        check_indices(counted or devices, len(self._handles))
        shown = [self._spec.uuids[index] for index in counted or devices]
        env = {"CUDA_VISIBLE_DEVICES": ",".join(shown), "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return DeviceEnvironment(env, alone=len(shown) == 1)

    def share(self, part: Slice) -> ShareGrant:
        """Asked each time whether MPS runs: an operator may start or stop it."""
        self._shares.add(part)
        pipes = pipes_of(os.environ)
        return gpu_grant(part, self._spec.device_memory, pipes if mps_answers(pipes / "control") else None)

    def release(self, holder: str) -> None:
        self._shares.release(holder)

    def shares(self) -> tuple[Slice, ...]:
        return self._shares.all()

    def usage(self) -> tuple[DeviceUsage, ...]:
        try:
            return tuple(self._load(index, handle) for index, handle in enumerate(self._handles))
        except self._nvml.NVMLError as error:
            raise WorldError(f"NVML: {error}") from error

    def _load(self, index: int, handle: Any) -> DeviceUsage:
        nvml = self._nvml
        memory = nvml.nvmlDeviceGetMemoryInfo(handle).used
        try:
            percent = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
            processes = {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
        except nvml.NVMLError:
            percent, processes = 0.0, {}  # not offered under MIG
        held = {pid: used for pid, used in processes.items() if used is not None}  # None: not reported on some systems
        return DeviceUsage(index, percent, memory, tuple(sorted(processes)), held)

    def close(self) -> None:
        if self._open:
            self._open = False
            self._nvml.nvmlShutdown()
