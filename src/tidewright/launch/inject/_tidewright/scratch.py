"""The buckets in which DDP's reducer averages gradients: between two backward passes nobody reads what is in them.

Each pass writes all of a bucket before anything reads it (torch/csrc/distributed/c10d/reducer.cpp), so memory given back then,
which reads as zeros (MADV_DONTNEED in madvise(2)), changes nothing, and is in no image. Only where that is certain: for a
tensor of the CPU that fills its storage; that the engine's own C++ has had reduced, with no Python between, in two passes
or more, always of one thread; while that thread stands where a step begins, outside of any pass; and in a program that no
DDP of lets gradients lie in the buckets themselves.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import threading

import torch
from torch.autograd import graph
from torch.multiprocessing.reductions import StorageWeakRef

PASSES = 2
CROWD = 1000
"""Buckets known, above which those are forgotten that are no more."""
_ENGINE = getattr(getattr(graph, "_engine_run_backward", None), "__code__", None)
_pass = getattr(torch._C, "_current_graph_task_id", None)
_libc = ctypes.CDLL(None)

buckets = {}
"""By address."""
kept = None
"""Whether a DDP has gradients in its buckets; None as long as there is no DDP."""


class Bucket:
    """A storage, without keeping it, and the backward passes in which it was reduced. ``thread`` 0: of several threads."""

    def __init__(self, storage, thread):
        self.ref, self.address, self.size = StorageWeakRef(storage), storage.data_ptr(), storage.nbytes()
        self.thread, self.passes, self.last = thread, 0, -1

    def count(self, number, thread):
        """It is reduced in a pass."""
        if thread != self.thread:
            self.thread = 0
        if number != self.last:
            self.passes, self.last = self.passes + 1, number

    def storage(self):
        """None when it is no more, or is another by now."""
        found = torch.UntypedStorage._new_with_weak_ptr(self.ref.cdata)
        same = found is not None and (found.data_ptr(), found.nbytes()) == (self.address, self.size)
        return found if same else None


def reducer(views):
    """A DDP is made."""
    global kept
    kept = bool(kept) or views


def reduced(args):
    """Called by the group's own method, with the arguments of an allreduce."""
    if kept is not False or _ENGINE is None or _pass is None:
        return
    caller = sys._getframe(1).f_back  # none in a thread of the engine's own, which works for other devices
    if caller is None or caller.f_code is not _ENGINE:
        return
    tensor = args[0][0] if isinstance(args[0], list) and len(args[0]) == 1 else None
    if tensor is None or tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.dim() != 1:
        return
    storage = tensor.untyped_storage()
    if tensor.nbytes == storage.nbytes():
        _known(storage).count(_pass(), threading.get_ident())


def _known(storage):
    found = buckets.get(storage.data_ptr())
    if found is None or found.ref.cdata != storage._cdata:
        if len(buckets) > CROWD:
            _forget()
        found = buckets[storage.data_ptr()] = Bucket(storage, threading.get_ident())
    return found


def _forget():
    for address, bucket in list(buckets.items()):
        if bucket.ref.expired():
            del buckets[address]


def drop(thread):
    """Give back the buckets of ``thread``, which stands where a step begins and outside of any pass. Returns bytes."""
    if kept is not False:
        return 0
    given = 0
    for bucket in list(buckets.values()):
        if bucket.thread != thread or bucket.passes < PASSES:
            continue
        storage = bucket.storage()
        if storage is not None and not storage.is_shared():
            given += _give_back(bucket.address, bucket.size)
    return given


def _give_back(address, size):
    """The pages that lie wholly within."""
    begin = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - begin
    if length <= 0 or _libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(length), mmap.MADV_DONTNEED):
        return 0
    return length
