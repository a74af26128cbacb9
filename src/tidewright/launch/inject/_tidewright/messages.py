"""Messages as torch sees them (``channels`` does the work), and those over NCCL, which cannot be posted again."""

from __future__ import annotations

import torch.distributed as dist

from . import channels
from . import page as pg
from .control.op_stream import announce_together
from .work import Work


class TorchChannels(channels.Channels):
    """The channels of a group of torch's."""

    def __init__(self, group):
        super().__init__(group, Message)

    def post(self, kind, tensors, peer, tag):
        """Issue a message, as soon as a cut allows it."""
        group = self.group
        if group.coalescing:
            return channels.call(group.inner(), kind, tensors, peer, tag)
        if group.devices.get(tensors[0].device.type) != "nccl":
            return super().post(kind, tensors, peer, tag)
        stream = self.channel(kind | pg.PAIRED, peer)
        stream.announce()
        try:
            work = Work(channels.call(group.inner(), kind, tensors, peer, tag), group, stream.number)
        except BaseException:
            stream.retract()
            raise
        group.live.add(work)
        stream.done = stream.number
        return work

    def batch(self, device, operations):
        """Several messages that NCCL must start together. ``operations``: kind, tensor, peer and tag of each."""
        group = self.group
        streams = [self.channel(kind | pg.PAIRED, peer) for kind, _, peer, _ in operations]
        first = announce_together(streams)
        inner = group.inner()
        inner._start_coalescing(device)
        for kind, tensor, peer, tag in operations:
            channels.call(inner, kind, [tensor], peer, tag)
        work = Work(inner._end_coalescing(device), group, first)
        group.live.add(work)
        for stream in streams:
            stream.done = stream.number
        return work


class Message(channels.Posted, dist.Work):
    """One send or receive."""

    def is_completed(self):
        """As torch's Work."""
        return self.complete

    def is_success(self):
        """As torch's Work."""
        return self.complete and self._error is None

    def exception(self):
        """As torch's Work."""
        return self._error

    def source_rank(self):
        """As torch's Work."""
        return self.source

    _source_rank = source_rank

    def result(self):
        """As torch's Work."""
        return self.tensors

    def synchronize(self):
        """As torch's Work."""
