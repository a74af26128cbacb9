"""Closing the connections of all groups of a process, and making them anew. No torch here."""

from __future__ import annotations

import time

from . import page as pg
from .sockets import sockets

NAP_S = 0.0005
"""Between two looks at sockets that are being closed."""


def await_closed(groups, closing, limit_s):
    """A backend closes its sockets a little later than it is released, as do threads that were woken out of a wait.

    ``closing``: sockets of groups that were destroyed.
    """
    if not groups and not closing:
        return
    ours = closing.union(*(group.sockets for group in groups))
    until = time.monotonic() + limit_s
    while ours & sockets() and time.monotonic() < until:
        time.sleep(NAP_S)


def rebuild(groups, words):
    """Meet the other ranks and connect; the word BUILD of these connections.

    A rank that has ended is not waited for: groups it was in stay unconnected, and only a program that uses one minds. All that
    remain agree on who has ended: a rank ends only after it was connected to those that gathered with it, which each of
    them is after looking.
    """
    made = [group for group in groups if group.made]
    if not made:
        return _settled_build(words)
    world = made[0].world  # that of every rank, whose default group was the first
    number = world.gather()
    build = _settled_build(words)  # the rank that came last may have been released once more than we were before
    gone = world.gone()
    for group in sorted(made, key=lambda group: group.key):
        group.without = sorted(gone.intersection(group.ranks))
        if not group.without:
            group.build(number)
    return build


def _settled_build(words):
    """BUILD, once no release is under way: the agent changes it while HOLD says DROP."""
    while words[pg.HOLD] & 15 >= pg.DRAIN:
        time.sleep(NAP_S)
    return words[pg.BUILD]
