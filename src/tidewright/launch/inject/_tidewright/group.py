"""The process group that a program gets: counts what it issues, and has the work done by a group that can be replaced.

It is a ``dist.ProcessGroup`` in C++ as well as in Python: DDP's reducer calls it as any other.
"""

from __future__ import annotations

import contextlib
import types

import torch
import torch.distributed as dist

from . import backend_group, splice
from . import page as pg
from .control.op_stream import OpStream, ident
from .messages import TorchChannels
from .process_control import control
from .work import Work

CROWD = 16
"""Operations not waited for, above which the complete ones are looked for."""


class Group(dist.ProcessGroup):
    """``world``: whose group it is; ``ranks``: its members as ranks of the world; ``devices``: backend by device type."""

    def __init__(self, world, rank, ranks, name, devices, timeout, options=None, desc="undefined", device_id=None):
        super().__init__(rank, len(ranks))
        self.world, self.ranks, self.name_, self.desc = world, tuple(ranks), name, desc
        self.devices, self.timeout, self.asked = dict(devices), timeout, options
        self.options = types.SimpleNamespace(_timeout=timeout)  # torch notes names and ranks there
        if device_id is not None:
            self.bound_device_id = device_id
        self.queued = "nccl" in self.devices.values()
        """Whether waiting for an operation may mean to queue something behind it, instead of its completion."""
        whole = len(ranks) == world.size
        nth = world.count(name, ranks)
        self.ident = ident(world.name, name, *ranks, nth)
        self.key = f"{world.name}/groups/{name}/{self.ident:x}"
        self.control = control
        self.stream = OpStream(control, self.ident, pg.GROUP, len(ranks), () if whole else tuple(ranks))
        self.at = self.stream.at
        self._inner = None
        self.without = []
        """Its ranks that have ended; it is not connected any more then."""
        self.store = None
        """Where the inner group's ranks find each other."""
        self.sockets = set()
        """What must be closed when the group stands still. gloo closes a little after it was released."""
        self.coalescing = False
        self.live = set()
        """Works that may be incomplete, and those whose wait has not been called yet."""
        self.kept = set()
        """Works of which C++ holds no more than the part that is not Python."""
        self.channels = TorchChannels(self)
        self._create()

    def _create(self):
        """Being created counts as the first operation, as every member must take part in it."""
        control.groups.append(self)
        number = self.stream.announce()
        try:
            self._inner, self.sockets = backend_group.make(self, 0)
        except BaseException:
            control.groups.remove(self)
            self.stream.unregister()
            raise
        self.stream.done = number

    def issue(self, method, args, kwargs):
        """Have the inner group do an operation that all members issue in the same order."""
        if self.coalescing:
            return getattr(self._inner, method)(*args, **kwargs)
        stream = self.stream
        number = stream.announce()
        try:
            found = getattr(self._inner or self.inner(), method)(*args, **kwargs)
        except BaseException:
            stream.retract()
            raise
        work = None
        if found is not None:
            work = Work(found, self, number)
            live = self.live
            live.add(work)
            if len(live) > CROWD:
                self._prune()
        stream.done = number
        if splice.active():
            splice.after_backward(_finish)
        return work

    def inner(self):
        """The group that does the work. Raises when it could not be built again."""
        if self._inner is None:
            ended = self.without and f"ranks {self.without} of the world have ended"
            raise RuntimeError(f"this process group is not connected: {ended or control.failure or 'destroyed'}")
        return self._inner

    def settled(self):
        """Whether everything issued is complete and refers to no connection. Called by the thread that prepares a cut."""
        if not self.stream.settled() or not self.channels.settled():
            return False
        if self.live and self.queued:
            torch.cuda.synchronize()
        return self._prune()

    def _prune(self):
        done = [work.settled() for work in list(self.live)]
        return all(done)

    @property
    def made(self):
        """Whether it was connected, and not only stopped at its creation."""
        return self.stream.done > 0

    def drop(self):
        """Release all connections."""
        inner, self._inner = self._inner, None
        self.channels.drop()
        if inner is not None:
            backend_group.close(inner)

    def build(self, build):
        """Connect again, and repeat what was posted and not met."""
        self._inner, self.sockets = backend_group.make(self, build)
        self.channels.repost()

    def forked(self):
        """In a forked child this group is unusable, as torch's own would be."""
        self.live = set()

    def shutdown(self):
        """As torch's ProcessGroup: the group is destroyed."""
        if self in control.groups:
            control.groups.remove(self)
        control.closing |= self.sockets
        self.stream.unregister()
        self.channels.gone()
        self.finish_quietly()
        self.drop()

    abort = shutdown

    def finish_quietly(self):
        """Wait for its operations and ignore their errors: the group is being destroyed."""
        if self.queued:
            self.live.clear()
            return
        for work in list(self.live):
            with contextlib.suppress(RuntimeError):
                work.wait()

    # Names and properties that torch asks for.

    def name(self):
        """As torch's ProcessGroup. To C++ it stays undefined: DDP's logger would look for a gloo group of its own."""
        return "nccl" if self.queued else "gloo"

    def getGroupName(self):  # noqa: N802
        """As torch's ProcessGroup."""
        return self.name_

    def setGroupName(self, name):  # noqa: N802
        """As torch's ProcessGroup."""
        self.name_ = name

    def getGroupDesc(self):  # noqa: N802
        """As torch's ProcessGroup."""
        return self.desc

    def setGroupDesc(self, desc):  # noqa: N802
        """As torch's ProcessGroup."""
        self.desc = desc

    @property
    def _device_types(self):
        return [torch.device(device) for device in self.devices]

    def _get_backend(self, device):
        if device.type not in self.devices:
            raise RuntimeError(f"No backend type associated with device type {device.type}")
        return BackendView(self, device)

    def _get_sequence_number_for_group(self):
        return self.stream.number

    def _set_sequence_number_for_group(self):
        pass

    def _has_hooks(self):
        return False

    def _wait_for_pending_works(self):
        pass

    def get_group_store(self):
        """As torch's ProcessGroup."""
        return self.store

    def set_timeout(self, timeout):
        """As torch's ProcessGroup. Holds for later builds too."""
        self.timeout = timeout
        for device in self.devices:
            backend_group._limit(self.inner()._get_backend(torch.device(device)), timeout)

    # Operations that are not collectives.

    def send(self, tensors, peer, tag=0):
        """As torch's ProcessGroup."""
        return self.channels.post(pg.SEND, tensors, peer, tag)

    def recv(self, tensors, peer, tag=0):
        """As torch's ProcessGroup."""
        return self.channels.post(pg.RECV, tensors, peer, tag)

    def recv_anysource(self, tensors, tag=0):
        """As torch's ProcessGroup."""
        return self.channels.post(pg.ANY, tensors, -1, tag)

    def _start_coalescing(self, device):
        """What follows until ``_end_coalescing`` counts as one operation."""
        self.stream.done = self.stream.announce() - 1
        self.inner()._start_coalescing(device)
        self.coalescing = True

    def _end_coalescing(self, device):
        self.coalescing = False
        found = self.inner()._end_coalescing(device)
        self.stream.done = self.stream.number
        work = Work(found, self, self.stream.number)
        self.live.add(work)
        return work

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """As torch's ProcessGroup: returns when all are there."""
        number = self.stream.announce()
        try:
            return self.inner().monitored_barrier(timeout, wait_all_ranks)
        finally:
            self.stream.done = number


def _finish():
    """Wait for all that is under way."""
    for group in control.groups:
        for work in list(group.live):
            work.wait()


def _collective(name):
    def method(self, *args, **kwargs):
        return self.issue(name, args, kwargs)

    method.__name__ = name
    method.__doc__ = "As torch's ProcessGroup."
    return method


COLLECTIVES = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base", "all_gather_single",
    "allgather_coalesced", "all_gather_single_coalesced", "allgather_into_tensor_coalesced", "gather", "scatter",
    "reduce_scatter", "reduce_scatter_single", "_reduce_scatter_base", "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced", "all_to_all_single", "alltoall_base", "alltoall", "barrier",
)  # fmt: skip

for _name in COLLECTIVES:
    if hasattr(dist.ProcessGroup, _name):
        setattr(Group, _name, _collective(_name))


class BackendView:
    """What stands for a backend where torch asks for one: answers for itself what would outlive a cut, and passes
    everything else on to the backend in use now."""

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    def __init__(self, group, device):
        self._group, self._device = group, device

    def __getattr__(self, name):
        return getattr(self._group.inner()._get_backend(self._device), name)

    def supports_tensor_alloc(self, device):
        """Memory that belongs to a communicator cannot outlive it."""
        return False
