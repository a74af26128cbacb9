"""Messages from one rank to another: how they are counted, and how one comes and goes with its connections.

A message that has not met its counterpart when connections are dropped is posted again afterwards, so that no rank need be
waited for which will send, or receive, only much later. That holds for gloo, where an operation that was not met has done
nothing yet. On NCCL later kernels are queued behind it (``messages``); there both ends are brought to the same count, as for a
collective. No torch here.
"""

from __future__ import annotations

import threading
import weakref

from . import page as pg
from . import splice
from .control.op_stream import OpStream, ident


def channel(group, kind, peer):
    """The stream of what goes between this rank and a peer in one direction."""
    me = group.rank()
    if kind & 15 == pg.ANY:
        whole = len(group.ranks) == group.world.size
        return OpStream(
            group.control, ident(group.ident, "any", me), kind, len(group.ranks), () if whole else group.ranks
        )
    ends = (me, peer) if kind & 15 == pg.SEND else (peer, me)
    return OpStream(group.control, ident(group.ident, *ends), kind, group.ranks[peer])


class Channels:
    """The channels of a group and what is posted on them. ``make_message`` makes one of ``Posted`` (see there)."""

    def __init__(self, group, make_message):
        self.group, self._make_message = weakref.proxy(group), make_message
        self._channels = {}
        self.counts = {}
        """How many were issued, by kind, peer and tag."""
        self.taken = {}
        """How many receives from anybody were met, by peer and tag."""
        self.posted = weakref.WeakValueDictionary()
        self._posts = 0

    def channel(self, kind, peer):
        """The stream of that kind and peer."""
        found = self._channels.get((kind, peer))
        if found is None:
            found = self._channels[kind, peer] = channel(self.group, kind, peer)
        return found

    def post(self, kind, tensors, peer, tag):
        """Issue a message, as soon as a cut allows it."""
        stream = self.channel(kind, peer)
        stream.announce()
        try:
            inner = call(self.group.inner(), kind, tensors, peer, tag)
        except BaseException:
            stream.retract()
            raise
        count = self.counts[kind, peer, tag] = self.counts.get((kind, peer, tag), 0) + 1
        message = self._make_message(self, inner, kind, tensors, peer, tag, count, stream)
        self._posts += 1
        self.posted[self._posts] = message
        stream.done = stream.number
        return message

    def settled(self):
        """Whether every message that is counted has been posted."""
        return all(stream.settled() for stream in list(self._channels.values()))

    def resume(self):
        """Connections stay after all: messages may come again."""
        for message in list(self.posted.values()):
            message.unmet = False

    def drop(self):
        """Release connections; what is posted stays on the list."""
        for message in list(self.posted.values()):
            message.inner = None

    def repost(self):
        """Post again, in the old order, what was not met."""
        inner = self.group.inner()
        for _, message in sorted(self.posted.items()):
            if not message.complete:
                message.unmet = False
                message.inner = call(inner, message.kind, message.tensors, message.peer, message.tag)

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
        for stream in self._channels.values():
            stream.unregister()

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


def call(inner, kind, tensors, peer, tag):
    """Post a message on the group that does the work."""
    if kind == pg.SEND:
        return inner.send(tensors, peer, tag)
    if kind == pg.RECV:
        return inner.recv(tensors, peer, tag)
    return inner.recv_anysource(tensors, tag)


class Posted:
    """One send or receive. ``count``: the how-manieth of its kind, peer and tag; ``inner``: the operation under way, None
    while there are no connections."""

    def __init__(self, channels, inner, kind, tensors, peer, tag, count, stream):
        super().__init__()
        self._channels = channels
        self.inner, self.kind, self.tensors, self.peer, self.tag, self.count = inner, kind, tensors, peer, tag, count
        self._control = stream.control
        self._waiting_at, self._number = stream.at + pg.WAITING, stream.number
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
                self._control.await_connected()
            with self.lock:
                self.attempt(timeout)
        if self._error is not None:
            raise self._error
        return True

    def attempt(self, timeout=None):
        """Wait until it is met or connections are dropped. The caller has the lock."""
        control = self._control
        inner, count = self.inner, control.disconnect_count
        if self.complete:
            return
        if inner is None:
            if not control.disconnecting(count):
                self._fail(control.failure or RuntimeError("the process group of this message is destroyed"))
            return
        control.words[self._waiting_at] = self._number
        splice.release()
        failure = None
        try:
            inner.wait(timeout) if timeout else inner.wait()
            if self.kind != pg.SEND:
                self.source = inner._source_rank()
        except RuntimeError as error:
            failure = error
        dropped = self.inner is not inner
        if not dropped:
            self.inner = None
        del inner
        met = failure is None and not dropped and self._meant(count)
        control.words[self._waiting_at] = 0
        splice.acquire()
        if met:
            self._end()
        elif failure is not None and not control.disconnecting(count):
            self._fail(failure)  # otherwise it was dropped, or woken by a message that means nothing: posted again

    def _meant(self, disconnect_count):
        """Whether what came is the message. When none was on its way, that is seen by what follows: connections that are
        dropped."""
        control = self._control
        with control.cond:
            while self.unmet and control.disconnect_count == disconnect_count:
                control.cond.wait()
        return control.disconnect_count == disconnect_count

    def _fail(self, error):
        self._error = error
        self._end()

    def _end(self):
        self.complete = True
        self._channels.finished(self)
