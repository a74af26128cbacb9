"""How a program learns its share of a device's memory: variables that frameworks read, and the wrapper. Pure.

Sources: JAX, "GPU memory allocation" (XLA_PYTHON_CLIENT_MEM_FRACTION); TensorFlow, "Use a GPU" (TF_FORCE_GPU_ALLOW_GROWTH);
PyTorch, torch.cuda.set_per_process_memory_fraction, which the wrapper calls.
"""

from __future__ import annotations

from collections.abc import Mapping

FRACTION = "TIDE_GPU_MEMORY_FRACTION"
"""What the wrapper goes by (inject/_tidewright/gpu_memory.py)."""
MPS = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
"""CUDA Multi-Process Service, "Volta MPS execution resource provisioning"; without MPS nothing reads it."""
_XLA = "XLA_PYTHON_CLIENT_MEM_FRACTION"
_MIB = 2**20


def fraction(share: int, device: int, sharers: int = 1) -> float:
    """The part of a device that each of ``sharers`` processes may have of a share (bytes of ``device`` bytes), down to a
    thousandth: never more than was given. 0: no limit."""
    if share <= 0 or device <= 0:
        return 0.0
    part = share * 1000 // (device * max(1, sharers)) / 1000
    return max(part, 0.001) if part < 1 else 0.0


def variables(given: Mapping[str, str], share: int, device: int, sharers: int = 1) -> dict[str, str]:
    """The variables of one rank. What the program's user sets lower stays; what he sets higher is brought down."""
    part = fraction(share, device, sharers)
    if not part:
        return {}
    found = {
        FRACTION: f"{part}",
        "TIDEWRIGHT_GPU_MEMORY_FRACTION": f"{part}",
        "TIDEWRIGHT_GPU_MEMORY_MIB": f"{share // max(1, sharers) // _MIB}",
        _XLA: f"{part}",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    with_own = _number(given.get(_XLA, ""))
    if 0 < with_own < part:
        found[_XLA] = given[_XLA]
    return found


def compute(given: Mapping[str, str], milli: int, sharers: int = 1) -> dict[str, str]:
    """The variable that holds each of ``sharers`` processes to a share of a device's compute (thousandths; 0: no share) where
    CUDA MPS runs. What the program's user sets lower stays."""
    if not 0 < milli < 1000:
        return {}
    percent = max(milli / max(1, sharers) / 10, 0.1)
    own = _number(given.get(MPS, ""))
    return {MPS: given[MPS] if 0 < own < percent else f"{percent:g}"}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
