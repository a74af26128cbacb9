"""Tidewright: a scheduler for GPU datacenters.

One pool, one queue, one priority from the cluster queue down to the kernel queue. The package is split into rooms
(sub-packages); each room's ``MAY_IMPORT`` card names the rooms it may import, and ``tests/rooms`` enforces it.
Names below are loaded on first use, so that ``import tidewright`` stays cheap.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {"Client": "tidewright.wire.client", "JobSpec": "tidewright.model.job"}

__all__ = ["Client", "JobSpec", "__version__"]


def __getattr__(name: str) -> Any:
    module = _LAZY.get(name)
    if module is None:
        raise AttributeError(f"module 'tidewright' has no attribute {name!r}")
    return getattr(import_module(module), name)
