"""Messages from one rank to another. One that has not met its counterpart when connections are dropped is posted again
afterwards, so that nobody need be waited for who will send, or receive, only much later.

That holds for gloo, where an operation that was not met has done nothing yet. On NCCL later kernels are queued behind
it; there both ends are brought to the same count, as for a collective.
"""

from __future__ import annotations

import threading
import weakref

import torch.distributed as dist

from . import page as pg
from . import splice
from .here import here
from .work import Work
from .world import ident


class Channel:
    """What goes between this rank and a peer in one direction: where it is counted, and how far it is."""

    def __init__(self, group, kind, peer):
        me = group.rank()
        self.number = self.done = 0
        if kind & 15 == pg.ANY:
            whole = len(group.ranks) == group.world.size
            members = () if whole else group.ranks
            self.at = here.enlist(self, ident(group.ident, "any", me), kind, len(group.ranks), members)
        else:
            ends = (me, peer) if kind & 15 == pg.SEND else (peer, me)
            self.at = here.enlist(self, ident(group.ident, *ends), kind, group.ranks[peer])

    def begin(self):
        """Count one more; returns what ``here.stop`` takes."""
        self.number += 1
        here.words[self.at + pg.ISSUED] = self.number
        return self.at, self.number


class Channels:
    """The channels of a group and what is posted on them."""

    def __init__(self, group):
        self.group = weakref.proxy(group)
        self._channels = {}
        self.counts = {}
        """How many were issued, by kind, peer and tag."""
        self.taken = {}
        """How many receives from anybody were met, by peer and tag."""
        self.posted = weakref.WeakValueDictionary()
        self._posts = 0

    def _channel(self, kind, peer):
        found = self._channels.get((kind, peer))
        if found is None:
            found = self._channels[kind, peer] = Channel(self.group, kind, peer)
        return found

    def post(self, kind, tensors, peer, tag):
        """Issue a message, as soon as a cut allows it."""
        group = self.group
        if group.coalescing:
            return _call(group.inner(), kind, tensors, peer, tag)
        paired = group.devices.get(tensors[0].device.type) == "nccl"
        channel = self._channel(kind | pg.PAIRED if paired else kind, peer)
        want = channel.begin()
        if here.words[pg.HOLD] or here.down:
            here.stop([want])
        try:
            inner = _call(group.inner(), kind, tensors, peer, tag)
        except BaseException:
            channel.number = here.words[channel.at + pg.ISSUED] = channel.number - 1
            raise
        if paired:
            work = Work(inner, group, channel.number)
            group.live.add(work)
        else:
            work = self._message(inner, kind, tensors, peer, tag, channel)
        channel.done = channel.number
        return work

    def _message(self, inner, kind, tensors, peer, tag, channel):
        count = self.counts[kind, peer, tag] = self.counts.get((kind, peer, tag), 0) + 1
        work = Message(self, inner, kind, tensors, peer, tag, count, channel)
        self._posts += 1
        self.posted[self._posts] = work
        return work

    def batch(self, device, operations):
        """Several messages that NCCL must start together. ``operations``: kind, tensor, peer and tag of each."""
        group = self.group
        channels = [self._channel(kind | pg.PAIRED, peer) for kind, _, peer, _ in operations]
        wants = [channel.begin() for channel in channels]
        if here.words[pg.HOLD] or here.down:
            here.stop(wants)
        inner = group.inner()
        inner._start_coalescing(device)
        for kind, tensor, peer, tag in operations:
            _call(inner, kind, [tensor], peer, tag)
        work = Work(inner._end_coalescing(device), group, wants[0][1])
        group.live.add(work)
        for channel in channels:
            channel.done = channel.number
        return work

    def settled(self):
        """Whether every message that is counted has been posted."""
        words = here.words
        return all(channel.done == words[channel.at + pg.ISSUED] for channel in self._channels.values())

    def drop(self):
        """Let go of connections; what is posted stays on the list."""
        for message in list(self.posted.values()):
            message.inner = None

    def repost(self):
        """Post again, in the old order, what was not met."""
        inner = self.group.inner()
        for _, message in sorted(self.posted.items()):
            if not message.complete:
                message.unmet = False
                message.inner = _call(inner, message.kind, message.tensors, message.peer, message.tag)

    def finished(self, message):
        """A message was met."""
        for key, found in list(self.posted.items()):
            if found is message:
                del self.posted[key]
        if message.kind == pg.ANY:
            key = message.source, message.tag
            self.taken[key] = self.taken.get(key, 0) + 1

    def gone(self):
        """The group is destroyed."""
        for channel in self._channels.values():
            here.retire(channel.at)

    def tally(self):
        """All counts, for the ranks at the other ends. ``posted``: receives that were not met yet."""
        posted = {}
        for message in list(self.posted.values()):
            if message.kind != pg.SEND and not message.complete:
                key = message.kind, message.peer, message.tag
                posted[key] = posted.get(key, 0) + 1
        return {
            "posted": [[*key, count] for key, count in posted.items()],
            "issued": [[*key, count] for key, count in self.counts.items()],
            "taken": [[*key, count] for key, count in self.taken.items()],
        }


def _call(inner, kind, tensors, peer, tag):
    if kind == pg.SEND:
        return inner.send(tensors, peer, tag)
    if kind == pg.RECV:
        return inner.recv(tensors, peer, tag)
    return inner.recv_anysource(tensors, tag)


class Message(dist.Work):
    """One send or receive. ``count``: the how-manieth of its kind, peer and tag."""

    def __init__(self, channels, inner, kind, tensors, peer, tag, count, channel):
        super().__init__()
        self._channels = channels
        self.inner, self.kind, self.tensors, self.peer, self.tag, self.count = inner, kind, tensors, peer, tag, count
        self._waiting_at, self._number = channel.at + pg.WAITING, channel.number
        self.lock = threading.Lock()
        self.complete = False
        self.unmet = False
        """Whether it is certain that no message for it is on its way."""
        self.source = peer
        self._error = None

    def wait(self, timeout=None):
        """As torch's Work. Connections may come and go meanwhile; ``timeout`` starts again when they do."""
        while not self.complete:
            if self.inner is None:
                here.await_up()
            with self.lock:
                self.attempt(timeout)
        if self._error is not None:
            raise self._error
        return True

    def attempt(self, timeout=None):
        """Wait until it is met or connections are dropped. The caller has the lock."""
        inner, downs = self.inner, here.downs
        if self.complete:
            return
        if inner is None:
            if not here.falling(downs):
                self._fail(here.failed or RuntimeError("the process group of this message is destroyed"))
            return
        here.words[self._waiting_at] = self._number
        splice.give_up()
        failure = None
        try:
            inner.wait(timeout) if timeout else inner.wait()
            if self.kind != pg.SEND:
                self.source = inner._source_rank()
        except RuntimeError as error:
            failure = error
        met = failure is None and self.inner is inner and not self.unmet
        if self.inner is inner:
            self.inner = None
        del inner
        here.words[self._waiting_at] = 0
        splice.take()
        if met:
            self._end()
        elif failure is not None and not here.falling(downs):
            self._fail(failure)  # otherwise it was dropped, or woken by a message that means nothing: posted again

    def _fail(self, error):
        self._error = error
        self._end()

    def _end(self):
        self.complete = True
        self._channels.finished(self)

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
