"""A step of ``bench/gpu_runtime.py``: what NVML says of the device against what PyTorch says.

The four calls that are needed go to the driver's own library by ctypes: it is there wherever there is a driver, and pynvml is
not in a bare checkout. Where pynvml is installed, what the product reads through it is compared as well.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Callable
from typing import Any

from tidewright.base.errors import WorldError

SOURCES = ("bench/gpu_nvml.py", "src/tidewright/kube/node/nvidia.py")
LIBRARY = "libnvidia-ml.so.1"
TAKEN = 2**30
"""Bytes of device memory that are looked for."""
TOTAL_WITHIN = 0.05
"""NVML counts what the driver keeps for itself, CUDA does not: a few hundred MiB."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of the kernel: in any other namespace the driver names pids that are not ours."""
TEXT, MOST = 96, 1024
"""NVML_DEVICE_UUID_V2_BUFFER_SIZE (names: NVML_DEVICE_NAME_V2_BUFFER_SIZE, the same), and the most processes looked at."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = [(name, ctypes.c_ulonglong) for name in ("total", "free", "used")]


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t, as nvmlDeviceGetComputeRunningProcesses_v3 fills it."""

    _fields_ = [
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    ]


class Nvml:
    """The calls; each raises WorldError with its nvmlReturn_t. ``library``: the driver's, loaded."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self._call("nvmlInit_v2")

    def _call(self, name: str, *arguments: Any) -> None:
        code = getattr(self._library, name)(*arguments)
        if code:
            raise WorldError(f"{name} returned {code}")

    def devices(self) -> list[ctypes.c_void_p]:
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        found = [ctypes.c_void_p() for _ in range(count.value)]
        for at, handle in enumerate(found):
            self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(at), ctypes.byref(handle))
        return found

    def uuid(self, handle: ctypes.c_void_p) -> str:
        return self._text("nvmlDeviceGetUUID", handle)

    def name(self, handle: ctypes.c_void_p) -> str:
        return self._text("nvmlDeviceGetName", handle)

    def _text(self, call: str, handle: ctypes.c_void_p) -> str:
        buffer = ctypes.create_string_buffer(TEXT)
        self._call(call, handle, buffer, ctypes.c_uint(TEXT))
        return buffer.value.decode()

    def memory(self, handle: ctypes.c_void_p) -> tuple[int, int]:
        """Bytes in all, and in use."""
        found = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(found))
        return found.total, found.used

    def processes(self, handle: ctypes.c_void_p) -> dict[int, int]:
        """Bytes by pid, of processes that compute."""
        count, found = ctypes.c_uint(MOST), (_Process * MOST)()
        self._call("nvmlDeviceGetComputeRunningProcesses_v3", handle, ctypes.byref(count), found)
        return {one.pid: one.used for one in found[: count.value]}


def uuid_of(properties: Any) -> str:
    """As NVML writes it, of what ``torch.cuda.get_device_properties`` returns, which leaves the first four characters out."""
    return f"GPU-{str(properties.uuid).removeprefix('GPU-')}"


def nvml() -> dict[str, Any]:
    """UUID, name and memory of the device by both, and this process among those that NVML lists."""
    try:
        library = Nvml(ctypes.CDLL(LIBRARY))
    except OSError as error:
        return {"skipped": f"the driver's {LIBRARY} cannot be loaded: {error}"}
    import torch

    properties = torch.cuda.get_device_properties(0)
    by_torch = {"uuid": uuid_of(properties), "name": properties.name, "total": properties.total_memory}
    handles = {library.uuid(handle): handle for handle in library.devices()}
    found: dict[str, Any] = {"torch": by_torch, "uuids": list(handles)}
    if by_torch["uuid"] in handles:
        found |= _seen(library, handles[by_torch["uuid"]])
    found["own_namespace"] = os.stat("/proc/self/ns/pid").st_ino != INITIAL_PID_NAMESPACE
    missed = judged(found)
    product: Any = "not read: pynvml is not installed"
    if importlib.util.find_spec("pynvml"):
        product = _by_product(by_torch["uuid"])
    print(f"NVML: {found}; the product's reading: {product}")
    missed += [] if isinstance(product, str) else judged({**found, **product}, by="the product: ")
    return {**found, "product": product, "missed": missed}


def _taking(look: Callable[[], tuple[int, int | None]]) -> dict[str, Any]:
    """What ``look`` says (bytes in use on the device, and by this process) before and after memory is taken."""
    import torch

    torch.zeros(1, device="cuda")  # the context is made before the first look
    torch.cuda.synchronize()
    before, _ = look()
    block = torch.empty(TAKEN, dtype=torch.uint8, device="cuda").fill_(1)
    torch.cuda.synchronize()
    after, mine = look()
    del block
    torch.cuda.empty_cache()
    return {"grown": after - before, "mine": mine}


def _seen(library: Nvml, handle: ctypes.c_void_p) -> dict[str, Any]:
    """By NVML."""
    seen = _taking(lambda: (library.memory(handle)[1], library.processes(handle).get(os.getpid())))
    return {"uuid": library.uuid(handle), "name": library.name(handle), "total": library.memory(handle)[0], **seen}


def _by_product(uuid: str) -> dict[str, Any]:
    """The same by what the device plugin of Kubernetes reads: MiB of processes, and nothing of the device as a whole."""
    from tidewright.kube.node.nvidia import NvidiaGpus

    gpus = NvidiaGpus()
    gpu = next((one for one in gpus.found() if one.uuid == uuid), None)
    if gpu is None:
        return {"uuid": "", "uuids": [one.uuid for one in gpus.found()]}

    def look() -> tuple[int, int | None]:
        used = {one.pid: one.mib << 20 for one in gpus.uses() if one.gpu == gpu.index}
        return 0, used.get(os.getpid())

    return {"uuid": gpu.uuid, "name": gpu.model, "total": gpu.memory_mib << 20, **_taking(look), "grown": TAKEN}


def judged(found: dict[str, Any], by: str = "") -> list[str]:
    """Where NVML and PyTorch disagree, in words. In a pid namespace of its own a process that is not listed says nothing."""
    told = found["torch"]
    if found.get("uuid") != told["uuid"]:
        return [f"{by}NVML knows {', '.join(found['uuids']) or 'no device'}, and not {told['uuid']}"]
    missed = [] if found["name"] == told["name"] else [f"{by}name {found['name']!r}, by PyTorch {told['name']!r}"]
    if abs(found["total"] / told["total"] - 1) > TOTAL_WITHIN:
        missed.append(f"{by}memory {found['total']} bytes, by PyTorch {told['total']}")
    if found["grown"] < TAKEN:
        missed.append(f"{by}memory in use grew by {found['grown']} bytes when {TAKEN} were taken")
    if found["mine"] is None and not found["own_namespace"]:
        missed.append(f"{by}this process is not listed")
    if found["mine"] is not None and found["mine"] < TAKEN:
        missed.append(f"{by}this process is listed with {found['mine']} bytes and has {TAKEN}")
    return missed
