"""Shared memory that no process can shrink under another: anonymous files with seals (memfd_create(2), F_SEAL_SHRINK).

A client that could truncate a file which the runtime has mapped would end the runtime with SIGBUS.
"""

from __future__ import annotations

import fcntl
import mmap
import os

from ...base.errors import UsageError

_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def create(name: str, size: int) -> int:
    """A sealed anonymous file of ``size`` bytes, zeroed; returns its descriptor, which the caller closes."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, max(size, 1))
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
    return descriptor


def attach(descriptor: int, size: int) -> mmap.mmap:
    """Map ``size`` bytes for reading and writing. Raises UsageError unless the file is sealed and that large."""
    if fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS != _SEALS:
        raise UsageError("shared memory without seals", "map what this runtime has made")
    if os.fstat(descriptor).st_size < max(size, 1):
        raise UsageError("shared memory that is too small", "map what this runtime has made")
    return mmap.mmap(descriptor, max(size, 1), mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)
