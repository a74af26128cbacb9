"""The limit on a process's device memory in PyTorch: set when CUDA is initialised, and not raised by the program.

Source: torch.cuda.set_per_process_memory_fraction. It holds for what torch's caching allocator takes; what CUDA itself takes
(its context, libraries' workspaces) comes on top, and the node's watchdog sees it.
"""

import functools
import os
import sys

VARIABLE = "TIDE_GPU_MEMORY_FRACTION"


def fraction():
    """The part of each device that this process may have; None without a limit."""
    try:
        part = float(os.environ.get(VARIABLE, ""))
    except ValueError:
        return None
    return part if 0 < part < 1 else None


def limit(cuda):
    """torch.cuda, when its import is complete: CUDA is not touched before the program does so."""
    part = fraction()
    if part is None:
        return
    try:
        original = cuda.set_per_process_memory_fraction
        cuda._lazy_call(functools.partial(_apply, cuda, original, part))
        capped = _capped(original, part)
        cuda.set_per_process_memory_fraction = capped
        memory = getattr(cuda, "memory", None)
        if getattr(memory, "set_per_process_memory_fraction", None) is original:
            memory.set_per_process_memory_fraction = capped
    except Exception as error:
        _warn(error)


def _apply(cuda, set_fraction, part):
    """CUDA has just been initialised."""
    try:
        for index in range(cuda.device_count()):
            set_fraction(part, index)
    except Exception as error:
        _warn(error)


def _capped(original, part):
    @functools.wraps(original)
    def set_per_process_memory_fraction(fraction, device=None):
        return original(min(fraction, part), device)

    return set_per_process_memory_fraction


def _warn(error):
    """The program is not to fail for it; the watchdog still looks."""
    sys.stderr.write(f"tidewright: PyTorch's memory limit could not be set: {type(error).__name__}: {error}\n")
