"""Memory that the program has freed and the C library keeps: returned to the system, it is in no image.

Source: malloc_trim(3). What is returned reads as zeros when it is allocated again, as fresh memory does.
"""

from __future__ import annotations

import ctypes

_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""Only glibc has it."""


def trim():
    """Of all threads; others may allocate meanwhile."""
    if _trim is not None:
        _trim(0)
