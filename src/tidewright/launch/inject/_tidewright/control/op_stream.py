"""A stream of operations of one kind that are issued in one order, as the agent sees it: an entry of the control page.

Each operation is announced before it is issued: counted in the page, and then HOLD is read. Without a hold that is all; it is
done for every collective, so it does no more than it must. No torch here.
"""

from __future__ import annotations

import hashlib

from .. import page as pg


def ident(*names):
    """A 63-bit number all ranks agree on without asking."""
    text = "\0".join(str(name) for name in names)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1 or 1


class OpStream:
    """``number``: how many operations were announced; ``done``: how many of them were issued."""

    def __init__(self, control, ident, kind, peer, members=()):
        self.control = control
        self.number = self.done = 0
        self.at = control.register_op_stream(self, ident, kind, peer, members)
        self._issued = self.at + pg.ISSUED

    def announce(self):
        """Count one more operation, and wait until it may be issued; its number."""
        self.number = number = self.number + 1
        control = self.control
        words = control.words
        words[self._issued] = number
        # In this order: see ``control_states.asked``.
        if words[pg.HOLD] or words[pg.BUILD] != control.machine.built or control.machine.blocked:
            control.stop([(self.at, number)])
        return number

    def retract(self):
        """The operation announced last could not be issued."""
        self.number = self.control.words[self._issued] = self.number - 1

    def settled(self):
        """Whether every operation that was announced has been issued."""
        return self.done == self.control.words[self._issued]

    def unregister(self):
        """Its group is destroyed."""
        self.control.unregister(self.at)


def announce_together(streams):
    """Announce one operation of each, to be issued as one; the number of the first. The streams are of one process."""
    control = streams[0].control
    words, wants = control.words, []
    for stream in streams:
        stream.number += 1
        words[stream._issued] = stream.number
        wants.append((stream.at, stream.number))
    if words[pg.HOLD] or words[pg.BUILD] != control.machine.built or control.machine.blocked:
        control.stop(wants)
    return wants[0][1]
