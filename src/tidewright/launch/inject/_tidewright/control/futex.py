"""Waiting on a word of shared memory without a timer, and the fence that makes the cut's reads and writes meet.

futex(2) and membarrier(2) through the C library's ``syscall``, which lets other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
import errno
import platform

_NUMBERS = {"x86_64": (202, 324), "aarch64": (98, 283)}
_FUTEX, _MEMBARRIER = _NUMBERS.get(platform.machine(), (0, 0))
_WAIT, _WAKE = 0, 1
_GLOBAL, _GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 1, 2, 4

_libc = ctypes.CDLL(None, use_errno=True)


def address_of(memory, offset):
    """Where byte ``offset`` of a writable mapping lies."""
    return ctypes.addressof(ctypes.c_char.from_buffer(memory, offset))


def wait(address, value):
    """Sleep until another thread wakes ``address``, unless its 32 bits differ from ``value`` already."""
    done = _libc.syscall(_FUTEX, ctypes.c_void_p(address), _WAIT, ctypes.c_uint32(value), None, None, 0)
    if done and ctypes.get_errno() not in (errno.EAGAIN, errno.EINTR):
        raise OSError(ctypes.get_errno(), "futex")


def wake(address):
    """Wake all threads that sleep on ``address``."""
    _libc.syscall(_FUTEX, ctypes.c_void_p(address), _WAKE, ctypes.c_int(0x7FFFFFFF), None, None, 0)


def register():
    """Take part in other processes' quick fences. False where the kernel has none (Linux before 4.16)."""
    return bool(_MEMBARRIER) and _libc.syscall(_MEMBARRIER, _REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0


def fence(quick):
    """Every running thread passes a memory barrier; with ``quick`` only those of processes that have registered.

    Costs some 10 microseconds when quick, some 10 milliseconds otherwise. False where the kernel offers none.
    """
    return bool(_MEMBARRIER) and _libc.syscall(_MEMBARRIER, _GLOBAL_EXPEDITED if quick else _GLOBAL, 0, 0) == 0
