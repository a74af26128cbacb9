"""runtime: one accelerator shared by kernels. One real-time queue and many best-effort queues; best-effort work stops when
real-time work arrives and resumes exactly where it was.

Refuses to know jobs, nodes and the pool: who may be real-time here was decided above. torch, triton and CUDA are imported when
a device is opened.
"""

from ..base.lazy import lazy_attribute

MAY_IMPORT = ("base", "model", "devices", "report")

_LAZY = {"Runtime": "embedded", "RuntimeClient": "client"}
"""Loaded at first use: they bring numpy."""


def __getattr__(name: str) -> object:
    return lazy_attribute(__name__, _LAZY, name)
