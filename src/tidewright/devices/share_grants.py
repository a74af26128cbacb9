"""What a share of a device means for its ranks, on CPU slots and on GPUs, and by which means it is enforced. Pure.

Sources: Linux, Documentation/admin-guide/cgroup-v2.rst (cpu.weight, cpu.idle) and sched(7) (SCHED_IDLE); NVIDIA MPS
documentation, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE and CUDA_MPS_CLIENT_PRIORITY (0 normal, 1 below normal; a hint to the driver);
JAX, "GPU memory allocation" (XLA_PYTHON_CLIENT_MEM_FRACTION); TensorFlow, "Use a GPU" (TF_FORCE_GPU_ALLOW_GROWTH); PyTorch,
torch.cuda.set_per_process_memory_fraction, which the launch wrapper calls.
"""

from __future__ import annotations

from pathlib import Path

from .mps import DEFAULT_PIPES, PIPES
from .protocol import COUNTED_ONLY, ShareGrant, ShareMeans, Slice

FRACTION = "TIDE_GPU_MEMORY_FRACTION"
"""What the launch wrapper goes by (launch/inject/_tidewright/gpu_memory.py)."""
PERCENTAGE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
PRIORITY, BELOW_NORMAL = "CUDA_MPS_CLIENT_PRIORITY", "1"
XLA_FRACTION = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MIB = 2**20

_SLOT_COMPUTE = (
    ShareMeans("cpu weights", "compute in proportion to the slot's other shares while these want it, by CPU weights of "
               "control groups", "cpu weights"),
    ShareMeans(COUNTED_ONLY, "compute counted, not enforced: no control group with CPU weights can be made here"),
)  # fmt: skip
_SLOT_MEMORY = (ShareMeans(COUNTED_ONLY, "counted, not enforced: CPU slots share the memory of their host"),)
_SLOT_BEST_EFFORT = (
    ShareMeans("idle group", "best effort: runs in CPU time that nothing else wants, by an idle control group",
               "idle groups"),
    ShareMeans("least weight", "best effort: runs in CPU time that little else wants, by a control group of least weight",
               "cpu weights"),
    ShareMeans("idle policy", "best effort: runs in CPU time that little else wants, by the scheduling policy SCHED_IDLE"),
)  # fmt: skip
_SLOT_FIRST = (ShareMeans("idle sharers", "goes before best-effort shares of the slot, which run in idle CPU time"),)
_GPU_MEMORY = (ShareMeans("framework limits", "limited in PyTorch and JAX, for each process"),)
_NO_MPS = "no CUDA MPS control daemon runs here, and the driver gives all processes on a device equal time slices"


def slot_grant(part: Slice) -> ShareGrant:
    """Of a CPU slot."""
    best_effort = part.share_class == "be"
    return ShareGrant(
        weight=max(1, part.set_aside // part.ranks) if part.set_aside else 0,
        idle=best_effort,
        compute=_SLOT_COMPUTE if part.set_aside else (),
        memory=_SLOT_MEMORY if part.memory else (),
        share_class=_SLOT_BEST_EFFORT if best_effort else _SLOT_FIRST if part.set_aside else (),
    )


def gpu_grant(part: Slice, device_memory: int, mps: Path | None) -> ShareGrant:
    """Of a GPU with ``device_memory`` bytes. ``mps``: the folder in which a control daemon answers; None: none does."""
    best_effort = part.share_class == "be"
    env = memory_variables(part.memory, device_memory, part.ranks)
    if best_effort:
        env[PRIORITY] = BELOW_NORMAL
    elif part.compute:
        env |= compute_variable(part.compute, part.ranks)
    if mps is not None and str(mps) != DEFAULT_PIPES:
        env[PIPES] = str(mps)
    return ShareGrant(
        env=env,
        compute=(_gpu_compute(part, mps),) if part.set_aside else (),
        memory=_GPU_MEMORY if part.memory else (),
        share_class=(_gpu_class(best_effort, mps),) if best_effort or part.set_aside else (),
    )


def _gpu_compute(part: Slice, mps: Path | None) -> ShareMeans:
    if mps is None:
        return ShareMeans(COUNTED_ONLY, f"compute counted, not enforced: {_NO_MPS}")
    percent = compute_variable(part.compute, part.ranks).get(PERCENTAGE, "100")
    return ShareMeans("mps", f"compute by CUDA MPS: at most {percent} % of the multiprocessors for each process")


def _gpu_class(best_effort: bool, mps: Path | None) -> ShareMeans:
    name, level = ("best effort", "below normal") if best_effort else ("before best-effort shares", "normal")
    if mps is None:
        return ShareMeans(COUNTED_ONLY, f"{name}: not enforced, {_NO_MPS}")
    return ShareMeans("mps priority", f"{name}: {level} client priority of CUDA MPS, a hint to the driver")


def fraction(share: int, device: int, ranks: int = 1) -> float:
    """The part of a device that each of ``ranks`` processes may have of a share (bytes of ``device`` bytes), down to a
    thousandth: never more than was granted. 0: no limit."""
    if share <= 0 or device <= 0:
        return 0.0
    part = share * 1000 // (device * max(1, ranks)) / 1000
    return max(part, 0.001) if part < 1 else 0.0


def memory_variables(share: int, device: int, ranks: int = 1) -> dict[str, str]:
    """What keeps frameworks to a share of a device's memory; nothing for one of all of it."""
    part = fraction(share, device, ranks)
    if not part:
        return {}
    return {
        FRACTION: f"{part}",
        "TIDEWRIGHT_GPU_MEMORY_FRACTION": f"{part}",
        "TIDEWRIGHT_GPU_MEMORY_MIB": f"{share // max(1, ranks) // _MIB}",
        XLA_FRACTION: f"{part}",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }


def compute_variable(milli: int, ranks: int = 1) -> dict[str, str]:
    """What keeps each of ``ranks`` processes to a share of a device's compute where CUDA MPS runs ("Volta MPS execution resource
    provisioning"); without MPS nothing reads it."""
    if not 0 < milli < 1000:
        return {}
    return {PERCENTAGE: f"{max(milli / max(1, ranks) / 10, 0.1):g}"}
