"""Tidewright: a scheduler for GPU datacenters.

One pool, one queue, one priority from the cluster queue down to the kernel queue. The package is split into rooms
(sub-packages); each room's ``MAY_IMPORT`` card names the rooms it may import, and ``tests/rooms`` enforces it.
Names below are loaded on first use, so that ``import tidewright`` stays cheap.
"""

from __future__ import annotations

from typing import Any

from .base.lazy import lazy_attribute

__version__ = "0.1.0"

_LAZY = {"Client": "wire.client", "JobSpec": "model.job"}

__all__ = ["Client", "JobSpec", "__version__"]


def __getattr__(name: str) -> Any:
    return lazy_attribute(__name__, _LAZY, name)
