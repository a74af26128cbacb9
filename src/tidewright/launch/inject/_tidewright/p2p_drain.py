"""Before connections are dropped: messages whose two ends are both posted are completed.

The ranks tell each other through the store what they have issued; none issues more meanwhile. A thread that waits to
receive from any source is not woken by connections that close (gloo knows no peer for it), so a peer wakes it with a
message without content; it posts its receive again afterwards.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import threading
import time

from . import page as pg

NAP_S = 0.0005
"""Between two looks at messages that are being completed."""
WAKE_LIMIT = datetime.timedelta(seconds=2)
"""For a message that means nothing. Its connection is dropped next in any case."""


def settle(groups, ticket, anybody, wanted):
    """Complete what can be. ``ticket``: of this cut alone; ``anybody``: some rank receives from any source. Ends early when
    ``wanted()`` is false.

    Returns what is to be called when connections are dropped.
    """
    world = groups[0].world
    _tell(world, ticket, "first", groups)
    heard = _Heard(world, ticket, wanted)
    _finish_with_ended(groups, heard, wanted)
    if anybody:
        for group in groups:
            _settle_anybody(group, heard, wanted)
    _complete([message for group in groups for message in _due_receives(group, heard)], wanted)
    for group in groups:
        for message in _posted(group):
            message.unmet = message.kind != pg.SEND
    if anybody:
        _tell(world, ticket, "final", groups)
    _complete([message for group in groups for message in _due_sends(group, heard, anybody)], wanted)
    return [wake for group in groups for wake in _wakes(group, heard)] if anybody and wanted() else []


def _tell(world, ticket, which, groups):
    counts = {f"{group.ident:x}": group.channels.tally() for group in groups}
    world.tell(f"p2p/{ticket}/{which}/{world.rank}", json.dumps(counts).encode())


class _Heard:
    """What other ranks have counted, asked for when needed."""

    def __init__(self, world, ticket, wanted):
        self._world, self._ticket, self._wanted = world, ticket, wanted
        self._known = {}

    def of(self, group, peer, which, what):
        """Counts of ``peer``, a rank of ``group``, by (kind, peer and tag) or (peer, tag). Empty of one that ended."""
        found = self._asked(group.ranks[peer], which).get(f"{group.ident:x}", {})
        return {tuple(key): count for *key, count in found.get(what, [])}

    def lives(self, group, peer):
        """Whether a rank of ``group`` takes part."""
        return bool(self._asked(group.ranks[peer], "first"))

    def _asked(self, rank, which):
        if (rank, which) not in self._known:
            self._known[rank, which] = self._ask(rank, which)
        return self._known[rank, which]

    def _ask(self, rank, which):
        key = f"p2p/{self._ticket}/{which}/{rank}"
        while self._wanted():
            if self._world.check(key):
                return json.loads(self._world.hear([key])[0])
            if self._world.check(f"ended/{rank}"):
                return {}
            time.sleep(NAP_S)
        return {}


def _posted(group):
    return [message for message in list(group.channels.posted.values()) if not message.complete]


def _finish_with_ended(groups, heard, wanted):
    """What the other end has met before it ended completes now or never: that rank will not connect again."""
    last = [
        message
        for group in groups
        for message in _posted(group)
        if message.kind != pg.ANY and not heard.lives(group, message.peer)
    ]
    _start(last)
    while any(not message.complete and message.inner is not None for message in last) and wanted():
        time.sleep(NAP_S)


def _due_receives(group, heard):
    """Those from known ranks whose message is posted."""
    for message in _posted(group):
        if message.kind == pg.RECV:
            sent = heard.of(group, message.peer, "first", "issued").get((pg.SEND, group.rank(), message.tag), 0)
            if message.count <= sent - group.channels.taken.get((message.peer, message.tag), 0):
                yield message


def _due_sends(group, heard, anybody):
    """Those for which a receive is posted, or that a receive from any source has matched."""
    me = group.rank()
    for message in _posted(group):
        if message.kind == pg.SEND:
            peer, tag = message.peer, message.tag
            into = heard.of(group, peer, "first", "issued").get((pg.RECV, me, tag), 0)
            taken = heard.of(group, peer, "final", "taken").get((me, tag), 0) if anybody else 0
            if message.count <= into + taken:
                yield message


def _settle_anybody(group, heard, wanted):
    """Complete as many receives from anybody as there are messages for them on their way."""
    channels = group.channels
    posted = [message for message in _posted(group) if message.kind == pg.ANY]
    for tag in sorted({message.tag for message in posted}):
        waiting = [message for message in posted if message.tag == tag]
        coming = 0
        for peer in range(group.size()):
            sent = heard.of(group, peer, "first", "issued").get((pg.SEND, group.rank(), tag), 0)
            met = channels.counts.get((pg.RECV, peer, tag), 0) + channels.taken.get((peer, tag), 0)
            coming += max(0, sent - met)
        _complete(waiting, wanted, min(coming, len(waiting)))


def _wakes(group, heard):
    """For each rank that this one must wake, messages that mean nothing. The next rank that lives wakes a rank."""
    me, size = group.rank(), group.size()
    for peer in range(size):
        others = [(peer + step) % size for step in range(1, size)]
        first = next((other for other in others if other == me or heard.lives(group, other)), None)
        if first != me or peer == me:
            continue
        posted = heard.of(group, peer, "final", "posted")
        for tag in [tag for kind, _, tag in posted if kind == pg.ANY]:
            count = posted[pg.ANY, -1, tag] + posted.get((pg.RECV, me, tag), 0)
            yield functools.partial(_wake, group, peer, tag, count)


def _wake(group, peer, tag, count):
    """The peer may have ended already: then no thread waits there any more."""
    with contextlib.suppress(RuntimeError):
        for work in [group.inner().send([_nothing()], peer, tag) for _ in range(count)]:
            work.wait(WAKE_LIMIT)


def _nothing():
    import torch

    return torch.zeros(1, dtype=torch.uint8)


def _complete(messages, wanted, count=None):
    """Until ``count`` of them, or all, are complete. Threads that wait already are left to it."""
    count = len(messages) if count is None else count
    if not count:
        return
    _start(messages)
    while sum(message.complete for message in messages) < count and wanted():
        time.sleep(NAP_S)


def _start(messages):
    for message in messages:
        if not message.complete and not message.lock.locked():
            threading.Thread(target=_attempt, args=(message,), daemon=True).start()


def _attempt(message):
    if message.lock.acquire(blocking=False):
        try:
            message.attempt()
        finally:
            message.lock.release()
