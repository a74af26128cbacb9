"""How limits of a share of a device meet the variables that a program's user chose. Pure."""

from __future__ import annotations

from collections.abc import Mapping

LIMITS = ("XLA_PYTHON_CLIENT_MEM_FRACTION", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE")
"""Numbers that a user may set lower, and not higher, than the share is."""
FRACTION = "TIDE_GPU_MEMORY_FRACTION"
"""What the wrapper goes by (inject/_tidewright/gpu_memory.py)."""


def within(given: Mapping[str, str], granted: Mapping[str, str]) -> dict[str, str]:
    """The variables of a share for one rank. What the program's user sets lower stays; what is set higher is brought down."""
    own = {name: given[name] for name in LIMITS if name in granted and _number(given.get(name, "")) > 0}
    return {**granted, **{name: text for name, text in own.items() if _number(text) < _number(granted[name])}}


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
