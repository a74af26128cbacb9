"""Memory that the program does not need: given back to the system, it is in no image.

That is what the program has freed and the C library keeps (malloc_trim(3); it reads as zeros when it is allocated again, as
fresh memory does), and what ``scratch`` knows of.
"""

from __future__ import annotations

import ctypes
import sys

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Only glibc has it."""


def give_back(standing):
    """``standing``: the thread that stands where a training step begins, or 0. Others may allocate meanwhile."""
    scratch = sys.modules.get(f"{__package__}.scratch")
    if standing and scratch is not None:
        scratch.drop(standing)
    if _trim is not None:
        _trim(0)
