"""Which descriptors a backend has open, so that a forked child can close them: a connection is closed only when
no process has it open any more, and a child that is saved with one could be restored on this machine alone.

gloo has all its descriptors in an epoll(7) instance, made with the device. The kernel lists them under that one's
number in /proc/self/fdinfo, in a forked child as well. So nothing that the program opens can be taken for gloo's,
whichever thread of it opens what meanwhile. Standard library only.
"""

from __future__ import annotations

import os

TRIES = 100
"""Of making a device while no other thread makes an epoll instance."""


class EventLoopFds:
    """One epoll instance: its number, and what it has watched (inode and device numbers, by descriptor)."""

    def __init__(self, number):
        self.number = number
        self._known = _listed(number)

    def note(self):
        """Connections are complete. One that its peer has closed is watched no more, and is open still.

        Programs that this process starts by other ways than a fork of Python's will have nothing of it open.
        """
        self._known.update(_listed(self.number))
        for number in self.descriptors():
            os.set_inheritable(number, False)

    def descriptors(self):
        """The numbers of all that is open still; what was closed meanwhile is left out, even if its number is in use again."""
        known, listed = self._known, _listed(self.number)
        if set(known.values()).isdisjoint(listed.values()):
            listed = {}
        found = [number for number, identity in {**known, **listed}.items() if _identity(number) == identity]
        return [*found, self.number] if listed else found


def watch(make):
    """Call ``make``, which makes one epoll instance; what it returned and the ``EventLoopFds``.

    Called again when another thread has made or closed one meanwhile. The loop is an empty one where that never stops,
    or ``make`` makes none.
    """
    for _ in range(TRIES):
        before = _instances()
        found = make()
        fresh = _instances() - before
        if len(fresh) == 1:
            return found, EventLoopFds(fresh.pop())
    return found, EventLoopFds(-1)


def close_in_child(loops):
    """In a forked child: /dev/null takes the place of each, as destructors may still close the numbers."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for loop in loops:
        for number in loop.descriptors():
            os.dup2(null, number, inheritable=False)
    os.close(null)


def _instances():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink("/proc/self/fd/" + name) == "anon_inode:[eventpoll]":
                found.add(int(name))
        except OSError:
            continue
    return found


def _listed(number):
    """What an epoll instance watches: inode and device number by descriptor. Empty when it is none.

    proc(5): ``tfd: 8 events: 19 data: 5621 pos:0 ino:5c02c sdev:9``, the last two in hexadecimal.
    """
    found = {}
    try:
        with open(f"/proc/self/fdinfo/{number}") as file:
            for line in file:
                if line.startswith("tfd:"):
                    words = line.replace(":", " ").split()
                    device = int(words[words.index("sdev") + 1], 16)
                    inode = int(words[words.index("ino") + 1], 16)
                    found[int(words[1])] = inode, os.makedev(device >> 20, device & 0xFFFFF)
    except (OSError, ValueError):
        return {}
    return found


def _identity(number):
    try:
        found = os.fstat(number)
    except OSError:
        return None
    return found.st_ino, found.st_dev
